// The child: planes that serve two buffers, one plain and one shared, and the sender for plain
// sockets. It lives until its end of the control pipe closes, so it goes with its parent whatever
// happens.
#include "prod/plane_bench.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "flow/signal.h"
#include "prod/checksum.h"
#include "prod/plane_limits.h"
#include "prod/same_host_plane.h"
#include "prod/tcp_plane.h"

namespace weightlane::prod {
namespace {

constexpr Nanos kPatience = seconds(60);
constexpr double kGiB = static_cast<double>(1ull << 30);

struct Case {
  std::string name;
  bool tcp = false;
  bool shared = false;
  bool checksums = false;
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const bool checksums : {false, true}) {
    const std::string suffix = checksums ? "+checksums" : "";
    cases.push_back({"same-host" + suffix, false, false, checksums});
    cases.push_back({"same-host-shared" + suffix, false, true, checksums});
    cases.push_back({"tcp" + suffix, true, false, checksums});
  }
  return cases;
}

struct Unmap {
  uint64_t bytes = 0;
  void operator()(uint8_t* data) const { munmap(data, bytes); }
};
using Buffer = std::unique_ptr<uint8_t, Unmap>;

Buffer allocate(uint64_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return Buffer();
  madvise(data, bytes, MADV_HUGEPAGE);
  return Buffer(static_cast<uint8_t*>(data), Unmap{bytes});
}

void fill(uint8_t* data, uint64_t bytes, uint64_t seed) {
  uint64_t value = seed;
  for (uint64_t at = 0; at + 8 <= bytes; at += 8) {
    value = value * 6364136223846793005ull + 1442695040888963407ull;
    std::memcpy(data + at, &value, 8);
  }
}

// What the child tells its parent first.
struct Greeting {
  char same_host[256] = {};
  char tcp[256] = {};
  uint64_t plain_address = 0;
  uint64_t sums[2] = {};  // of the plain and the shared buffer
  uint16_t plain_port = 0;
  bool ok = false;
};

// Serves the plain buffer to those who say 'p', the shared one to those who say 's'.
class BenchAcceptor final : public net::Acceptor {
 public:
  BenchAcceptor(net::RegionId plain, net::RegionId shared) : plain_(plain), shared_(shared) {}
  net::AcceptDecision on_connect(std::span<const uint8_t> hello,
                                 std::unique_ptr<net::PassiveQueuePair> pair) override {
    const bool shared = !hello.empty() && hello[0] == 's';
    const net::RemoteRegion region = pair->describe(shared ? shared_ : plain_);
    Bytes payload(sizeof region);
    std::memcpy(payload.data(), &region, sizeof region);
    pairs_.push_back(std::move(pair));
    return net::Accept{std::move(payload)};
  }

