// A hostile source, as its reader over TCP meets it: the answer to the hello, and to every READ.
//
// The script says how many READs there are and how long, then what the source sends. The reader is
// the real one, from connect to destroy, over a Unix socket. Its completions must come in order,
// all of them, and succeed exactly when the model says so; then the destination holds what was
// sent, and not a byte beside a destination may have changed (FIELD 31).
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>

#include "fuzz/target.h"
#include "prod/checksum.h"
#include "prod/tcp_connect.h"
#include "prod/tcp_reader.h"

namespace weightlane::prod {
namespace {

using net::Completion;
using net::CompletionStatus;

constexpr size_t kInputMax = 8'192;  // fits into a socket's buffer: sending never waits
constexpr uint32_t kReadsMax = 6;
constexpr uint64_t kSlot = 1'024;  // bytes for each READ's destination, and what lies beside it
constexpr uint8_t kUntouched = 0xa5;

struct World {
  World() {
    net::MemoryRange range;
    range.address = reinterpret_cast<uint64_t>(memory.get());
    range.length = kReadsMax * kSlot;
    region = shared->registry.add(range).value();
    listening = FileDescriptor(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    // Only the family: the kernel finds a free abstract name.
    sockaddr* const name = reinterpret_cast<sockaddr*>(&address.storage);
    name->sa_family = AF_UNIX;
    WL_ASSERT(bind(listening.get(), name, sizeof name->sa_family) == 0);
    address.length = sizeof address.storage;
    WL_ASSERT(getsockname(listening.get(), name, &address.length) == 0);
    WL_ASSERT(::listen(listening.get(), 8) == 0);
  }
  ~World() {
    shared->sockets.stop_all();
    shared->threads.join_all();
  }

  EventLoop loop;
  std::unique_ptr<uint8_t[]> memory = std::make_unique<uint8_t[]>(kReadsMax * kSlot);
  std::shared_ptr<TcpShared> shared = std::make_shared<TcpShared>(loop);
  net::RegionId region;
  FileDescriptor listening;
  TcpAddress address;
};

struct Wanted {
  uint64_t length = 0;
  bool checksum = false;
};
struct Input {
  std::vector<Wanted> reads;
  std::span<const uint8_t> sent;  // by the source
};
Input read_input(const uint8_t* data, size_t size) {
  fuzz::Script script(data, std::min(size, kInputMax));
  Input input;
  input.reads.resize(1 + script.pick(kReadsMax));
  for (Wanted& read : input.reads) {
    const uint16_t word = script.u16();
    read.length = 1 + word % (kSlot - 1);
    read.checksum = word >= 0x8000;
  }
  input.sent = script.rest();
  return input;
}

// Bytes of the answer to the hello, or none when it is not one that connects.
std::optional<size_t> expect_welcome(std::span<const uint8_t> sent) {
  TcpReply reply;
  if (sent.size() < sizeof reply) return std::nullopt;
  std::memcpy(&reply, sent.data(), sizeof reply);
  if (reply.magic != kTcpMagic || reply.verdict != TcpVerdict::kAccepted) return std::nullopt;
  if (reply.length > sent.size() - sizeof reply) return std::nullopt;
  return sizeof reply + reply.length;
}

// The bytes each READ must have got; it ends at the first that fails.
std::vector<std::span<const uint8_t>> expect_reads(const Input& input,
                                                   std::span<const uint8_t> sent) {
  std::vector<std::span<const uint8_t>> bodies;
  for (const Wanted& read : input.reads) {
    TcpResponse response;
    if (sent.size() < sizeof response) break;
    std::memcpy(&response, sent.data(), sizeof response);
    sent = sent.subspan(sizeof response);
    const bool fits = response.magic == kTcpResponseMagic && response.status == 0 &&
                      response.sequence == bodies.size() && response.length == read.length;
    if (!fits || sent.size() < read.length) break;
    bodies.push_back(sent.first(read.length));
    sent = sent.subspan(read.length);
  }
  return bodies;
}

void say(const FileDescriptor& fd, std::span<const uint8_t> bytes) {
  // The reader may have hung up.
  fuzz::uninterrupted([&] { return send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL); });
}

// The source's side of connecting: `hello` is what it answers.
Result<TcpConnected> connect_to(World& world, FileDescriptor& peer, std::span<const uint8_t> hello,
                                bool is_all) {
  const SteadyTime deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  auto attempt = std::make_shared<TcpConnectAttempt>(std::vector<TcpAddress>{world.address}, 1,
                                                     Bytes{1, 2, 3}, 1, deadline);
  Result<TcpConnected> connected = Error{ErrorCode::kUnreachable, ""};
  std::thread reader([&] { connected = attempt->run(world.shared->sockets); });
  peer = FileDescriptor(fuzz::uninterrupted(
      [&] { return accept4(world.listening.get(), nullptr, nullptr, SOCK_CLOEXEC); }));
  WL_ASSERT(static_cast<bool>(peer));
  say(peer, hello);
  if (is_all) shutdown(peer.get(), SHUT_WR);
  reader.join();
  return connected;
}

flow::Task<void> gather(ReadQueue* queue, flow::Signal* wake, std::vector<Completion>* into,
                        size_t count) {
  for (;;) {
    while (const std::optional<Completion> completion = queue->poll()) {
      into->push_back(*completion);
    }
    if (into->size() >= count) co_return;
    co_await wake->wait();
  }
}

void check_memory(const World& world, const Input& input,
                  const std::vector<std::span<const uint8_t>>& bodies) {
  for (size_t i = 0; i < input.reads.size(); ++i) {
    const std::span<const uint8_t> slot(world.memory.get() + i * kSlot, kSlot);
    if (i < bodies.size()) WL_ASSERT(std::ranges::equal(slot.first(bodies[i].size()), bodies[i]));
    const std::span<const uint8_t> beside = slot.subspan(input.reads[i].length);
    WL_ASSERT(std::ranges::all_of(beside, [](uint8_t byte) { return byte == kUntouched; }));
  }
}

void read_all(World& world, const Input& input, std::span<const uint8_t> sent,
              TcpConnected connected, const FileDescriptor& peer) {
  flow::Signal wake(world.loop.runtime());
  const net::Capabilities capabilities{true, kSlot, kReadsMax};
  auto reader =
      std::make_shared<TcpReader>(world.shared, &wake, capabilities, std::move(connected.sockets));
  WL_ASSERT(reader->start().ok());
  for (size_t i = 0; i < input.reads.size(); ++i) {
    net::ReadWork work;
    work.work_id = 100 + i;
    work.into = world.region;
    work.into_offset = i * kSlot;
    work.length = input.reads[i].length;
    work.want_checksum = input.reads[i].checksum;
    WL_ASSERT(reader->post(work) == net::PostResult::kPosted);
  }
  say(peer, sent);
  shutdown(peer.get(), SHUT_WR);
  std::vector<Completion> completions;
  world.loop.run(gather(&reader->queue(), &wake, &completions, input.reads.size()));
  const auto bodies = expect_reads(input, sent);
  for (size_t i = 0; i < completions.size(); ++i) {
    WL_ASSERT(completions[i].work_id == 100 + i);
    WL_ASSERT((completions[i].status == CompletionStatus::kSuccess) == (i < bodies.size()));
    // A peer can't make the reader believe that it is itself at fault.
    const net::ErrorClass blamed = net::classify(completions[i].status);
    WL_ASSERT(blamed != net::ErrorClass::kLocal && blamed != net::ErrorClass::kDevice);
    if (i >= bodies.size() || !input.reads[i].checksum) continue;
    Checksum sum;
    sum.add(bodies[i]);
    WL_ASSERT(completions[i].checksum == sum.value());
  }
  const Nanos deadline = world.loop.runtime().now() + seconds(5);
  WL_ASSERT(world.loop.run(TcpReader::destroy(reader, deadline)).ok());
  check_memory(world, input, bodies);
}

}  // namespace
}  // namespace weightlane::prod

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weightlane;
  using namespace weightlane::prod;
  static World world;
  const Input input = read_input(data, size);
  std::memset(world.memory.get(), kUntouched, kReadsMax * kSlot);
  const std::optional<size_t> welcome = expect_welcome(input.sent);
  FileDescriptor peer;
  Result<TcpConnected> connected = connect_to(
      world, peer, input.sent.first(welcome.value_or(input.sent.size())), !welcome.has_value());
  WL_ASSERT(connected.ok() == welcome.has_value());
  if (connected.ok()) {
    WL_ASSERT(std::ranges::equal(connected->payload,
                                 input.sent.subspan(sizeof(TcpReply), connected->payload.size())));
    read_all(world, input, input.sent.subspan(*welcome), std::move(*connected), peer);
  }
  // No thread of this input is still at its end when the fuzzer looks for leaks.
  connected = Error{ErrorCode::kClosed, ""};
  world.shared->threads.join_all();
  return 0;
}
