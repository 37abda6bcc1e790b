// A stranger at a source's TCP data port: the handshake, and READs of memory it may have or not.
//
// The input is what the stranger sends. A real TcpSource answers it over a Unix socket; a model
// written from the format alone (prod/tcp_wire.h) says what those answers must be, byte for byte,
// so a single byte of memory that was not asked for rightly is found (FIELD 32).
//
// A hello that asks for service 0 is given the right one, which is random: else nothing would pass.
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "fuzz/target.h"
#include "prod/tcp_source.h"

namespace weightlane::prod {
namespace {

constexpr uint64_t kRegionBytes = 1'500;
constexpr size_t kInputMax = 8'192;  // fits into a socket's buffer: sending never waits
constexpr uint8_t kPayload = 0x7a;

// Who begins its hello with 0xff is refused.
class AcceptsMost final : public net::Acceptor {
 public:
  net::AcceptDecision on_connect(std::span<const uint8_t> hello,
                                 std::unique_ptr<net::PassiveQueuePair> pair) override {
    if (!hello.empty() && hello.front() == 0xff) return Error{ErrorCode::kRefused, "no"};
    pair_ = std::move(pair);
    return net::Accept{{kPayload}};
  }
  void drop_pair() { pair_.reset(); }

 private:
  std::unique_ptr<net::PassiveQueuePair> pair_;
};

struct World {
  World() {
    for (size_t i = 0; i < kRegionBytes; ++i) memory[i] = static_cast<uint8_t>(i * 31 + i / 256);
    net::MemoryRange range;
    range.address = reinterpret_cast<uint64_t>(memory.get());
    range.length = kRegionBytes;
    region = shared->registry.add(range).value();
  }

  EventLoop loop;
  std::unique_ptr<uint8_t[]> memory = std::make_unique<uint8_t[]>(kRegionBytes);
  std::shared_ptr<TcpShared> shared = std::make_shared<TcpShared>(loop);
  net::RegionId region;
};

// A source that listens; gone with all of its threads when it is destroyed, so that no thread of
// one input is still at its end when the fuzzer looks for leaks.
struct Listening {
  explicit Listening(World& w) : world(w) {
    FileDescriptor socket_fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    name.sun_family = AF_UNIX;
    // Only the family: the kernel finds a free abstract name.
    WL_ASSERT(bind(socket_fd.get(), address(), sizeof name.sun_family) == 0);
    name_bytes = sizeof name;
    WL_ASSERT(getsockname(socket_fd.get(), address(), &name_bytes) == 0);
    WL_ASSERT(::listen(socket_fd.get(), 8) == 0);
    service = source->add_service(&acceptor);
    WL_ASSERT(source->start(std::move(socket_fd)).ok());
  }
  ~Listening() {
    acceptor.drop_pair();
    source->stop();
    world.shared->threads.join_all();
  }
  sockaddr* address() { return reinterpret_cast<sockaddr*>(&name); }

  World& world;
  std::shared_ptr<TcpSource> source = std::make_shared<TcpSource>(world.shared, seconds(5));
  AcceptsMost acceptor;
  uint64_t service = 0;
  sockaddr_un name{};
  socklen_t name_bytes = 0;
};

template <typename Frame>
bool take(std::span<const uint8_t>& bytes, Frame& frame) {
  if (bytes.size() < sizeof frame) return false;
  std::memcpy(&frame, bytes.data(), sizeof frame);
  bytes = bytes.subspan(sizeof frame);
  return true;
}
void append(Bytes& to, std::span<const uint8_t> bytes) {
  to.insert(to.end(), bytes.begin(), bytes.end());
}

// What must be answered to READs.
void expect_reads(const World& world, std::span<const uint8_t> sent, Bytes& expected) {
  TcpRequest request;
  while (take(sent, request) && request.magic == kTcpRequestMagic) {
    TcpResponse response;
    response.sequence = request.sequence;
    const bool sound = request.length != 0 && request.length <= kTcpReadMax;
    const bool inside = sound && request.region == world.region.value &&
                        request.offset <= kRegionBytes &&
                        request.length <= kRegionBytes - request.offset;
    if (inside) {
      response.length = request.length;
      append(expected, frame_bytes(response));
      append(expected,
             std::span(world.memory.get(), kRegionBytes).subspan(request.offset, request.length));
      continue;
    }
    const auto status =
        sound ? net::CompletionStatus::kRemoteAccess : net::CompletionStatus::kRemoteInvalidRequest;
    response.status = static_cast<uint32_t>(status);
    append(expected, frame_bytes(response));
    return;
  }
}

// What must be answered to all of it; the token is anybody's guess and left 0.
Bytes expect(const Listening& listening, std::span<const uint8_t> sent) {
  Bytes expected;
  TcpHello hello;
  if (!take(sent, hello) || hello.magic != kTcpMagic || hello.kind != TcpKind::kPair) return {};
  if (hello.length > kTcpHelloMax || hello.length > sent.size()) return {};
  const std::span<const uint8_t> said = sent.first(hello.length);
  TcpReply reply;
  std::string body(1, static_cast<char>(kPayload));
  if (hello.id != listening.service) {
    reply.verdict = TcpVerdict::kNobody;
    body = "this is not the worker that was asked for (it may have been restarted)";
  } else if (!said.empty() && said.front() == 0xff) {
    reply.verdict = TcpVerdict::kRefused;
    body = "no";
  }
  reply.length = body.size();
  append(expected, frame_bytes(reply));
  append(expected, {reinterpret_cast<const uint8_t*>(body.data()), body.size()});
  if (reply.verdict == TcpVerdict::kAccepted) {
    expect_reads(listening.world, sent.subspan(hello.length), expected);
  }
  return expected;
}

// On a helper thread: says all of it, and hears until the source ends the connection.
Bytes converse(const Listening* listening, const Bytes* input) {
  const FileDescriptor fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  WL_ASSERT(connect(fd.get(), reinterpret_cast<const sockaddr*>(&listening->name),
                    listening->name_bytes) == 0);
  // May fail half way: the source is free to hang up.
  fuzz::uninterrupted([&] { return send(fd.get(), input->data(), input->size(), MSG_NOSIGNAL); });
  shutdown(fd.get(), SHUT_WR);
  Bytes heard;
  for (;;) {
    uint8_t piece[4096];
    const ssize_t got = fuzz::uninterrupted([&] { return recv(fd.get(), piece, sizeof piece, 0); });
    if (got <= 0) return heard;
    append(heard, std::span<const uint8_t>(piece, static_cast<size_t>(got)));
  }
}

}  // namespace
}  // namespace weightlane::prod

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weightlane;
  using namespace weightlane::prod;
  static World world;
  Listening listening(world);
  Bytes input(data, data + std::min(size, kInputMax));
  if (input.size() >= sizeof(TcpHello)) {
    uint8_t* const id = input.data() + offsetof(TcpHello, id);
    if (std::all_of(id, id + sizeof listening.service, [](uint8_t byte) { return byte == 0; })) {
      std::memcpy(id, &listening.service, sizeof listening.service);
    }
  }
  const std::function<Bytes()> talk = [&] { return converse(&listening, &input); };
  Bytes heard = world.loop.run(world.loop.run_on_helper<Bytes>(talk));
  if (heard.size() >= sizeof(TcpReply)) {
    std::memset(heard.data() + offsetof(TcpReply, token), 0, sizeof(uint64_t));
  }
  WL_ASSERT(heard == expect(listening, input));
  return 0;
}
