// weightlane bench: the planes and whole replicas, each beside the machine's own limit.
#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "prod/cluster_bench.h"
#include "prod/command.h"
#include "prod/plane_bench.h"
#include "prod/verbs_bench.h"

namespace weightlane::prod {
namespace {

class BenchCommand final : public Command {
 public:
  CLI::App* declare(CLI::App& program) override {
    CLI::App* app = program.add_subcommand(
        "bench", "How fast weights move here, beside the machine's own limits");
    app->footer(
        "Parts: planes (one connection, without the protocol), pair, chain (1 to --readers "
        "replicas that pass on what\n"
        "they have), fan-out (all read from the source). GiB/s of all readers together; medians, "
        "taken in turns with\n"
        "the limit.\n\n"
        "Example:\n  weightlane bench\n  weightlane bench --part planes --json\n  weightlane bench "
        "--part fan-out --transport tcp --readers 4");
    add_size(app, "--size", &size_, "bytes of a replica")->default_str("512MiB");
    app->add_option("--rounds", rounds_, "measurements per case")
        ->check(CLI::Range(1u, 1000u))
        ->capture_default_str();
    app->add_option("--part", parts_, "planes, pair, chain, fan-out; all of them if not given")
        ->check(CLI::IsMember({"planes", "pair", "chain", "fan-out"}));
    app->add_option(
           "--transport", transports_,
           "same-host, tcp; both if not given. verbs: beside ib_read_bw -e, --part planes only")
        ->check(CLI::IsMember({"same-host", "tcp", "verbs"}));
    app->add_option("--readers", readers_, "the most readers of chain and fan-out")
        ->check(CLI::Range(1u, 32u))
        ->capture_default_str();
    app->add_flag("--checksums", checksums_, "end to end checksums in pair, chain and fan-out");
    app->add_flag("--json", json_, "one JSON object a line");
    return app;
  }

  int run() override {
    if (size_ < (1u << 20))
      return report("bench", {ErrorCode::kInvalidArgument, "--size must be 1MiB or more"});
    if (!json_)
      std::printf(
          "%s\n",
          show_row({"CASE", "GiB/s", "LIMIT", "RATIO", "WHAT THE LIMIT IS"}, widths_).c_str());
    Result<Done> done = Done{};
    if (wanted("planes")) done = planes();
    for (const std::string& transport :
         transports_.empty() ? std::vector<std::string>{"same-host", "tcp"} : transports_) {
      if (transport == "verbs") continue;
      if (done.ok() && wanted("pair")) done = cluster(transport, 1, true);
      for (unsigned readers = 2; done.ok() && readers <= readers_; readers *= 2) {
        if (wanted("chain")) done = cluster(transport, readers, true);
        if (done.ok() && wanted("fan-out")) done = cluster(transport, readers, false);
      }
    }
    if (!done) return report("bench", done.error());
    return 0;
  }

 private:
  bool wanted(const std::string& part) const {
    return parts_.empty() || std::find(parts_.begin(), parts_.end(), part) != parts_.end();
  }

  void print(const PlaneBenchResult& result) {
    progress_.clear();
    if (json_) {
      const nlohmann::json line{
          {"case", result.name},   {"gib_per_s", result.gib_per_s},
          {"limit", result.limit}, {"limit_gib_per_s", result.limit_gib_per_s},
          {"ratio", result.ratio}, {"median_of", result.median_of}};
      std::printf("%s\n", line.dump().c_str());
    } else {
      const auto number = [](double value) {
        std::array<char, 32> text{};
        std::snprintf(text.data(), text.size(), "%.2f", value);
        return std::string(text.data());
      };
      std::printf("%s\n",
                  show_row({result.name, number(result.gib_per_s), number(result.limit_gib_per_s),
                            number(result.ratio), result.limit},
                           widths_)
                      .c_str());
    }
    std::fflush(stdout);
  }

  Result<Done> planes() {
    PlaneBenchOptions options;
    options.bytes = size_;
    options.rounds = rounds_;
    options.progress = [this](const std::string& text) { progress_.show(text); };
    if (!transports_.empty()) {
      for (const std::string& name : plane_bench_cases()) {
        for (const std::string& transport : transports_) {
          if (name.starts_with(transport)) options.cases.push_back(name);
        }
      }
    }
    const bool verbs =
        std::find(transports_.begin(), transports_.end(), "verbs") != transports_.end();
    if (transports_.empty() || !options.cases.empty()) {
      Result<std::vector<PlaneBenchResult>> results = run_plane_bench(options);
      if (!results) return results.error();
      for (const PlaneBenchResult& result : *results) print(result);
    }
    if (!verbs) return Done{};
    Result<std::vector<PlaneBenchResult>> results = run_verbs_bench(options);
    if (!results) return results.error();
    for (const PlaneBenchResult& result : *results) print(result);
    return Done{};
  }

  Result<Done> cluster(const std::string& transport, unsigned readers, bool pipelining) {
    ClusterBenchOptions options;
    options.bytes = size_;
    options.rounds = rounds_;
    options.transport = transport;
    options.pipelining = pipelining;
    options.readers = readers;
    options.checksums = checksums_;
    options.progress = [this](const std::string& text) { progress_.show(text); };
    Result<ClusterBenchResult> result = run_cluster_bench(options);
    if (!result) return result.error();
    print(result->rate);
    if (!json_)
      std::printf("    a worker's memory beyond its tensors: %s at most\n",
                  show_bytes(result->extra_bytes_max).c_str());
    return Done{};
  }

  uint64_t size_ = 512ull << 20;
  unsigned rounds_ = 5;
  std::vector<std::string> parts_;
  std::vector<std::string> transports_;
  unsigned readers_ = 8;
  bool checksums_ = false;
  bool json_ = false;
  ProgressLine progress_;
  const std::vector<size_t> widths_{28, 7, 7, 6, 20};
};

}  // namespace

std::unique_ptr<Command> make_bench_command() { return std::make_unique<BenchCommand>(); }

}  // namespace weightlane::prod
