// Goal: what the verbs plane does when the other *process*, its device or the path goes; the
// conformance suite, where both ends live in one process, cannot show that. And that the plane's
// own port and descriptors survive strangers. Method: runs in the Soft-RoCE guest with two devices
// on a veth. The source is a process of its own (verbs_peer.h), killed, stopped, fenced, or cut off
// by rxe-link, which loses the packets of the data plane and leaves TCP alone: that goes over the
// loopback device. Times are compared with 4.096 us x 2^16 x 4 = 1.07 s, what timeout 16 and 3
// retries come to.
#include "prod/verbs_plane.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "flow/combinators.h"
#include "tests/rxe/verbs_peer.h"

namespace weightlane::rxe {
namespace {

constexpr const char* kSourceDevice = "rxe0";
constexpr const char* kReaderDevice = "rxe1";
constexpr uint64_t kBytes = 16 << 20;
constexpr uint64_t kPiece = 512 << 10;
constexpr Nanos kNominal = nanos(4096LL * (1 << 16) * 4);

class VerbsProcess : public ::testing::Test {
 protected:
  VerbsProcess() {
    prod::VerbsOptions options;
    options.device = kReaderDevice;
    Result<std::unique_ptr<prod::VerbsPlane>> opened = prod::VerbsPlane::open(loop_, options);
    WL_ASSERT(opened.ok());
    plane_ = std::move(*opened);
    memory_ = static_cast<uint8_t*>(
        mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    region_ = *loop_.run(plane_->register_memory(
        {.address = reinterpret_cast<uint64_t>(memory_), .length = kBytes}));
    start_peer();
  }
  ~VerbsProcess() override {
    if (reading_.pair) destroy();
    loop_.run(plane_->deregister(region_));
    munmap(memory_, kBytes);
  }

  void start_peer() {
    Result<Peer> started = Peer::start(kSourceDevice, kBytes);
    if (!started.ok()) std::fprintf(stderr, "the peer said: %s\n", started.error().message.c_str());
    WL_ASSERT(started.ok());
    peer_ = std::make_unique<Peer>(std::move(*started));
  }
  Nanos now() { return loop_.runtime().now(); }
  Nanos in(Nanos span) { return now() + span; }
  void attach() {
    Result<Reading> reading =
        loop_.run(connect(plane_.get(), peer_->endpoint(), &wake_, in(seconds(5))));
    ASSERT_TRUE(reading.ok()) << reading.error().message;
    reading_ = std::move(*reading);
  }
  net::PostResult post(uint64_t piece) {
    net::ReadWork work;
    work.work_id = piece;
    work.into = region_;
    work.into_offset = work.from_offset = piece * kPiece;
    work.from = reading_.region;
    work.length = kPiece;
    return reading_.pair->post_read(work);
  }
  net::Completion await_completion() {
    std::optional<net::Completion> completion =
        loop_.run(next(reading_.pair.get(), &wake_, in(seconds(10))));
    EXPECT_TRUE(completion.has_value()) << "no completion in 10 s";
    return completion.value_or(
        net::Completion{.work_id = 0, .status = net::CompletionStatus::kGeneral, .checksum = 0});
  }
  net::CompletionStatus read(uint64_t piece) {
    EXPECT_EQ(post(piece), net::PostResult::kPosted);
    return await_completion().status;
  }
  bool right(uint64_t piece) const {
    for (uint64_t i = piece * kPiece; i < (piece + 1) * kPiece; ++i) {
      if (memory_[i] != pattern(i)) return false;
    }
    return true;
  }
  void destroy() {
    Result<Done> destroyed = loop_.run(reading_.pair->destroy(in(seconds(5))));
    EXPECT_TRUE(destroyed.ok()) << destroyed.error().message;
    reading_.pair.reset();
  }

  prod::EventLoop loop_;
  std::unique_ptr<prod::VerbsPlane> plane_;
  flow::Signal wake_{loop_.runtime()};
  uint8_t* memory_ = nullptr;
  net::RegionId region_;
  std::unique_ptr<Peer> peer_;
  Reading reading_;
};

TEST_F(VerbsProcess, ReadsEveryByte) {
  attach();
  EXPECT_TRUE(reading_.pair->capabilities().fences);
  const uint64_t pieces = kBytes / kPiece;
  for (uint64_t piece = 0; piece < pieces; ++piece)
    ASSERT_EQ(post(piece), net::PostResult::kPosted);
  for (uint64_t piece = 0; piece < pieces; ++piece) {
    const net::Completion completion = await_completion();
    EXPECT_EQ(completion.work_id, piece);
    EXPECT_EQ(completion.status, net::CompletionStatus::kSuccess);
    EXPECT_TRUE(right(piece));
  }
}

// F10: memory, queue pair and process gone at once. TCP's end tells us before the retries have run
// out.
TEST_F(VerbsProcess, KilledSourceEndsWhatIsInFlight) {
  attach();
  ASSERT_EQ(read(0), net::CompletionStatus::kSuccess);
  peer_->stop();
  const Nanos start = now();
  for (uint64_t piece = 1; piece < 5; ++piece) post(piece);
  if (post(5) == net::PostResult::kPosted) {
    const net::Completion first = await_completion();
    EXPECT_EQ(net::classify(first.status), net::ErrorClass::kPath)
        << net::completion_status_name(first.status);
    EXPECT_EQ(await_completion().status, net::CompletionStatus::kFlushed);
  }
  EXPECT_LT(now() - start, kNominal * 2);
  EXPECT_EQ(post(6), net::PostResult::kBroken);
  EXPECT_TRUE(right(0));
}

// F12: one-sided means that a stopped process still serves; but nobody answers a connect.
TEST_F(VerbsProcess, StoppedSourceServesReadsAndAcceptsNobody) {
  attach();
  peer_->signal(SIGSTOP);
  EXPECT_EQ(read(3), net::CompletionStatus::kSuccess);
  EXPECT_TRUE(right(3));
  const Nanos start = now();
  flow::Signal wake(loop_.runtime());
  Result<Reading> second =
      loop_.run(connect(plane_.get(), peer_->endpoint(), &wake, in(millis(500))));
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, ErrorCode::kUnreachable);
  EXPECT_NE(second.error().message.find(peer_->endpoint()), std::string::npos)
      << second.error().message;
  EXPECT_LT(now() - start, millis(900));
  peer_->signal(SIGCONT);
}

// The fence, and R5: when destroy() has returned, nothing lands any more.
TEST_F(VerbsProcess, FenceEndsReadsAndNothingLandsAfterDestroy) {
  attach();
  const uint64_t pieces = kBytes / kPiece;
  for (uint64_t piece = 0; piece < pieces; ++piece)
    ASSERT_EQ(post(piece), net::PostResult::kPosted);
  EXPECT_EQ(peer_->order(Peer::kFence), "0");
  // What had been carried out before it may still succeed; what is posted now cannot.
  uint64_t good = 0;
  net::CompletionStatus status = net::CompletionStatus::kSuccess;
  uint64_t posted = pieces;
  if (post(0) == net::PostResult::kPosted) ++posted;
  while (good < posted) {
    status = await_completion().status;
    if (status != net::CompletionStatus::kSuccess) break;
    EXPECT_TRUE(right(good));
    ++good;
  }
  EXPECT_LE(good, pieces);
  if (good < posted) {
    EXPECT_EQ(net::classify(status), net::ErrorClass::kPath) << net::completion_status_name(status);
    for (uint64_t i = good + 1; i < posted; ++i) {
      EXPECT_EQ(await_completion().status, net::CompletionStatus::kFlushed);
    }
  }
  EXPECT_EQ(post(0), net::PostResult::kBroken);
  destroy();
  std::fill(memory_, memory_ + kBytes, uint8_t{0x5a});
  attach();  // as good a wait as any: it takes a round trip on both planes
  EXPECT_EQ(read(0), net::CompletionStatus::kSuccess);
  for (uint64_t i = kPiece; i < kBytes; ++i)
    ASSERT_EQ(memory_[i], 0x5a) << "landed after destroy, at " << i;
}

// F16. In the middle of an answer rxe's refusal may be lost: then the retries run out.
TEST_F(VerbsProcess, DeregisteredMemoryIsRefused) {
  attach();
  ASSERT_EQ(read(0), net::CompletionStatus::kSuccess);
  peer_->order(Peer::kDeregister);
  const net::CompletionStatus status = read(1);
  EXPECT_EQ(status, net::CompletionStatus::kRemoteAccess) << net::completion_status_name(status);
  EXPECT_EQ(post(2), net::PostResult::kBroken);
}

TEST_F(VerbsProcess, SourceLearnsThatTheReaderLeft) {
  attach();
  ASSERT_EQ(read(0), net::CompletionStatus::kSuccess);
  EXPECT_EQ(peer_->order(Peer::kClosed), "0");
  destroy();
  const Nanos limit = in(seconds(5));
  std::string closed = "0";
  while (closed == "0" && now() < limit) closed = peer_->order(Peer::kClosed);
  EXPECT_EQ(closed, "1");
}

// F4 and F6: the data plane is dead, the control plane is not. Only the retries tell; afterwards a
// new queue pair works.
TEST_F(VerbsProcess, CutLinkShowsInTimeAndANewPairHealsIt) {
  attach();
  ASSERT_EQ(read(0), net::CompletionStatus::kSuccess);
  ASSERT_EQ(std::system("rxe-link cut"), 0);
  const Nanos start = now();
  const net::CompletionStatus status = read(1);
  const Nanos took = now() - start;
  EXPECT_EQ(status, net::CompletionStatus::kRetryExceeded) << net::completion_status_name(status);
  EXPECT_GT(took, kNominal / 2);
  EXPECT_LT(took, kNominal * 2);
  destroy();
  ASSERT_EQ(std::system("rxe-link heal"), 0);
  attach();
  EXPECT_EQ(read(1), net::CompletionStatus::kSuccess);
  EXPECT_TRUE(right(1));
}

// A queue pair destroyed while its READs hang in a dead path gives the memory back at once, not
// after the retries.
TEST_F(VerbsProcess, DestroyOnADeadPathDoesNotWaitForRetries) {
  attach();
  ASSERT_EQ(read(0), net::CompletionStatus::kSuccess);
  ASSERT_EQ(std::system("rxe-link cut"), 0);
  for (uint64_t piece = 1; piece < 9; ++piece) ASSERT_EQ(post(piece), net::PostResult::kPosted);
  const Nanos start = now();
  destroy();
  EXPECT_LT(now() - start, kNominal / 2);
  ASSERT_EQ(std::system("rxe-link heal"), 0);
}

TEST_F(VerbsProcess, GarbageOnThePortClosesThatConnectionOnly) {
  const prod::VerbsEndpoint endpoint = *prod::VerbsEndpoint::parse(peer_->endpoint());
  const prod::SocketAddress address = *prod::SocketAddress::parse(endpoint.host, endpoint.port);
  const std::vector<Bytes> strangers = {
      Bytes(100, 'x'),                        // a length of 2 GB
      Bytes{4, 0, 0, 0, 'W', 'V', 'Q', '1'},  // the magic and nothing else
      Bytes{0, 0, 0, 0},                      // nothing at all
      prod::encode(
          prod::ConnectRequest{1, {}, {.mtu = 9, .reads_at_once = 1, .max_message = 1}, {}}),
  };
  for (const Bytes& bytes : strangers) {
    const int fd = ::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0);
    ASSERT_EQ(::connect(fd, address.get(), address.length), 0);
    ASSERT_EQ(::write(fd, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    char answer = 0;
    EXPECT_LE(::read(fd, &answer, 1), 0) << "no word, only the end";
    ::close(fd);
  }
  attach();
  EXPECT_EQ(read(0), net::CompletionStatus::kSuccess);
}

// Descriptors and queue pairs come back: F24, Mooncake #3596.
TEST_F(VerbsProcess, ConnectionsLeaveNothingBehind) {
  const auto descriptors = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                         std::filesystem::directory_iterator());
  };
  attach();
  destroy();
  const auto before = descriptors();
  for (int i = 0; i < 40; ++i) {
    attach();
    ASSERT_EQ(read(0), net::CompletionStatus::kSuccess);
    destroy();
  }
  EXPECT_EQ(descriptors(), before);
}

TEST_F(VerbsProcess, MessagesOverTheLimitOfThePortAreRefusedHere) {
  attach();
  const uint64_t limit = reading_.pair->capabilities().max_read_bytes;
  EXPECT_EQ(limit, 8u << 20);  // rxe's max_msg_sz, which it does not enforce
  net::ReadWork work;
  work.into = region_;
  work.from = reading_.region;
  work.length = limit + 1;
  EXPECT_EQ(reading_.pair->post_read(work), net::PostResult::kPosted);
  EXPECT_EQ(await_completion().status, net::CompletionStatus::kLocalLength);
  EXPECT_EQ(post(0), net::PostResult::kBroken);
}

TEST(VerbsOpen, NamesTheDeviceThatIsNotThere) {
  prod::EventLoop loop;
  prod::VerbsOptions options;
  options.device = "mlx5_77";
  Result<std::unique_ptr<prod::VerbsPlane>> plane = prod::VerbsPlane::open(loop, options);
  ASSERT_FALSE(plane.ok());
  EXPECT_NE(plane.error().message.find("mlx5_77"), std::string::npos);
  options.device.clear();
  options.retries = 7;
  EXPECT_EQ(prod::VerbsPlane::open(loop, options).error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace weightlane::rxe

int main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[1]) == "--peer")
    return weightlane::rxe::run_peer(argv[2], std::strtoull(argv[3], nullptr, 10));
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
