// The plane's turn and ib_read_bw's alternate, so that what else the machine does meets both.
#include "prod/verbs_bench.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "prod/bench_parts.h"
#include "prod/checksum.h"
#include "prod/verbs_plane.h"

namespace weightlane::prod {
namespace {

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

// What the child tells its parent first.
struct Greeting {
  char endpoint[256] = {};
  char error[256] = {};
  uint64_t sum = 0;
};

Result<std::string> serve(EventLoop& loop, VerbsPlane& plane,
                          std::optional<BenchAcceptor>& acceptor, net::MemoryRange range) {
  Result<net::RegionId> region = loop.run(plane.register_memory(range));
  if (!region.ok()) return region.error();
  acceptor.emplace(std::vector{*region});
  return plane.listen(&*acceptor);
}

[[noreturn]] void be_source(int control, uint64_t bytes) {
  EventLoop loop;
  Greeting greeting;
  BenchMemory memory = allocate_bench_memory(bytes);
  std::optional<BenchAcceptor> acceptor;
  Result<std::unique_ptr<VerbsPlane>> plane = VerbsPlane::open(loop, VerbsOptions{});
  Result<std::string> endpoint = Error{ErrorCode::kResourceExhausted, "no memory for the source"};
  if (!plane.ok()) {
    endpoint = plane.error();
  } else if (memory != nullptr) {
    fill_bench_memory(memory.get(), bytes, 1);
    greeting.sum = checksum_of({memory.get(), bytes});
    endpoint = serve(loop, **plane, acceptor, memory_range(memory.get(), bytes));
  }
  if (endpoint.ok()) {
    endpoint->copy(greeting.endpoint, sizeof greeting.endpoint - 1);
  } else {
    endpoint.error().message.copy(greeting.error, sizeof greeting.error - 1);
  }
  if (write(control, &greeting, sizeof greeting) != sizeof greeting || !endpoint.ok()) _exit(1);
  serve_until_closed(loop, control);
}

// ---- the reader ---------------------------------------------------------------------------------

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

class Bench {
 public:
  Bench(const PlaneBenchOptions& options, const Greeting& greeting)
      : options_(options), greeting_(greeting) {}

  Result<Done> prepare() {
    Result<std::unique_ptr<VerbsPlane>> plane = VerbsPlane::open(loop_, VerbsOptions{});
    if (!plane.ok()) return plane.error();
    plane_ = std::move(*plane);
    memory_ = allocate_bench_memory(options_.bytes);
    if (memory_ == nullptr) return Error{ErrorCode::kResourceExhausted, "no memory for the copy"};
    Result<net::RegionId> into =
        loop_.run(plane_->register_memory(memory_range(memory_.get(), options_.bytes)));
    if (!into.ok()) return into.error();
    into_ = *into;
    return Done{};
  }

  Result<PlaneBenchResult> run(Shape shape) {
    BenchLink link(loop_.runtime());
    Result<Done> connected =
        loop_.run(connect_bench_link(&loop_, plane_.get(), greeting_.endpoint, 0, &link));
    if (!connected.ok()) return connected.error();
    Result<PlaneBenchResult> result = rounds(shape, link);
    Result<Done> destroyed = loop_.run(link.pair->destroy(loop_.runtime().now() + kBenchPatience));
    if (!destroyed.ok()) return destroyed.error();
    return result;
  }

 private:
  Result<PlaneBenchResult> rounds(Shape shape, BenchLink& link) {
    const BenchTransfer transfer{into_, options_.bytes, shape.size, shape.depth, false};
    std::vector<double> ours;
    std::vector<double> limit;
    for (unsigned round = 1; round <= options_.rounds; ++round) {
      if (options_.progress) {
        options_.progress("verbs, " + show(shape) + ": round " + std::to_string(round) + " of " +
                          std::to_string(options_.rounds));
      }
      Result<double> seconds = loop_.run(read_all(&loop_, &link, transfer));
      if (!seconds.ok()) return seconds.error();
      if (checksum_of({memory_.get(), options_.bytes}) != greeting_.sum) {
        return Error{ErrorCode::kCorrupt, "verbs: other bytes than the source's"};
      }
      std::memset(memory_.get(), 0, options_.bytes);
      ours.push_back(static_cast<double>(options_.bytes) / *seconds / (1ull << 30));
      Result<double> plain = ib_read_bw(plane_->device(), options_.bytes, shape);
      if (!plain.ok()) return plain.error();
      limit.push_back(*plain);
    }
    PlaneBenchResult result;
    result.name = "verbs, " + show(shape);
    result.gib_per_s = median(ours);
    result.limit = "ib_read_bw -e, " + show(shape);
    result.limit_gib_per_s = median(limit);
    result.ratio = result.gib_per_s / result.limit_gib_per_s;
    result.median_of = options_.rounds;
    return result;
  }

  const PlaneBenchOptions& options_;
  const Greeting& greeting_;
  BenchMemory memory_;
  net::RegionId into_;
  EventLoop loop_;
  std::unique_ptr<VerbsPlane> plane_;
};

}  // namespace

Result<std::vector<PlaneBenchResult>> run_verbs_bench(const PlaneBenchOptions& options) {
  if (options.bytes < (1u << 20) || options.rounds == 0) {
    return Error{ErrorCode::kInvalidArgument, "at least 1 MiB, in one round or more"};
  }
  const Result<std::unique_ptr<BenchSource>> source =
      BenchSource::fork([bytes = options.bytes](int control) { be_source(control, bytes); });
  if (!source.ok()) return source.error();
  Greeting greeting;
  if (!(*source)->hear(greeting)) return Error{ErrorCode::kUnreachable, "the source did not start"};
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
