// The child: planes that serve two buffers, one plain and one shared, and the sender for plain
// sockets.
#include "prod/plane_bench.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "prod/bench_parts.h"
#include "prod/checksum.h"
#include "prod/plane_limits.h"
#include "prod/same_host_plane.h"
#include "prod/tcp_plane.h"

namespace weightlane::prod {
namespace {

constexpr uint8_t kPlainRegion = 0;
constexpr uint8_t kSharedRegion = 1;
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

// What the child tells its parent first.
struct Greeting {
  char same_host[256] = {};
  char tcp[256] = {};
  uint64_t plain_address = 0;
  uint64_t sums[2] = {};  // of the plain and the shared buffer
  uint16_t plain_port = 0;
  bool ok = false;
};

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

// ---- the child ----------------------------------------------------------------------------------

// Registers with one plane; the acceptor serves there until the process ends.
std::string serve_on(EventLoop& loop, net::DataPlane& plane, net::MemoryRange plain,
                     net::MemoryRange shared) {
  const Result<net::RegionId> first = loop.run(plane.register_memory(plain));
  const Result<net::RegionId> second = loop.run(plane.register_memory(shared));
  if (!first || !second) return "";
  auto* const acceptor = new BenchAcceptor({*first, *second});
  const Result<std::string> endpoint = plane.listen(acceptor);
  return endpoint ? *endpoint : "";
}

// Never returns.
[[noreturn]] void be_source(int control, SharedArenas& arenas, SharedMemory& shared,
                            const PlaneBenchOptions& options) {
  EventLoop loop;
  BenchMemory plain = allocate_bench_memory(options.bytes);
  Result<Planes> planes = Planes::make(loop, arenas, options);
  Greeting greeting;
  std::unique_ptr<PlainSender> sender;
  if (plain != nullptr && planes) {
    fill_bench_memory(plain.get(), options.bytes, 1);
    fill_bench_memory(shared.data(), options.bytes, 2);
    Result<std::unique_ptr<PlainSender>> started = PlainSender::start(plain.get(), options.bytes);
    if (started) sender = std::move(*started);
    const net::MemoryRange first = memory_range(plain.get(), options.bytes);
    const net::MemoryRange second = memory_range(shared.data(), options.bytes);
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
  serve_until_closed(loop, control);
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
  Bench(const PlaneBenchOptions& options, const SharedMemory& shared, const BenchSource& source,
        const Greeting& greeting)
      : options_(options), shared_(shared), source_(source), greeting_(greeting) {}

  Result<Done> prepare(SharedArenas& arenas) {
    into_ = allocate_bench_memory(options_.bytes);
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
        loop_.run(plane.register_memory(memory_range(into_.get(), options_.bytes)));
    if (!into) return into.error();
    BenchLink link(loop_.runtime());
    const char* endpoint = which.tcp ? greeting_.tcp : greeting_.same_host;
    const Result<Done> connected = loop_.run(connect_bench_link(
        &loop_, &plane, endpoint, which.shared ? kSharedRegion : kPlainRegion, &link));
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
    const Result<Done> destroyed =
        loop_.run(link.pair->destroy(loop_.runtime().now() + kBenchPatience));
    if (!destroyed) return destroyed.error();
    loop_.run(plane.deregister(*into));
    return summary(which, ours, yardsticks);
  }

 private:
  Result<Done> measure_round(const Case& which, BenchLink& link, net::RegionId into, unsigned round,
                             std::vector<double>& ours, std::vector<Yardstick>& yardsticks) {
    if (round == 0) std::memset(into_.get(), 0, options_.bytes);
    const Result<double> seconds =
        loop_.run(read_all(&loop_, &link, transfer_of(which, link, into)));
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

  BenchTransfer transfer_of(const Case& which, const BenchLink& link, net::RegionId into) const {
    const uint64_t window = std::max<uint64_t>(1, options_.window_bytes / options_.slice_bytes);
    const uint64_t depth = link.pair->capabilities().max_outstanding_reads;
    return {into, options_.bytes, options_.slice_bytes, std::min(window, depth), which.checksums};
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
  const BenchSource& source_;
  const Greeting& greeting_;
  BenchMemory into_;
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
  const Result<std::unique_ptr<BenchSource>> source = BenchSource::fork(
      [&arenas, &shared, &options](int control) { be_source(control, arenas, *shared, options); });
  if (!source) return source.error();
  Greeting greeting;
  if (!(*source)->hear(greeting) || !greeting.ok)
    return Error{ErrorCode::kUnreachable, "the source did not start"};
  Bench bench(options, *shared, **source, greeting);
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
