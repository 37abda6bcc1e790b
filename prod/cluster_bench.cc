// The end-to-end benchmark: the demo's workers without the demo.
#include "prod/cluster_bench.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "prod/child_process.h"
#include "prod/kj_runtime.h"
#include "prod/plane_limits.h"
#include "prod/shared_memory.h"

namespace weightlane::prod {
namespace {

constexpr Nanos kWithin = seconds(120);  // any one answer
constexpr double kGiB = 1073741824.0;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

// A child and the events it sent that nobody has looked at.
class Talker {
 public:
  Result<Done> start(const std::vector<std::string>& arguments, int errors) {
    Result<ChildProcess> child = ChildProcess::start(arguments, errors);
    if (!child) return child.error();
    child_ = std::move(*child);
    return Done{};
  }
  void send(const std::string& line) { child_.send(line); }

  // The next line that `accept` likes; others are dropped.
  Result<std::string> wait(const std::string& what,
                           const std::function<bool(const std::string&)>& accept) {
    const Nanos end = deadline_after(monotonic_now(), kWithin);
    bool ended = false;
    while (true) {
      for (size_t i = 0; i < lines_.size(); ++i) {
        if (!accept(lines_[i])) continue;
        std::string line = lines_[i];
        lines_.erase(lines_.begin(), lines_.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        return line;
      }
      lines_.clear();
      if (ended)
        return Error{ErrorCode::kReplicaLost,
                     what + ": the process " + show_wait_status(child_.reap())};
      if (monotonic_now() >= end) return Error{ErrorCode::kTimeout, what + ": no answer"};
      pollfd watched{child_.descriptor(), POLLIN, 0};
      ::poll(&watched, 1, 100);
      lines_ = child_.receive(&ended);
    }
  }
  Result<nlohmann::json> event(const std::string& kind) {
    nlohmann::json found;
    Result<std::string> line = wait(kind, [&](const std::string& text) {
      found = nlohmann::json::parse(text, nullptr, false);
      return found.is_object() &&
             (found.value("event", "") == kind || found.value("event", "") == "failed");
    });
    if (!line) return line.error();
    if (found.value("event", "") == "failed")
      return Error{ErrorCode::kReplicaLost, found.value("message", "failed")};
    return found;
  }
  void stop() { child_.stop(seconds(5)); }

 private:
  ChildProcess child_;
  std::vector<std::string> lines_;
};

// Plain code that moves as many bytes with both cores.
class Limit {
 public:
  static Result<std::unique_ptr<Limit>> make(bool tcp, uint64_t bytes) {
    std::unique_ptr<Limit> limit(new Limit(tcp, bytes));
    for (std::optional<SharedMemory>* buffer : {&limit->from_, &limit->into_}) {
      Result<SharedMemory> memory = SharedMemory::allocate(limit->arenas_, bytes);
      if (!memory) return memory.error();
      buffer->emplace(std::move(*memory));
      std::fill_n((*buffer)->data(), bytes, uint8_t{1});
    }
    if (!tcp) return limit;
    Result<std::unique_ptr<PlainSender>> sender = PlainSender::start(limit->from_->data(), bytes);
    if (!sender) return sender.error();
    limit->sender_ = std::move(*sender);
    return limit;
  }

  // All shapes once.
  Result<Done> measure() {
    for (const LimitShape shape :
         {LimitShape{1, 4 << 20}, LimitShape{2, 1 << 20}, LimitShape{2, 4 << 20}}) {
      double elapsed = 0;
      if (tcp_) {
        Result<double> moved = limit_sockets(sender_->port(), into_->data(), bytes_, shape);
        if (!moved) return moved.error();
        elapsed = *moved;
      } else {
        elapsed = limit_streaming_copy(from_->data(), into_->data(), bytes_, shape);
      }
      rates_[std::to_string(shape.threads) + (shape.threads == 1 ? " thread, " : " threads, ") +
             std::to_string(shape.block >> 20) + " MiB"]
          .push_back(static_cast<double>(bytes_) / kGiB / elapsed);
    }
    return Done{};
  }
  double best(std::string* name) const {
    double most = 0;
    for (const auto& [shape, rates] : rates_) {
      if (median(rates) <= most) continue;
      most = median(rates);
      *name = (tcp_ ? "plain sockets, " : "streaming copy, ") + shape;
    }
    return most;
  }

 private:
  Limit(bool tcp, uint64_t bytes) : tcp_(tcp), bytes_(bytes) {}
  bool tcp_;
  uint64_t bytes_;
  SharedArenas arenas_;
  std::optional<SharedMemory> from_;
  std::optional<SharedMemory> into_;
  std::unique_ptr<PlainSender> sender_;
  std::map<std::string, std::vector<double>> rates_;
};

class ClusterBench {
 public:
  explicit ClusterBench(const ClusterBenchOptions& options)
      : options_(options), talkers_(options.readers + 1) {}
  ~ClusterBench() {
    for (Talker& talker : talkers_) talker.send("quit");
    for (Talker& talker : talkers_) talker.stop();
    server_.stop();
    if (null_ >= 0) ::close(null_);
  }
  ClusterBench(const ClusterBench&) = delete;
  ClusterBench& operator=(const ClusterBench&) = delete;

