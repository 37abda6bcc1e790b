// The child lives until its end of the control pipe closes, so it goes with its parent whatever
// happens.
#include "prod/verbs_bench.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "prod/checksum.h"
#include "prod/file_descriptor.h"
#include "prod/verbs_plane.h"

namespace weightlane::prod {
namespace {

constexpr Nanos kPatience = seconds(60);

struct Shape {
  uint64_t size = 0;   // bytes in a READ
  uint64_t depth = 0;  // READs posted at once
};
constexpr Shape kShapes[] = {{64 << 10, 16}, {1 << 20, 16}, {4 << 20, 8}};

std::string show(const Shape& shape) {
  const bool small = shape.size < (1 << 20);
  return std::to_string(shape.size >> (small ? 10 : 20)) + (small ? " KiB x " : " MiB x ") +
         std::to_string(shape.depth);
}

struct Unmap {
  uint64_t bytes = 0;
  void operator()(uint8_t* data) const { munmap(data, bytes); }
};
using Buffer = std::unique_ptr<uint8_t, Unmap>;

Buffer allocate(uint64_t bytes) {
  void* const data =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return data == MAP_FAILED ? Buffer() : Buffer(static_cast<uint8_t*>(data), Unmap{bytes});
}

net::MemoryRange range_of(const Buffer& buffer, uint64_t bytes) {
  net::MemoryRange range;
  range.address = reinterpret_cast<uint64_t>(buffer.get());
  range.length = bytes;
  return range;
}

// What the child tells its parent first.
struct Greeting {
  char endpoint[256] = {};
  char error[256] = {};
  uint64_t sum = 0;
};

// Everybody gets the one region.
class BenchAcceptor final : public net::Acceptor {
 public:
  explicit BenchAcceptor(net::RegionId region) : region_(region) {}
  net::AcceptDecision on_connect(std::span<const uint8_t>,
                                 std::unique_ptr<net::PassiveQueuePair> pair) override {
    const net::RemoteRegion region = pair->describe(region_);
    Bytes payload(sizeof region);
    std::memcpy(payload.data(), &region, sizeof region);
    pairs_.push_back(std::move(pair));
    return net::Accept{std::move(payload)};
  }

 private:
  net::RegionId region_;
  std::vector<std::unique_ptr<net::PassiveQueuePair>> pairs_;
};

Result<std::string> serve(EventLoop& loop, VerbsPlane& plane,
                          std::optional<BenchAcceptor>& acceptor, net::MemoryRange range) {
  Result<net::RegionId> region = loop.run(plane.register_memory(range));
  if (!region.ok()) return region.error();
  acceptor.emplace(*region);
  return plane.listen(&*acceptor);
}

[[noreturn]] void be_source(int control, uint64_t bytes) {
  EventLoop loop;
  Greeting greeting;
  Buffer memory = allocate(bytes);
  std::optional<BenchAcceptor> acceptor;
  Result<std::unique_ptr<VerbsPlane>> plane = VerbsPlane::open(loop, VerbsOptions{});
  Result<std::string> endpoint = Error{ErrorCode::kResourceExhausted, "no memory for the source"};
  if (!plane.ok()) {
    endpoint = plane.error();
  } else if (memory != nullptr) {
    uint64_t value = 1;
    for (uint64_t at = 0; at + 8 <= bytes; at += 8) {
      value = value * 6364136223846793005ull + 1442695040888963407ull;
      std::memcpy(memory.get() + at, &value, 8);
    }
    greeting.sum = checksum_of({memory.get(), bytes});
    endpoint = serve(loop, **plane, acceptor, range_of(memory, bytes));
  }
  if (endpoint.ok()) {
    endpoint->copy(greeting.endpoint, sizeof greeting.endpoint - 1);
  } else {
    endpoint.error().message.copy(greeting.error, sizeof greeting.error - 1);
  }
  if (write(control, &greeting, sizeof greeting) != sizeof greeting || !endpoint.ok()) _exit(1);
  const std::unique_ptr<FdWatch> watch = loop.watch(control, [&loop, control](FdReady now) {
    char ignored = 0;
    if (now.readable && recv(control, &ignored, 1, MSG_DONTWAIT) == 0) loop.stop();
  });
  loop.run();
  _exit(0);
}

class Source {
 public:
  Source(pid_t pid, FileDescriptor control) : pid_(pid), control_(std::move(control)) {}
  ~Source() {
    control_.reset();
    waitpid(pid_, nullptr, 0);
  }
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;
  bool hear(Greeting& greeting) const {
    return recv(control_.get(), &greeting, sizeof greeting, MSG_WAITALL) == sizeof greeting;
  }

