// Goal: what the conformance suite can't reach: peers that lie, stall or talk nonsense, ports, and
// addresses.
// Method: raw sockets play the bad peer against a real plane; a real reader reads from a fake
// source.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <random>
#include <thread>

#include "prod/tcp_plane.h"
#include "prod/tcp_wire.h"
#include "tests/prod/plane_test_kit.h"

namespace weightlane::prod {
namespace {

TcpOptions loopback() {
  TcpOptions options;
  options.host = "127.0.0.1";
  return options;
}

// The blocking end of a bad peer; every call is bounded by the socket's timeouts.
class RawSocket {
 public:
  explicit RawSocket(FileDescriptor fd) : fd_(std::move(fd)) {
    const timeval patience{5, 0};
    setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(fd_.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  }
  static RawSocket to(uint16_t port) {
    FileDescriptor fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const TcpAddress address = *TcpAddress::from_host("127.0.0.1", port);
    EXPECT_EQ(connect(fd.get(), address.get(), address.length), 0);
    return RawSocket(std::move(fd));
  }
  bool send(std::span<const uint8_t> bytes) const {
    return ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  bool receive(std::span<uint8_t> bytes) const {
    return bytes.empty() || recv(fd_.get(), bytes.data(), bytes.size(), MSG_WAITALL) ==
                                static_cast<ssize_t>(bytes.size());
  }
  // The other side has closed it; what it still sent is passed over.
  bool ended() const {
    std::array<uint8_t, 65536> ignored;
    for (;;) {
      const ssize_t got = recv(fd_.get(), ignored.data(), ignored.size(), 0);
      if (got == 0 || (got < 0 && errno == ECONNRESET)) return true;
      if (got < 0) return false;
    }
  }
  // As a reader that was accepted.
  static RawSocket accepted(EventLoop& loop, uint16_t port, uint64_t service) {
    RawSocket raw = to(port);
    TcpHello hello;
    hello.id = service;
    EXPECT_TRUE(raw.send(frame_bytes(hello)));
    // The acceptor decides on the loop's thread, which is this one.
    bool answered = false;
    TcpReply reply;
    std::thread listener([&] {
      EXPECT_TRUE(raw.receive(writable_frame(reply)));
      loop.post_to_loop([&answered] { answered = true; });
    });
    EXPECT_TRUE(until(loop, [&answered] { return answered; }));
    listener.join();
    EXPECT_EQ(reply.verdict, TcpVerdict::kAccepted);
    return raw;
  }

 private:
  FileDescriptor fd_;
};

struct Plane : ::testing::Test {
  EventLoop loop;
  TcpPlane source{loop, loopback()};
  KeepingAcceptor acceptor;
  std::string endpoint = *source.listen(&acceptor);
  uint64_t service = TcpEndpoint::parse(endpoint)->service;

  void TearDown() override {
    acceptor.pairs.clear();
    source.stop_listening(&acceptor);
  }
  // The plane serves somebody as it should.
  void expect_alive() {
    TcpPlane reader(loop, loopback());
    const Registered from(loop, source, 10'000);
    Registered into(loop, reader, 10'000);
    std::fill(into.data.begin(), into.data.end(), 0);
    TestLink link(loop);
    const Result<Done> connected = connect_link(loop, reader, endpoint, link);
    ASSERT_TRUE(connected.ok()) << connected.error().message;
    const net::RemoteRegion remote = acceptor.pairs.back()->describe(from.region);
    ASSERT_EQ(link.pair->post_read(work_of(into, remote, 10'000)), net::PostResult::kPosted);
    const std::optional<net::Completion> completion = next_of(loop, link);
    ASSERT_TRUE(completion.has_value());
    EXPECT_EQ(completion->status, net::CompletionStatus::kSuccess);
    EXPECT_EQ(into.data, from.data);
    EXPECT_TRUE(destroy_link(loop, link));
    loop.run(source.deregister(from.region));
    loop.run(reader.deregister(into.region));
  }
};

uint64_t resident_kib() {
  std::ifstream file("/proc/self/statm");
  uint64_t pages = 0;
  file >> pages >> pages;
  return pages * 4;
}

TEST_F(Plane, GarbageClosesItsConnectionAndNothingElse) {
  std::mt19937 random(7);
  std::vector<uint8_t> garbage(4096);
  uint64_t before = 0;
  for (int i = 0; i < 300; ++i) {
    for (uint8_t& byte : garbage) byte = static_cast<uint8_t>(random());
    const RawSocket raw = RawSocket::to(source.port());
    raw.send(garbage);
    EXPECT_TRUE(raw.ended());
    if (i == 50) before = resident_kib();
  }
  EXPECT_LT(resident_kib(), before + 16 * 1024) << "memory grew with garbage";
  expect_alive();
}

TEST_F(Plane, LyingHellosAreCutOff) {
  TcpHello hello;
  hello.id = service;
  hello.length = ~0ull;
  const RawSocket endless = RawSocket::to(source.port());
  EXPECT_TRUE(endless.send(frame_bytes(hello)));
  EXPECT_TRUE(endless.ended());
  hello.length = 0;
  hello.kind = static_cast<TcpKind>(77);
  const RawSocket unknown = RawSocket::to(source.port());
  EXPECT_TRUE(unknown.send(frame_bytes(hello)));
  EXPECT_TRUE(unknown.ended());
  hello.kind = TcpKind::kStream;  // of a pair that nobody has
  const RawSocket stranger = RawSocket::to(source.port());
  EXPECT_TRUE(stranger.send(frame_bytes(hello)));
  EXPECT_TRUE(stranger.ended());
  EXPECT_TRUE(acceptor.pairs.empty());
  expect_alive();
}

TEST(TcpPlane, AStrangerWhoSaysNothingIsCutOffInTime) {
  EventLoop loop;
  TcpOptions options = loopback();
  options.handshake = millis(100);
  TcpPlane source(loop, options);
  KeepingAcceptor acceptor;
  ASSERT_TRUE(source.listen(&acceptor).ok());
  const RawSocket silent = RawSocket::to(source.port());
  EXPECT_TRUE(silent.ended());
  TcpHello hello;
  hello.length = 1 << 20;
  const RawSocket slow = RawSocket::to(source.port());
  EXPECT_TRUE(slow.send(frame_bytes(hello)));
  EXPECT_TRUE(slow.ended());
}

TEST_F(Plane, ManyStrangersDoNotKeepReadersOut) {
  std::vector<RawSocket> crowd;
  for (int i = 0; i < 200; ++i) crowd.push_back(RawSocket::to(source.port()));
  expect_alive();
}

TEST_F(Plane, FieldReport32_RequestsAreNamesNotAddresses) {
  const Registered memory(loop, source, 4096);
  std::mt19937_64 random(9);
  for (int i = 0; i < 100; ++i) {
    const RawSocket raw = RawSocket::accepted(loop, source.port(), service);
    TcpRequest request;
    request.sequence = static_cast<uint64_t>(i);
    request.region = i % 3 == 0 ? random() : memory.region.value;
    request.offset = i % 2 == 0 ? random() : reinterpret_cast<uint64_t>(memory.data.data());
    request.length = i % 5 == 0 ? random() : 4096;
    ASSERT_TRUE(raw.send(frame_bytes(request)));
    TcpResponse response;
    ASSERT_TRUE(raw.receive(writable_frame(response)));
    EXPECT_NE(response.status, static_cast<uint32_t>(net::CompletionStatus::kSuccess));
    EXPECT_EQ(response.length, 0u);
  }
  expect_alive();
}

TEST_F(Plane, GarbageInsteadOfARequestEndsThatReader) {
  const RawSocket raw = RawSocket::accepted(loop, source.port(), service);
  const std::vector<uint8_t> garbage(400, 0xee);
  raw.send(garbage);
  expect_alive();
}

TEST_F(Plane, DeregisteringDoesNotWaitForAReaderThatStalls) {
  Registered memory(loop, source, 64 << 20);
  const RawSocket raw = RawSocket::accepted(loop, source.port(), service);
  TcpRequest request;
  request.region = memory.region.value;
  request.length = 64 << 20;
  ASSERT_TRUE(raw.send(frame_bytes(request)));
  TcpResponse response;
  ASSERT_TRUE(raw.receive(writable_frame(response)));  // it sends, and nobody receives
  const Nanos before = loop.runtime().now();
  loop.run(source.deregister(memory.region));
  EXPECT_LT(loop.runtime().now() - before, seconds(3));
  EXPECT_TRUE(until(loop, [this] { return acceptor.pairs.back()->closed(); }));
}

TEST_F(Plane, TheSourceHearsOfItsReadersEnd) {
  TcpPlane reader(loop, loopback());
  TestLink link(loop);
  ASSERT_TRUE(connect_link(loop, reader, endpoint, link).ok());
  EXPECT_FALSE(acceptor.pairs.back()->closed());
  EXPECT_TRUE(destroy_link(loop, link));
  EXPECT_TRUE(until(loop, [this] { return acceptor.pairs.back()->closed(); }));
}

// Plays a source: takes one pair of one stream, and does with its first request what it is told.
class FakeSource {
 public:
  using Serve = std::function<void(RawSocket&, const TcpRequest&)>;
  explicit FakeSource(Serve serve) : serve_(std::move(serve)) {
    listening_ = FileDescriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    TcpAddress address = *TcpAddress::from_host("127.0.0.1", 0);
    EXPECT_EQ(bind(listening_.get(), address.get(), address.length), 0);
    EXPECT_EQ(listen(listening_.get(), 4), 0);
    EXPECT_EQ(getsockname(listening_.get(), reinterpret_cast<sockaddr*>(&address.storage),
                          &address.length),
              0);
    endpoint = address.text() + "/01";
    thread_ = std::thread([this] { run(); });
  }
  ~FakeSource() {
    shutdown(listening_.get(), SHUT_RDWR);
    thread_.join();
  }
  std::string endpoint;

 private:
  void run() {
    RawSocket raw(FileDescriptor(accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC)));
    TcpHello hello;
    if (!raw.receive(writable_frame(hello))) return;
    Bytes said(hello.length);
    TcpRequest request;
    if (!raw.receive(said) || !raw.send(frame_bytes(TcpReply{}))) return;
    if (raw.receive(writable_frame(request))) serve_(raw, request);
    raw.ended();  // the reader's end
  }

  Serve serve_;
  FileDescriptor listening_;
  std::thread thread_;
};

struct FakeSourceTest : ::testing::Test {
  EventLoop loop;
  std::unique_ptr<TcpPlane> reader;
  void SetUp() override {
    TcpOptions options = loopback();
    options.streams = 1;
    reader = std::make_unique<TcpPlane>(loop, options);
  }
};

TEST_F(FakeSourceTest, FieldReport01_ASourceThatStallsIsLeftAndNothingLandsLater) {
  constexpr uint64_t kSize = 10 << 20;
  FakeSource source([](RawSocket& raw, const TcpRequest& request) {
    TcpResponse response;
    response.sequence = request.sequence;
    response.length = request.length;
    raw.send(frame_bytes(response));
    raw.send(Bytes(request.length * 3 / 10, 0xab));  // and then nothing
  });
  Registered into(loop, *reader, kSize);
  TestLink link(loop);
  ASSERT_TRUE(connect_link(loop, *reader, source.endpoint, link).ok());
  ASSERT_EQ(link.pair->post_read(work_of(into, net::RemoteRegion{}, kSize)),
            net::PostResult::kPosted);
  EXPECT_FALSE(next_of(loop, link, millis(300)).has_value());
  const Nanos before = loop.runtime().now();
  EXPECT_TRUE(destroy_link(loop, link));
  EXPECT_LT(loop.runtime().now() - before, seconds(3));
  std::fill(into.data.begin(), into.data.end(), 0x5c);
  run_for(loop, millis(50));
  EXPECT_EQ(std::count(into.data.begin(), into.data.end(), 0x5c), static_cast<int64_t>(kSize));
  loop.run(reader->deregister(into.region));
}

TEST_F(FakeSourceTest, FieldReport31_AnAnswerToSomethingElseLandsNowhere) {
  FakeSource source([](RawSocket& raw, const TcpRequest& request) {
    TcpResponse response;
    response.sequence = request.sequence + 1;
    response.length = request.length;
    raw.send(frame_bytes(response));
    raw.send(Bytes(request.length, 0xab));
  });
  Registered into(loop, *reader, 4096);
  const std::vector<uint8_t> before = into.data;
  TestLink link(loop);
  ASSERT_TRUE(connect_link(loop, *reader, source.endpoint, link).ok());
  ASSERT_EQ(link.pair->post_read(work_of(into, net::RemoteRegion{}, 4096)),
            net::PostResult::kPosted);
  const std::optional<net::Completion> completion = next_of(loop, link);
  ASSERT_TRUE(completion.has_value());
  EXPECT_EQ(completion->status, net::CompletionStatus::kBadResponse);
  EXPECT_EQ(link.pair->post_read(work_of(into, net::RemoteRegion{}, 1)), net::PostResult::kBroken);
  EXPECT_EQ(into.data, before);
  EXPECT_TRUE(destroy_link(loop, link));
}

TEST_F(FakeSourceTest, ASourceThatDiesUnderAReadIsAPathError) {
  FakeSource source([](RawSocket& raw, const TcpRequest& request) {
    TcpResponse response;
    response.sequence = request.sequence;
    response.length = request.length;
    raw.send(frame_bytes(response));
    raw.send(Bytes(1000, 0xab));
    raw = RawSocket(FileDescriptor());
  });
  Registered into(loop, *reader, 4096);
  TestLink link(loop);
  ASSERT_TRUE(connect_link(loop, *reader, source.endpoint, link).ok());
  ASSERT_EQ(link.pair->post_read(work_of(into, net::RemoteRegion{}, 4096)),
            net::PostResult::kPosted);
  const std::optional<net::Completion> completion = next_of(loop, link);
  ASSERT_TRUE(completion.has_value());
  EXPECT_EQ(completion->status, net::CompletionStatus::kRetryExceeded);
  EXPECT_TRUE(destroy_link(loop, link));
}

// ---- ports and addresses
// ---------------------------------------------------------------------------

TEST(TcpPlane, FieldReport28_ATakenPortGivesTheNextOrAClearError) {
  EventLoop loop;
  KeepingAcceptor acceptor;
  TcpPlane anywhere(loop, loopback());
  ASSERT_TRUE(anywhere.listen(&acceptor).ok());
  TcpOptions range = loopback();
  range.port_first = anywhere.port();
  range.port_last = static_cast<uint16_t>(anywhere.port() + 40);
  TcpPlane next(loop, range);
  ASSERT_TRUE(next.listen(&acceptor).ok());
  EXPECT_GT(next.port(), anywhere.port());
  EXPECT_LE(next.port(), range.port_last);
  TcpOptions taken = loopback();
  taken.port_first = anywhere.port();
  TcpPlane none(loop, taken);
  const Result<std::string> refused = none.listen(&acceptor);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
  EXPECT_NE(refused.error().message.find(std::to_string(anywhere.port())), std::string::npos)
      << refused.error().message;
}

TEST(TcpPlane, FieldReport12_ARestartedWorkerOnTheSamePortRefusesOldEndpoints) {
  EventLoop loop;
  KeepingAcceptor acceptor;
  auto before = std::make_unique<TcpPlane>(loop, loopback());
  const std::string stale = *before->listen(&acceptor);
  TcpOptions same = loopback();
  same.port_first = before->port();
  before.reset();
  TcpPlane after(loop, same);
  ASSERT_TRUE(after.listen(&acceptor).ok());
  TcpPlane reader(loop, loopback());
  TestLink link(loop);
  const Result<Done> refused = connect_link(loop, reader, stale, link);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kRefused) << refused.error().message;
  EXPECT_TRUE(acceptor.pairs.empty());
}

TEST(TcpAddress, FieldReport27_ReadsAndWritesBothFamilies) {
  for (const char* text : {"127.0.0.1:7000", "[::1]:7000", "[2605:340:1::9]:65535"}) {
    const Result<TcpAddress> address = TcpAddress::parse(text);
    ASSERT_TRUE(address.ok()) << text;
    EXPECT_EQ(address->text(), text);
  }
  EXPECT_EQ(TcpAddress::parse("[::ffff:10.0.0.1]:80")->text(), "10.0.0.1:80");
  EXPECT_EQ(TcpAddress::parse("[fe80::1%lo]:80")->text(), "[fe80::1%lo]:80");
  for (const char* text : {"", ":", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:8x",
                           "2605:340:1::9:7000", "[::1]", "[::1:7000", "host.example:80"}) {
    EXPECT_FALSE(TcpAddress::parse(text).ok()) << text;
  }
}

TEST(TcpPlane, FieldReport27_IPv6AloneServesAndReads) {
  EventLoop loop;
  TcpOptions options;
  options.host = "::1";
  TcpPlane source(loop, options);
  TcpPlane reader(loop, options);
  KeepingAcceptor acceptor;
  const Result<std::string> endpoint = source.listen(&acceptor);
  ASSERT_TRUE(endpoint.ok()) << endpoint.error().message;
  EXPECT_EQ(endpoint->rfind("[::1]:", 0), 0u) << *endpoint;
  TestLink link(loop);
  EXPECT_TRUE(connect_link(loop, reader, *endpoint, link).ok());
  EXPECT_TRUE(destroy_link(loop, link));
}

TEST(TcpPlane, TheNextAddressIsTriedWhenOneIsDead) {
  EventLoop loop;
  TcpPlane source(loop, loopback());
  TcpPlane reader(loop, loopback());
  KeepingAcceptor acceptor;
  const std::string endpoint = "127.0.0.1:1," + *source.listen(&acceptor);
  TestLink link(loop);
  EXPECT_TRUE(connect_link(loop, reader, endpoint, link).ok());
  EXPECT_TRUE(destroy_link(loop, link));
}

TEST(TcpPlane, FieldReport19_MemoryThatIsNotThereIsNotRegistered) {
  EventLoop loop;
  TcpPlane plane(loop, loopback());
  net::MemoryRange range;
  range.address = 0x1000;
  range.length = 1 << 20;
  const Result<net::RegionId> region = loop.run(plane.register_memory(range));
  ASSERT_FALSE(region.ok());
  EXPECT_NE(region.error().message.find("not mapped"), std::string::npos) << region.error().message;
  range.device = net::Device::kCuda;
  EXPECT_FALSE(loop.run(plane.register_memory(range)).ok());
}

}  // namespace
}  // namespace weightlane::prod