 private:
  net::RegionId plain_;
  net::RegionId shared_;
  std::vector<std::unique_ptr<net::PassiveQueuePair>> pairs_;
};

net::MemoryRange range_of(const uint8_t* data, uint64_t bytes) {
  net::MemoryRange range;
  range.address = reinterpret_cast<uint64_t>(data);
  range.length = bytes;
  return range;
}

struct Planes {
  static Result<Planes> make(EventLoop& loop, SharedArenas& arenas,
                             const PlaneBenchOptions& options) {
    SameHostOptions same_host;
    same_host.arenas = &arenas;
    if (options.copy_threads != 0) same_host.copy_threads = options.copy_threads;
    Result<std::unique_ptr<SameHostPlane>> plane = SameHostPlane::create(loop, same_host);
    if (!plane) return plane.error();
    TcpOptions tcp;
    tcp.host = "127.0.0.1";
    if (options.tcp_streams != 0) tcp.streams = options.tcp_streams;
    Planes planes;
    planes.same_host = std::move(*plane);
    planes.tcp = std::make_unique<TcpPlane>(loop, tcp);
    return planes;
  }
  net::DataPlane& of(const Case& which) {
    return which.tcp ? static_cast<net::DataPlane&>(*tcp) : *same_host;
  }
  std::unique_ptr<SameHostPlane> same_host;
  std::unique_ptr<TcpPlane> tcp;
};

// ---- the child
// -------------------------------------------------------------------------------------

// Registers with one plane; the acceptor serves there until the process ends.
std::string serve_on(EventLoop& loop, net::DataPlane& plane, net::MemoryRange plain,
                     net::MemoryRange shared) {
  const Result<net::RegionId> first = loop.run(plane.register_memory(plain));
  const Result<net::RegionId> second = loop.run(plane.register_memory(shared));
  if (!first || !second) return "";
  auto* const acceptor = new BenchAcceptor(*first, *second);
  const Result<std::string> endpoint = plane.listen(acceptor);
  return endpoint ? *endpoint : "";
}

// Never returns.
[[noreturn]] void be_source(int control, SharedArenas& arenas, SharedMemory& shared,
                            const PlaneBenchOptions& options) {
  EventLoop loop;
  Buffer plain = allocate(options.bytes);
  Result<Planes> planes = Planes::make(loop, arenas, options);
  Greeting greeting;
  std::unique_ptr<PlainSender> sender;
  if (plain != nullptr && planes) {
    fill(plain.get(), options.bytes, 1);
    fill(shared.data(), options.bytes, 2);
    Result<std::unique_ptr<PlainSender>> started = PlainSender::start(plain.get(), options.bytes);
    if (started) sender = std::move(*started);
    const net::MemoryRange first = range_of(plain.get(), options.bytes);
    const net::MemoryRange second = range_of(shared.data(), options.bytes);
    const std::string same_host = serve_on(loop, *planes->same_host, first, second);
    const std::string tcp = serve_on(loop, *planes->tcp, first, second);
    same_host.copy(greeting.same_host, sizeof greeting.same_host - 1);
    tcp.copy(greeting.tcp, sizeof greeting.tcp - 1);
    greeting.plain_address = first.address;
    greeting.plain_port = sender == nullptr ? uint16_t{0} : sender->port();
    greeting.sums[0] = checksum_of({plain.get(), options.bytes});
    greeting.sums[1] = checksum_of({shared.data(), options.bytes});
    greeting.ok = !same_host.empty() && !tcp.empty() && sender != nullptr;
  }
  if (write(control, &greeting, sizeof greeting) != sizeof greeting || !greeting.ok) _exit(1);
  // Its end tells that the parent is done, or gone.
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
  pid_t pid() const { return pid_; }
  bool hear(Greeting& greeting) const {
    return recv(control_.get(), &greeting, sizeof greeting, MSG_WAITALL) == sizeof greeting &&
           greeting.ok;
  }

 private:
  pid_t pid_;
  FileDescriptor control_;
};

// ---- the parent
// ------------------------------------------------------------------------------------

struct Link {
  explicit Link(flow::Runtime& runtime) : wake(runtime) {}
  flow::Signal wake;
  std::unique_ptr<net::QueuePair> pair;
  net::RemoteRegion remote;
};

flow::Task<Result<Done>> connect_link(EventLoop* loop, net::DataPlane* plane, std::string endpoint,
                                      bool shared, Link* link) {
  const Nanos deadline = loop->runtime().now() + kPatience;
  Bytes hello{static_cast<uint8_t>(shared ? 's' : 'p')};
  Result<net::Connected> connected =
      co_await plane->connect(std::move(endpoint), std::move(hello), &link->wake, deadline);
  if (!connected) co_return connected.error();
  if (connected->payload.size() != sizeof link->remote) {
    co_return Error{ErrorCode::kCorrupt, "the source described no region"};
  }
  std::memcpy(&link->remote, connected->payload.data(), sizeof link->remote);
  link->pair = std::move(connected->pair);
  co_return Done{};
}

// All the bytes once; the seconds that took.
flow::Task<Result<double>> read_all(EventLoop* loop, Link* link, net::RegionId into, bool checksums,
                                    const PlaneBenchOptions* options) {
  const auto begin = std::chrono::steady_clock::now();
  const uint64_t window = std::max<uint64_t>(1, options->window_bytes / options->slice_bytes);
  const uint64_t limit =
      std::min<uint64_t>(window, link->pair->capabilities().max_outstanding_reads);
  uint64_t posted = 0;
  uint64_t in_flight = 0;
  net::ReadWork work;
  work.into = into;
  work.from = link->remote;
  work.want_checksum = checksums;
  while (posted < options->bytes || in_flight > 0) {
    while (posted < options->bytes && in_flight < limit) {
      work.work_id = posted;
      work.into_offset = work.from_offset = posted;
      work.length = std::min(options->slice_bytes, options->bytes - posted);
      if (link->pair->post_read(work) != net::PostResult::kPosted) {
        co_return Error{ErrorCode::kUnreachable, "a READ was refused"};
      }
      posted += work.length;
      ++in_flight;
    }
    const std::optional<net::Completion> completion = link->pair->poll();
    if (!completion) {
      const Nanos deadline = loop->runtime().now() + kPatience;
      const bool woken = co_await link->wake.wait_until(deadline);
      if (!woken) co_return Error{ErrorCode::kTimeout, "no READ completes"};
      continue;
    }
    if (completion->status != net::CompletionStatus::kSuccess) {
      co_return Error{ErrorCode::kUnreachable, completion_status_name(completion->status)};
    }
    --in_flight;
  }
  co_return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// One way to do it with plain code, and how it went.
struct Yardstick {
  std::string name;
  std::function<Result<double>()> run;
  std::vector<double> seconds;
};

std::string shape_text(LimitShape shape) {
  const std::string block = shape.block >= (1u << 20) ? std::to_string(shape.block >> 20) + " MiB"
                                                      : std::to_string(shape.block >> 10) + " KiB";
  return block + ", " + std::to_string(shape.threads) +
         (shape.threads == 1 ? " thread" : " threads");
}

class Bench {
 public:
  Bench(const PlaneBenchOptions& options, const SharedMemory& shared, const Source& source,
        const Greeting& greeting)
      : options_(options), shared_(shared), source_(source), greeting_(greeting) {}

  Result<Done> prepare(SharedArenas& arenas) {
    into_ = allocate(options_.bytes);
    if (into_ == nullptr) return Error{ErrorCode::kResourceExhausted, "no memory for the copy"};
    std::memset(into_.get(), 0, options_.bytes);
    Result<Planes> planes = Planes::make(loop_, arenas, options_);
    if (!planes) return planes.error();
    planes_.emplace(std::move(*planes));
    return Done{};
  }

  Result<PlaneBenchResult> run(const Case& which) {
    net::DataPlane& plane = planes_->of(which);
    const Result<net::RegionId> into =
        loop_.run(plane.register_memory(range_of(into_.get(), options_.bytes)));
    if (!into) return into.error();
    Link link(loop_.runtime());
    const char* endpoint = which.tcp ? greeting_.tcp : greeting_.same_host;
    const Result<Done> connected =
        loop_.run(connect_link(&loop_, &plane, endpoint, which.shared, &link));
    if (!connected) return connected.error();
    std::vector<Yardstick> yardsticks = yardsticks_of(which);
    std::vector<double> ours;
    // The first round warms up, and shows that the right bytes come.
    for (unsigned round = 0; round <= options_.rounds; ++round) {
      if (options_.progress) {
        options_.progress(which.name + ": round " + std::to_string(round) + " of " +
                          std::to_string(options_.rounds));
      }
      const Result<Done> done = measure_round(which, link, *into, round, ours, yardsticks);
      if (!done) return done.error();
    }
    const Result<Done> destroyed = loop_.run(link.pair->destroy(loop_.runtime().now() + kPatience));
    if (!destroyed) return destroyed.error();
    loop_.run(plane.deregister(*into));
    return summary(which, ours, yardsticks);
  }

 private:
  Result<Done> measure_round(const Case& which, Link& link, net::RegionId into, unsigned round,
                             std::vector<double>& ours, std::vector<Yardstick>& yardsticks) {
    if (round == 0) std::memset(into_.get(), 0, options_.bytes);
    const Result<double> seconds =
        loop_.run(read_all(&loop_, &link, into, which.checksums, &options_));
    if (!seconds) return seconds.error();
    if (round > 0) ours.push_back(*seconds);
    const uint64_t sum = checksum_of({into_.get(), options_.bytes});
    if (sum != greeting_.sums[which.shared ? 1 : 0]) {
      return Error{ErrorCode::kCorrupt, which.name + ": other bytes than the source's"};
    }
    for (Yardstick& yardstick : yardsticks) {
      const Result<double> plain = yardstick.run();
      if (!plain) return plain.error();
      if (round > 0) yardstick.seconds.push_back(*plain);
    }
    return Done{};
  }

  std::vector<Yardstick> yardsticks_of(const Case& which) {
    std::vector<Yardstick> result;
    uint8_t* const into = into_.get();
    const uint64_t bytes = options_.bytes;
    for (const unsigned threads : {1u, 2u}) {
      for (const uint64_t block : {uint64_t{256} << 10, uint64_t{1} << 20, uint64_t{4} << 20}) {
        const LimitShape shape{threads, block};
        Yardstick yardstick;
        if (which.tcp) {
          yardstick.name = "plain sockets, " + shape_text(shape);
          yardstick.run = [port = greeting_.plain_port, into, bytes, shape] {
            return limit_sockets(port, into, bytes, shape);
          };
        } else if (which.shared) {
          yardstick.name = "non-temporal copy, " + shape_text(shape);
          yardstick.run = [from = shared_.data(), into, bytes, shape]() -> Result<double> {
            return limit_streaming_copy(from, into, bytes, shape);
          };
        } else {
          yardstick.name = "process_vm_readv, " + shape_text(shape);
          yardstick.run = [pid = source_.pid(), from = greeting_.plain_address, into, bytes,
                           shape] { return limit_vm_read(pid, from, into, bytes, shape); };
        }
        result.push_back(std::move(yardstick));
      }
    }
    return result;
  }

  PlaneBenchResult summary(const Case& which, const std::vector<double>& ours,
                           const std::vector<Yardstick>& yardsticks) const {
    PlaneBenchResult result;
    const double gib = static_cast<double>(options_.bytes) / kGiB;
    result.name = which.name;
    result.median_of = options_.rounds;
    result.gib_per_s = gib / median(ours);
    for (const Yardstick& yardstick : yardsticks) {
      const double rate = gib / median(yardstick.seconds);
      if (rate <= result.limit_gib_per_s) continue;
      result.limit_gib_per_s = rate;
      result.limit = yardstick.name;
    }
    result.ratio = result.gib_per_s / result.limit_gib_per_s;
    return result;
  }

  const PlaneBenchOptions& options_;
  const SharedMemory& shared_;
  const Source& source_;
  const Greeting& greeting_;
  Buffer into_;
  EventLoop loop_;
  std::optional<Planes> planes_;
};

// Beside the plain sockets; not the limit, because it moves other bytes than ours.
std::optional<PlaneBenchResult> beside_iperf3(const PlaneBenchOptions& options,
                                              const PlaneBenchResult& tcp) {
  std::vector<double> rates;
  for (unsigned round = 0; round < options.rounds; ++round) {
    const Result<double> rate = limit_iperf3(2, options.bytes);
    if (!rate) return std::nullopt;
    rates.push_back(*rate);
  }
  PlaneBenchResult result = tcp;
  result.limit = "iperf3, 2 streams";
  result.limit_gib_per_s = median(rates);
  result.ratio = result.gib_per_s / result.limit_gib_per_s;
  return result;
}

Result<std::vector<Case>> chosen_cases(const PlaneBenchOptions& options) {
  const std::vector<Case> all = all_cases();
  if (options.cases.empty()) return all;
  std::vector<Case> chosen;
  for (const std::string& name : options.cases) {
    const auto found =
        std::find_if(all.begin(), all.end(), [&name](const Case& one) { return one.name == name; });
    if (found == all.end()) {
      return Error{ErrorCode::kInvalidArgument,
                   "no case '" + name +
                       "'; there are same-host, same-host-shared, tcp, each also "
                       "with +checksums"};
    }
    chosen.push_back(*found);
  }
  return chosen;
}

}  // namespace

std::vector<std::string> plane_bench_cases() {
  std::vector<std::string> names;
  for (const Case& one : all_cases()) names.push_back(one.name);
  return names;
}

Result<std::vector<PlaneBenchResult>> run_plane_bench(const PlaneBenchOptions& options) {
  const Result<std::vector<Case>> cases = chosen_cases(options);
  if (!cases) return cases.error();
  if (options.bytes < (1u << 20) || options.slice_bytes == 0 || options.rounds == 0) {
    return Error{ErrorCode::kInvalidArgument, "at least 1 MiB, in slices, in one round or more"};
  }
  SharedArenas arenas;
  Result<SharedMemory> shared = SharedMemory::allocate(arenas, options.bytes);
  if (!shared) return shared.error();
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
    be_source(theirs.get(), arenas, *shared, options);
  }
  theirs.reset();
  const Source source(pid, std::move(ours));
  Greeting greeting;
  if (!source.hear(greeting)) return Error{ErrorCode::kUnreachable, "the source did not start"};
  Bench bench(options, *shared, source, greeting);
  const Result<Done> prepared = bench.prepare(arenas);
  if (!prepared) return prepared.error();
  std::vector<PlaneBenchResult> results;
  for (const Case& which : *cases) {
    const Result<PlaneBenchResult> result = bench.run(which);
    if (!result) return result.error();
    results.push_back(*result);
    if (which.name != "tcp") continue;
    const std::optional<PlaneBenchResult> iperf3 = beside_iperf3(options, *result);
    if (iperf3) results.push_back(*iperf3);
  }
  return results;
}

}  // namespace weightlane::prod