 private:
  pid_t pid_;
  FileDescriptor control_;
};

// ---- the reader ---------------------------------------------------------------------------------

struct Reading {
  net::QueuePair* pair = nullptr;
  flow::Signal* wake = nullptr;
  net::RegionId into;
  net::RemoteRegion from;
  uint64_t bytes = 0;
  Shape shape;
};

// All the bytes once; the seconds that took.
flow::Task<Result<double>> read_all(EventLoop* loop, Reading reading) {
  const Nanos begin = loop->runtime().now();
  uint64_t posted = 0;
  uint64_t in_flight = 0;
  net::ReadWork work;
  work.into = reading.into;
  work.from = reading.from;
  while (posted < reading.bytes || in_flight > 0) {
    while (posted < reading.bytes && in_flight < reading.shape.depth) {
      work.work_id = posted;
      work.into_offset = work.from_offset = posted;
      work.length = std::min(reading.shape.size, reading.bytes - posted);
      if (reading.pair->post_read(work) != net::PostResult::kPosted) {
        co_return Error{ErrorCode::kUnreachable, "a READ was refused"};
      }
      posted += work.length;
      ++in_flight;
    }
    const std::optional<net::Completion> completion = reading.pair->poll();
    if (!completion.has_value()) {
      const Nanos deadline = loop->runtime().now() + kPatience;
      const bool woken = co_await reading.wake->wait_until(deadline);
      if (!woken) co_return Error{ErrorCode::kTimeout, "no READ completes"};
      continue;
    }
    if (completion->status != net::CompletionStatus::kSuccess) {
      co_return Error{ErrorCode::kUnreachable, net::completion_status_name(completion->status)};
    }
    --in_flight;
  }
  const Nanos end = loop->runtime().now();
  co_return to_seconds(end - begin);
}

// GiB/s of ib_read_bw with completions by event. It refuses to report when its measurement of the
// clock is disturbed, so it is asked a few times.
Result<double> ib_read_bw(const VerbsDevice& device, uint64_t bytes, Shape shape) {
  const uint64_t count = std::max<uint64_t>({bytes / shape.size, shape.depth, 5});
  const std::string one = "timeout 120 ib_read_bw -e -F -p $port -d " + device.name() + " -s " +
                          std::to_string(shape.size) + " -t " + std::to_string(shape.depth) +
                          " -o 16 -n " + std::to_string(count);
  const std::string command =
      "for try in $(seq 15); do port=$((20000 + ($$ + try * 131) % 10000)); " + one +
      " >/dev/null 2>&1 & server=$!; for wait in 1 2 3 4 5 6 7 8 9 10; do sleep 0.2; out=$(" + one +
      " " + device.ip_address() +
      " 2>/dev/null); case $out in *MsgRate*) break;; esac; kill -0 $server 2>/dev/null || break; "
      "done; "
      "kill $server 2>/dev/null; wait $server 2>/dev/null; "
      "rate=$(echo \"$out\" | awk '$1 == \"" +
      std::to_string(shape.size) +
      "\" { print $4 }'); "
      "if [ -n \"$rate\" ]; then echo $rate; break; fi; done";
  FILE* const pipe = popen(command.c_str(), "r");
  double rate = 0;
  const bool heard = pipe != nullptr && std::fscanf(pipe, "%lf", &rate) == 1;
  if (pipe != nullptr) pclose(pipe);
  if (!heard || rate <= 0) {
    return Error{ErrorCode::kUnreachable,
                 "ib_read_bw (package perftest) did not report on " + device.name()};
  }
  return rate / 1024;  // from MiB/s
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class Bench {
 public:
  Bench(const PlaneBenchOptions& options, const Greeting& greeting)
      : options_(options), greeting_(greeting) {}

  Result<Done> prepare() {
    Result<std::unique_ptr<VerbsPlane>> plane = VerbsPlane::open(loop_, VerbsOptions{});
    if (!plane.ok()) return plane.error();
    plane_ = std::move(*plane);
    memory_ = allocate(options_.bytes);
    if (memory_ == nullptr) return Error{ErrorCode::kResourceExhausted, "no memory for the copy"};
    Result<net::RegionId> into =
        loop_.run(plane_->register_memory(range_of(memory_, options_.bytes)));
    if (!into.ok()) return into.error();
    into_ = *into;
    return Done{};
  }

  Result<PlaneBenchResult> run(Shape shape) {
    flow::Signal wake(loop_.runtime());
    Result<net::Connected> connected = loop_.run(
        plane_->connect(greeting_.endpoint, Bytes(), &wake, loop_.runtime().now() + kPatience));
    if (!connected.ok()) return connected.error();
    Reading reading{connected->pair.get(), &wake, into_, {}, options_.bytes, shape};
    if (connected->payload.size() != sizeof reading.from)
      return Error{ErrorCode::kCorrupt, "the source said something else"};
    std::memcpy(&reading.from, connected->payload.data(), sizeof reading.from);
    Result<PlaneBenchResult> result = rounds(reading);
    Result<Done> destroyed = loop_.run(connected->pair->destroy(loop_.runtime().now() + kPatience));
    if (!destroyed.ok()) return destroyed.error();
    return result;
  }

 private:
  Result<PlaneBenchResult> rounds(Reading reading) {
    std::vector<double> ours;
    std::vector<double> limit;
    for (unsigned round = 1; round <= options_.rounds; ++round) {
      if (options_.progress) {
        options_.progress("verbs, " + show(reading.shape) + ": round " + std::to_string(round) +
                          " of " + std::to_string(options_.rounds));
      }
      Result<double> seconds = loop_.run(read_all(&loop_, reading));
      if (!seconds.ok()) return seconds.error();
      if (checksum_of({memory_.get(), options_.bytes}) != greeting_.sum) {
        return Error{ErrorCode::kCorrupt, "verbs: other bytes than the source's"};
      }
      std::memset(memory_.get(), 0, options_.bytes);
      ours.push_back(static_cast<double>(options_.bytes) / *seconds / (1ull << 30));
      Result<double> plain = ib_read_bw(plane_->device(), options_.bytes, reading.shape);
      if (!plain.ok()) return plain.error();
      limit.push_back(*plain);
    }
    PlaneBenchResult result;
    result.name = "verbs, " + show(reading.shape);
    result.gib_per_s = median(ours);
    result.limit = "ib_read_bw -e, " + show(reading.shape);
    result.limit_gib_per_s = median(limit);
    result.ratio = result.gib_per_s / result.limit_gib_per_s;
    result.median_of = options_.rounds;
    return result;
  }

  const PlaneBenchOptions& options_;
  const Greeting& greeting_;
  Buffer memory_;
  net::RegionId into_;
  EventLoop loop_;
  std::unique_ptr<VerbsPlane> plane_;
};

}  // namespace

Result<std::vector<PlaneBenchResult>> run_verbs_bench(const PlaneBenchOptions& options) {
  if (options.bytes < (1u << 20) || options.rounds == 0) {
    return Error{ErrorCode::kInvalidArgument, "at least 1 MiB, in one round or more"};
  }
  int ends[2] = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return Error{ErrorCode::kResourceExhausted, "no socket pair"};
  }
  FileDescriptor ours(ends[0]);
  FileDescriptor theirs(ends[1]);
  const pid_t pid = fork();
  if (pid < 0) return Error{ErrorCode::kResourceExhausted, "no process for the source"};
  if (pid == 0) {
    ours.reset();
    be_source(theirs.get(), options.bytes);
  }
  theirs.reset();
  const Source source(pid, std::move(ours));
  Greeting greeting;
  if (!source.hear(greeting)) return Error{ErrorCode::kUnreachable, "the source did not start"};
  if (greeting.endpoint[0] == 0) return Error{ErrorCode::kUnreachable, greeting.error};
  Bench bench(options, greeting);
  Result<Done> prepared = bench.prepare();
  if (!prepared.ok()) return prepared.error();
  std::vector<PlaneBenchResult> results;
  for (const Shape& shape : kShapes) {
    Result<PlaneBenchResult> result = bench.run(shape);
    if (!result.ok()) return result.error();
    results.push_back(*result);
  }
  return results;
}

}  // namespace weightlane::prod