  Result<ClusterBenchResult> run() {
    Result<Done> done = start();
    if (!done) return done.error();
    Result<std::unique_ptr<Limit>> limit = Limit::make(options_.transport == "tcp", options_.bytes);
    if (!limit) return limit.error();
    std::vector<double> rates;
    // Round 0 touches all pages and does not count.
    for (unsigned round = 0; round <= options_.rounds; ++round) {
      Result<double> seconds_taken = fetch_all(round + 1);
      if (!seconds_taken) return seconds_taken.error();
      if (round == 0) continue;
      rates.push_back(static_cast<double>(options_.bytes) * options_.readers / kGiB /
                      *seconds_taken);
      done = (*limit)->measure();
      if (!done) return done.error();
      if (options_.progress)
        options_.progress(name() + ": round " + std::to_string(round) + " of " +
                          std::to_string(options_.rounds));
    }
    ClusterBenchResult result;
    done = finish(&result.extra_bytes_max);
    if (!done) return done.error();
    result.rate.name = name();
    result.rate.gib_per_s = median(rates);
    result.rate.limit_gib_per_s = (*limit)->best(&result.rate.limit);
    result.rate.ratio = result.rate.gib_per_s / result.rate.limit_gib_per_s;
    result.rate.median_of = options_.rounds;
    return result;
  }

 private:
  std::string name() const {
    const std::string shape =
        options_.readers == 1
            ? "pair"
            : (options_.pipelining ? "chain-" : "fan-out-") + std::to_string(options_.readers);
    return options_.transport + "/" + shape + (options_.checksums ? "+checksums" : "");
  }

  Result<Done> start() {
    null_ = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
    std::vector<std::string> arguments{"server", "--listen", "127.0.0.1:0"};
    if (!options_.pipelining) arguments.emplace_back("--no-pipelining");
    Result<Done> done = server_.start(arguments, null_);
    if (!done) return done;
    const std::string prefix = "listening on ";
    Result<std::string> line =
        server_.wait("server", [&](const std::string& text) { return text.starts_with(prefix); });
    if (!line) return line.error();
    for (size_t i = 0; i < talkers_.size(); ++i) {
      arguments = {
          "demo-worker",           "--role",   i == 0 ? "trainer" : "rollout", "--replica",
          "r" + std::to_string(i), "--server", line->substr(prefix.size()),    "--transport",
          options_.transport,      "--size",   std::to_string(options_.bytes)};
      if (options_.checksums) arguments.emplace_back("--checksums");
      done = talkers_[i].start(arguments, STDERR_FILENO);
      if (!done) return done;
    }
    for (Talker& talker : talkers_) {
      Result<nlohmann::json> ready = talker.event("ready");
      if (!ready) return ready.error();
    }
    return Done{};
  }

  // Seconds from the first reader's start to the last one's end.
  Result<double> fetch_all(unsigned version) {
    talkers_[0].send("publish " + std::to_string(version));
    Result<nlohmann::json> published = talkers_[0].event("published");
    if (!published) return published.error();
    for (size_t i = 1; i < talkers_.size(); ++i)
      talkers_[i].send("fetch " + std::to_string(version));
    int64_t first = kForever.count;
    int64_t last = 0;
    for (size_t i = 1; i < talkers_.size(); ++i) {
      Result<nlohmann::json> fetched = talkers_[i].event("fetched");
      if (!fetched) return fetched.error();
      first = std::min(first, fetched->at("began_ns").get<int64_t>());
      last = std::max(last, fetched->at("ended_ns").get<int64_t>());
    }
    return to_seconds(nanos(last - first));
  }

  Result<Done> finish(uint64_t* extra_bytes_max) {
    for (size_t i = 0; i < talkers_.size(); ++i) {
      talkers_[i].send("stats");
      Result<nlohmann::json> stats = talkers_[i].event("stats");
      if (!stats) return stats.error();
      *extra_bytes_max = std::max(*extra_bytes_max, stats->at("extra_bytes").get<uint64_t>());
      if (i == 0) continue;
      talkers_[i].send("verify");
      Result<nlohmann::json> verified = talkers_[i].event("updated");
      if (!verified) return verified.error();
      if (verified->at("wrong_bytes").get<uint64_t>() != 0)
        return Error{ErrorCode::kCorrupt, name() + ": wrong bytes arrived"};
    }
    return Done{};
  }

  ClusterBenchOptions options_;
  int null_ = -1;
  Talker server_;
  std::vector<Talker> talkers_;  // the source first
};

}  // namespace

Result<ClusterBenchResult> run_cluster_bench(const ClusterBenchOptions& options) {
  return ClusterBench(options).run();
}

}  // namespace weightlane::prod
