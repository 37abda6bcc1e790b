// Goal: the same-host plane between real processes: bytes come across, the end of either is
// noticed, and whoever is not who he says, or may not, is not read from. Method: the source is a
// child process, killed with -9 where that is the point; a reader of another user is a child too.
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "prod/process_identity.h"
#include "prod/same_host_plane.h"
#include "tests/prod/plane_test_kit.h"

namespace weightlane::prod {
namespace {

constexpr uint64_t kSize = 8 << 20;

std::unique_ptr<SameHostPlane> make_plane(EventLoop& loop, SharedArenas* arenas = nullptr) {
  SameHostOptions options;
  options.arenas = arenas;
  Result<std::unique_ptr<SameHostPlane>> plane = SameHostPlane::create(loop, options);
  WL_ASSERT(plane.ok());
  return std::move(*plane);
}

// Accepts everybody and tells where its one region is.
class TellingAcceptor final : public net::Acceptor {
 public:
  explicit TellingAcceptor(net::RegionId region) : region_(region) {}
  net::AcceptDecision on_connect(std::span<const uint8_t>,
                                 std::unique_ptr<net::PassiveQueuePair> pair) override {
    const net::RemoteRegion remote = pair->describe(region_);
    net::Accept accept;
    accept.payload.resize(sizeof remote);
    std::memcpy(accept.payload.data(), &remote, sizeof remote);
    pairs_.push_back(std::move(pair));
    return accept;
  }

 private:
  net::RegionId region_;
  std::vector<std::unique_ptr<net::PassiveQueuePair>> pairs_;
};

[[noreturn]] void be_source(int control, bool shared) {
  EventLoop loop;
  SharedArenas arenas;
  std::unique_ptr<SameHostPlane> plane = make_plane(loop, &arenas);
  std::vector<uint8_t> plain(shared ? 0 : kSize);
  std::optional<SharedMemory> mapped;
  uint8_t* data = plain.data();
  if (shared) {
    mapped.emplace(std::move(*SharedMemory::allocate(arenas, kSize)));
    data = mapped->data();
  }
  for (uint64_t i = 0; i < kSize; ++i) data[i] = static_cast<uint8_t>(i * 7 + i / 4096);
  net::MemoryRange range;
  range.address = reinterpret_cast<uint64_t>(data);
  range.length = kSize;
  const Result<net::RegionId> region = loop.run(plane->register_memory(range));
  TellingAcceptor acceptor(*region);
  const std::string endpoint = *plane->listen(&acceptor);
  char text[256] = {};
  endpoint.copy(text, sizeof text - 1);
  if (write(control, text, sizeof text) != sizeof text) _exit(1);
  const std::unique_ptr<FdWatch> watch = loop.watch(control, [&loop, control](FdReady) {
    char ignored = 0;
    if (recv(control, &ignored, 1, MSG_DONTWAIT) == 0) loop.stop();
  });
  loop.run();
  _exit(0);
}

// A process that serves kSize bytes until it is killed or this object goes.
class SourceProcess {
 public:
  explicit SourceProcess(bool shared) {
    int ends[2];
    WL_ASSERT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    pid = fork();
    WL_ASSERT(pid >= 0);
    if (pid == 0) {
      close(ends[0]);
      be_source(ends[1], shared);
    }
    close(ends[1]);
    control_ = FileDescriptor(ends[0]);
    char text[256] = {};
    EXPECT_EQ(recv(control_.get(), text, sizeof text, MSG_WAITALL), ssize_t{sizeof text});
    endpoint = text;
  }
  ~SourceProcess() {
    control_.reset();
    if (pid > 0) waitpid(pid, nullptr, 0);
  }
  void kill_and_bury() {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    pid = -1;
  }
  pid_t pid = -1;
  std::string endpoint;

 private:
  FileDescriptor control_;
};

struct Reading {
  explicit Reading(EventLoop& loop) : link(loop) {}
  TestLink link;
  net::RemoteRegion remote;
};

Result<Done> connect_reading(EventLoop& loop, SameHostPlane& plane, const std::string& endpoint,
                             Reading& reading) {
  Result<net::Connected> connected = loop.run(
      plane.connect(endpoint, Bytes{}, &reading.link.wake, loop.runtime().now() + seconds(10)));
  if (!connected) return connected.error();
  reading.link.pair = std::move(connected->pair);
  if (connected->payload.size() != sizeof reading.remote) {
    return Error{ErrorCode::kCorrupt, "payload"};
  }
  std::memcpy(&reading.remote, connected->payload.data(), sizeof reading.remote);
  return Done{};
}

class TwoProcesses : public ::testing::TestWithParam<bool> {};

TEST_P(TwoProcesses, BytesComeAcrossAndDeathIsNoticed) {
  SourceProcess source(GetParam());  // before this process has threads
  EventLoop loop;
  std::unique_ptr<SameHostPlane> plane = make_plane(loop);
  Registered into(loop, *plane, kSize);
  Reading reading(loop);
  const Result<Done> connected = connect_reading(loop, *plane, source.endpoint, reading);
  ASSERT_TRUE(connected.ok()) << connected.error().message;
  net::ReadWork work = work_of(into, reading.remote, kSize);
  work.want_checksum = true;
  ASSERT_EQ(reading.link.pair->post_read(work), net::PostResult::kPosted);
  std::optional<net::Completion> completion = next_of(loop, reading.link);
  ASSERT_TRUE(completion.has_value());
  ASSERT_EQ(completion->status, net::CompletionStatus::kSuccess);
  for (uint64_t i = 0; i < kSize; ++i) {
    ASSERT_EQ(into.data[i], static_cast<uint8_t>(i * 7 + i / 4096)) << i;
  }
  EXPECT_EQ(completion->checksum, *loop.run(plane->checksum(into.region, 0, kSize)));

  source.kill_and_bury();
  // Refused because the end was noticed, or an error because it is now.
  if (reading.link.pair->post_read(work) == net::PostResult::kPosted) {
    completion = next_of(loop, reading.link);
    ASSERT_TRUE(completion.has_value());
    EXPECT_EQ(completion->status, net::CompletionStatus::kRetryExceeded);
  }
  EXPECT_TRUE(destroy_link(loop, reading.link));
  Reading again(loop);
  const Result<Done> gone = connect_reading(loop, *plane, source.endpoint, again);
  ASSERT_FALSE(gone.ok());
  EXPECT_EQ(gone.error().code, ErrorCode::kUnreachable) << gone.error().message;
}

// A reader connects anew for each version; it must not pay for the page tables again.
TEST_P(TwoProcesses, AMappingServesTheNextConnectionAndGoesWithItsProcess) {
  const bool shared = GetParam();
  SourceProcess source(shared);
  EventLoop loop;
  std::unique_ptr<SameHostPlane> plane = make_plane(loop);
  Registered into(loop, *plane, kSize);
  for (int round = 0; round < 3; ++round) {
    Reading reading(loop);
    ASSERT_TRUE(connect_reading(loop, *plane, source.endpoint, reading).ok());
    std::fill(into.data.begin(), into.data.end(), uint8_t{0});
    ASSERT_EQ(reading.link.pair->post_read(work_of(into, reading.remote, kSize)),
              net::PostResult::kPosted);
    const std::optional<net::Completion> completion = next_of(loop, reading.link);
    ASSERT_TRUE(completion.has_value());
    ASSERT_EQ(completion->status, net::CompletionStatus::kSuccess);
    EXPECT_EQ(into.data[4097], static_cast<uint8_t>(4097 * 7 + 1));
    EXPECT_TRUE(destroy_link(loop, reading.link));
    EXPECT_EQ(plane->mapped().size(), shared ? 1u : 0u);
  }
  source.kill_and_bury();
  for (int i = 0; i < 1000 && plane->mapped().size() > 0; ++i) run_for(loop, millis(5));
  EXPECT_EQ(plane->mapped().size(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Memory, TwoProcesses, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Shared" : "Plain"; });

TEST(SameHostPlane, AnotherUserIsRefusedWithTheReason) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  SourceProcess source(false);
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const pid_t pid = fork();
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    if (setgid(65534) != 0 || setuid(65534) != 0) _exit(1);
    EventLoop loop;
    std::unique_ptr<SameHostPlane> plane = make_plane(loop);
    Reading reading(loop);
    const Result<Done> connected = connect_reading(loop, *plane, source.endpoint, reading);
    const std::string text = connected ? "connected" : connected.error().message;
    const bool unreachable = !connected && connected.error().code == ErrorCode::kUnreachable;
    const bool said = write(ends[1], text.data(), text.size()) > 0;
    _exit(said && unreachable ? 0 : 1);
  }
  int status = -1;
  waitpid(pid, &status, 0);
  char text[512] = {};
  EXPECT_GT(recv(ends[0], text, sizeof text - 1, MSG_DONTWAIT), 0);
  EXPECT_EQ(status, 0) << text;
  EXPECT_NE(std::string(text).find("user"), std::string::npos) << text;
  close(ends[0]);
  close(ends[1]);
}

TEST(SameHostPlane, FieldReport12_AReusedPidIsNotMistaken) {
  EventLoop loop;
  std::unique_ptr<SameHostPlane> source = make_plane(loop);
  std::unique_ptr<SameHostPlane> reader = make_plane(loop);
  KeepingAcceptor acceptor;
  SameHostEndpoint endpoint = *SameHostEndpoint::parse(*source->listen(&acceptor));
  endpoint.start_time += 1;  // as if the number had belonged to a process before
  TestLink link(loop);
  const Result<Done> mistaken = connect_link(loop, *reader, endpoint.text(), link);
  ASSERT_FALSE(mistaken.ok());
  EXPECT_EQ(mistaken.error().code, ErrorCode::kUnreachable);
  endpoint.start_time -= 1;
  endpoint.boot = "another-machine";
  const Result<Done> elsewhere = connect_link(loop, *reader, endpoint.text(), link);
  ASSERT_FALSE(elsewhere.ok());
  EXPECT_NE(elsewhere.error().message.find("another machine"), std::string::npos);
}

TEST(SameHostPlane, TheSourceHearsOfItsReadersEnd) {
  EventLoop loop;
  std::unique_ptr<SameHostPlane> source = make_plane(loop);
  std::unique_ptr<SameHostPlane> reader = make_plane(loop);
  KeepingAcceptor acceptor;
  const std::string endpoint = *source->listen(&acceptor);
  TestLink link(loop);
  ASSERT_TRUE(connect_link(loop, *reader, endpoint, link).ok());
  EXPECT_FALSE(acceptor.pairs.back()->closed());
  EXPECT_TRUE(destroy_link(loop, link));
  EXPECT_TRUE(until(loop, [&acceptor] { return acceptor.pairs.back()->closed(); }));
  acceptor.pairs.clear();
}

TEST(SameHostPlane, GarbageOnItsSocketClosesThatConnection) {
  EventLoop loop;
  std::unique_ptr<SameHostPlane> source = make_plane(loop);
  std::unique_ptr<SameHostPlane> reader = make_plane(loop);
  KeepingAcceptor acceptor;
  const std::string text = *source->listen(&acceptor);
  const SameHostEndpoint endpoint = *SameHostEndpoint::parse(text);
  UnixFrame lying;
  lying.length = ~0ull;
  for (int i = 0; i < 100; ++i) {
    const FileDescriptor raw = connect_abstract(endpoint.socket);
    ASSERT_TRUE(static_cast<bool>(raw));
    std::vector<uint8_t> garbage(4096, static_cast<uint8_t>(i));
    if (i % 2 == 0) std::memcpy(garbage.data(), &lying, sizeof lying);
    ASSERT_GT(send(raw.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL), 0);
    const bool closed = until(loop, [&raw] {
      char ignored = 0;
      const ssize_t got = recv(raw.get(), &ignored, 1, MSG_DONTWAIT);
      return got == 0 || (got < 0 && errno == ECONNRESET);
    });
    ASSERT_TRUE(closed);
  }
  EXPECT_TRUE(acceptor.pairs.empty());
  TestLink link(loop);
  EXPECT_TRUE(connect_link(loop, *reader, text, link).ok());
  EXPECT_TRUE(destroy_link(loop, link));
  acceptor.pairs.clear();
}

TEST(SameHostPlane, MemoryThatComesBackAtAnOldAddressIsNotTheOldOne) {
  EventLoop loop;
  SharedArenas arenas;
  std::unique_ptr<SameHostPlane> source = make_plane(loop, &arenas);
  std::unique_ptr<SameHostPlane> reader = make_plane(loop, &arenas);
  KeepingAcceptor acceptor;
  TestLink link(loop);
  ASSERT_TRUE(connect_link(loop, *reader, *source->listen(&acceptor), link).ok());
  Registered into(loop, *reader, 65536);
  for (int round = 1; round < 8; ++round) {
    SharedMemory memory = std::move(*SharedMemory::allocate(arenas, 65536));
    std::memset(memory.data(), round, memory.size());
    net::MemoryRange range;
    range.address = reinterpret_cast<uint64_t>(memory.data());
    range.length = memory.size();
    const net::RegionId region = *loop.run(source->register_memory(range));
    const net::RemoteRegion remote = acceptor.pairs.back()->describe(region);
    if (round % 2 == 0) run_for(loop, millis(5));  // the new arena has arrived, or not yet
    ASSERT_EQ(link.pair->post_read(work_of(into, remote, 65536)), net::PostResult::kPosted);
    const std::optional<net::Completion> completion = next_of(loop, link);
    ASSERT_TRUE(completion.has_value());
    ASSERT_EQ(completion->status, net::CompletionStatus::kSuccess);
    EXPECT_EQ(std::count(into.data.begin(), into.data.end(), static_cast<uint8_t>(round)), 65536);
    loop.run(source->deregister(region));
  }
  EXPECT_TRUE(destroy_link(loop, link));
  acceptor.pairs.clear();
}

TEST(SharedMemory, IsFoundByAddressUntilItIsFreed) {
  SharedArenas arenas;
  Result<SharedMemory> memory = SharedMemory::allocate(arenas, 100'000);
  ASSERT_TRUE(memory.ok());
  const uint64_t address = reinterpret_cast<uint64_t>(memory->data());
  EXPECT_NE(arenas.find(address, 100'000), nullptr);
  EXPECT_NE(arenas.find(address + 99'999, 1), nullptr);
  EXPECT_EQ(arenas.find(address + 99'999, 2), nullptr);
  EXPECT_EQ(arenas.find(address - 1, 1), nullptr);
  EXPECT_EQ(arenas.find(address, ~0ull), nullptr);
  SharedMemory moved = std::move(*memory);
  EXPECT_NE(arenas.find(address, 1), nullptr);
  moved = std::move(*SharedMemory::allocate(arenas, 4096));
  EXPECT_EQ(arenas.find(address, 1), nullptr);
  EXPECT_FALSE(SharedMemory::allocate(arenas, 0).ok());
}

TEST(SharedMemory, FreedPagesGoThoughAPeerMapsThem) {
  SharedArenas arenas;
  std::optional<SharedMemory> memory = std::move(*SharedMemory::allocate(arenas, kSize));
  std::memset(memory->data(), 7, kSize);
  const auto address = reinterpret_cast<uint64_t>(memory->data());
  const FileDescriptor file(dup(arenas.find(address, 1)->file.get()));
  const auto mapped = std::move(*MappedArena::map(address, kSize, FileDescriptor(dup(file.get()))));
  EXPECT_EQ(*mapped->at(address + 5000, 1), 7);
  struct stat status{};
  ASSERT_EQ(fstat(file.get(), &status), 0);
  EXPECT_EQ(status.st_blocks * 512, static_cast<int64_t>(kSize));
  memory.reset();
  ASSERT_EQ(fstat(file.get(), &status), 0);
  EXPECT_EQ(status.st_blocks, 0);
  EXPECT_EQ(*mapped->at(address + 5000, 1), 0);  // and reading it is no fault
}

TEST(SharedMemory, ADescriptorThatCouldShrinkIsNotMapped) {
  FileDescriptor loose(memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(loose.get(), 8192), 0);
  EXPECT_FALSE(MappedArena::map(0x10000, 8192, std::move(loose)).ok());
  SharedArenas arenas;
  const Result<SharedMemory> memory = SharedMemory::allocate(arenas, 8192);
  const std::shared_ptr<const SharedArena> arena =
      arenas.find(reinterpret_cast<uint64_t>(memory->data()), 1);
  EXPECT_FALSE(MappedArena::map(0x10000, 16384, FileDescriptor(dup(arena->file.get()))).ok());
  Result<std::unique_ptr<MappedArena>> mapped =
      MappedArena::map(0x10000, 8192, FileDescriptor(dup(arena->file.get())));
  ASSERT_TRUE(mapped.ok());
  memory->data()[5] = 77;
  EXPECT_EQ(*(*mapped)->at(0x10005, 1), 77);
  EXPECT_EQ((*mapped)->at(0x10000, 8193), nullptr);
  EXPECT_EQ((*mapped)->at(0xffff, 1), nullptr);
}

}  // namespace
}  // namespace weightlane::prod
