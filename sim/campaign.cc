// The pool's children run schedules and add to their own slot of the board; the parent adds up.
#include "sim/campaign.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>

#include "ros/probes.h"
#include "sim/hash.h"
#include "sim/judge.h"
#include "sim/pool.h"

namespace weightlane::sim {
namespace {

constexpr int kJobsMost = 64;
constexpr size_t kProbesMost = 2048;
constexpr size_t kBuckets = 512;  // of a histogram
constexpr uint64_t kEventsBucket = 64;

unsigned long long wide(uint64_t value) { return value; }  // for printf

struct Totals {
  uint64_t schedules = 0;
  uint64_t violations = 0;
  uint64_t events = 0;
  uint64_t heartbeats = 0;
  uint64_t transfers = 0;
  uint64_t hash = 0;
  uint64_t simulated_ms = 0;
  std::array<uint32_t, kBuckets> event_counts{};     // by kEventsBucket
  std::array<uint32_t, kBuckets> busy_counts{};      // by kEventsBucket
  std::array<uint32_t, kBuckets> transfer_counts{};  // exact
  std::array<uint64_t, kProbesMost> probe_hits{};
  std::array<uint64_t, kProbesMost> probe_seeds{};
};

struct Slot {
  std::atomic<bool> running{false};
  std::atomic<uint64_t> seed{0};
  std::atomic<int64_t> since_ms{0};
  Totals totals;
};

struct Board {
  std::atomic<uint64_t> next{0};  // index of the next seed
  std::atomic<uint64_t> violations{0};
  std::atomic<uint64_t> done{0};
  std::array<Slot, kJobsMost> slots{};
};

void count_probe(Totals& totals, size_t id, uint64_t hits) {
  if (hits == 0 || id >= kProbesMost) return;
  totals.probe_hits[id] += hits;
  ++totals.probe_seeds[id];
}

void count_probes(Totals& totals, const World& world) {
  const std::vector<uint32_t>& hits = world.probe_hits();
  for (size_t id = 0; id < hits.size(); ++id) count_probe(totals, id, hits[id]);
  for (uint32_t f = 1; f < kFaultCount; ++f) {
    for (uint32_t o = 0; o < kWorkOutcomes; ++o) {
      const uint64_t count =
          world.fault_hits().at(static_cast<Fault>(f), static_cast<WorkOutcome>(o));
      if (count != 0)
        count_probe(totals, fault_probe(static_cast<Fault>(f), static_cast<WorkOutcome>(o)).id,
                    count);
    }
  }
}

std::string trace_path(const CampaignOptions& options, uint64_t seed) {
  return options.traces + "/" + scenario_name(options.scenario) + "-" + std::to_string(seed) +
         ".trace";
}

void report_violation(const CampaignOptions& options, TraceFile trace) {
  trace.bug = options.bug;
  const std::string path = trace_path(options, trace.seed);
  const Result<Done> written = write_trace(path, trace);
  std::fprintf(stderr, "violation: seed %llu: %s (%s)\n", wide(trace.seed), trace.story.c_str(),
               written.ok() ? path.c_str() : written.error().message.c_str());
}

void add_outcome(Totals& totals, const Outcome& outcome) {
  ++totals.schedules;
  totals.events += outcome.events;
  totals.heartbeats += outcome.heartbeats;
  totals.transfers += outcome.transfers;
  totals.hash += mix64(outcome.hash, outcome.seed);
  totals.simulated_ms += static_cast<uint64_t>(outcome.ended.count / 1'000'000);
  ++totals.event_counts[std::min<uint64_t>(outcome.events / kEventsBucket, kBuckets - 1)];
  ++totals.busy_counts[std::min<uint64_t>(outcome.busy_events / kEventsBucket, kBuckets - 1)];
  ++totals.transfer_counts[std::min<uint64_t>(outcome.transfers, kBuckets - 1)];
}

void run_one(const CampaignOptions& options, uint64_t seed, Board& board, Totals& totals) {
  const Plan plan = draw_plan(options.scenario, seed);
  bool violated = false;
  {
    Schedule schedule(plan);
    const Outcome outcome = schedule.run();
    add_outcome(totals, outcome);
    if (options.probes) count_probes(totals, schedule.world());
    violated = outcome.violation.has_value();
  }
  if (violated) {
    report_violation(options, trace_of(plan));
  } else if (options.check_determinism) {
    const std::string difference = first_difference(plan);
    violated = !difference.empty();
    if (violated)
      std::fprintf(stderr, "seed %llu is not deterministic:\n%s", wide(seed), difference.c_str());
  }
  if (!violated) return;
  ++totals.violations;
  ++board.violations;
}

int run_job(const CampaignOptions& options, Board& board, int job) {
  Slot& slot = board.slots[static_cast<size_t>(job)];
  while (board.violations.load() < options.violations_most) {
    const uint64_t index = board.next.fetch_add(1);
    if (index >= options.seeds) break;
    slot.seed = options.first + index;
    slot.since_ms = monotonic_ms();
    slot.running = true;
    run_one(options, options.first + index, board, slot.totals);
    slot.running = false;
    ++board.done;
  }
  return 0;
}

// The child died of its schedule. True: there may be more to do.
bool bury(const CampaignOptions& options, Board& board, const ChildEnd& end) {
  Slot& slot = board.slots[static_cast<size_t>(end.job)];
  if (!end.crashed || !slot.running) return false;
  const uint64_t seed = slot.seed;
  slot.running = false;
  ++slot.totals.schedules;
  ++slot.totals.violations;
  ++board.violations;
  ++board.done;
  TraceFile trace;
  const Plan plan = draw_plan(options.scenario, seed);
  trace.story = end.signal == 9 ? "the schedule ran for too long and was killed"
                                : "the process died: see what it printed";
  trace.build = build_id();
  trace.scenario = scenario_name(options.scenario);
  trace.seed = seed;
  trace.promise = "assertion";
  trace.config = plan_text(plan);
  report_violation(options, std::move(trace));
  return true;
}

uint64_t median(const std::array<uint64_t, kBuckets>& counts, uint64_t total, uint64_t bucket) {
  uint64_t below = 0;
  for (size_t i = 0; i < kBuckets; ++i) {
    below += counts[i];
    if (below * 2 >= total) return i * bucket;
  }
  return 0;
}

std::vector<ProbeLine> probe_lines(const Totals& sum) {
  std::vector<flow::ProbePoint> points(ros::probes::kAll.begin(), ros::probes::kAll.end());
  for (const flow::ProbePoint& point : fault_probes()) points.push_back(point);
  std::vector<ProbeLine> lines;
  for (const flow::ProbePoint& point : points) {
    if (point.id >= kProbesMost) continue;
    lines.push_back({point.name, point.rare, sum.probe_hits[point.id], sum.probe_seeds[point.id]});
  }
  return lines;
}

class Recorder final : public EventSink {
 public:
  void on_event(const EventRecord& record) override { events.push_back(record); }
  std::vector<EventRecord> events;
};

class Comparer final : public EventSink {
 public:
  explicit Comparer(const std::vector<EventRecord>& expected) : expected_(expected) {}
  void on_event(const EventRecord& record) override {
    if (differs) return;
    if (at < expected_.size() && expected_[at] == record) {
      ++at;
      return;
    }
    differs = true;
    found = record;
  }
  size_t at = 0;
  bool differs = false;
  EventRecord found;

 private:
  const std::vector<EventRecord>& expected_;
};

std::string describe(const EventRecord& record) {
  char text[192];
  std::snprintf(text, sizeof text, "%15.9f host %-3u %-14s %llx %llx %llx", to_seconds(record.at),
                record.host.value, event_kind_name(record.kind), wide(record.a), wide(record.b),
                wide(record.c));
  return text;
}

}  // namespace

std::string first_difference(const Plan& plan) {
  Recorder first;
  {
    Schedule schedule(plan);
    schedule.set_sink(&first);
    schedule.run();
  }
  Comparer second(first.events);
  {
    Schedule schedule(plan);
    schedule.set_sink(&second);
    schedule.run();
  }
  if (!second.differs && second.at == first.events.size()) return {};
  std::string text = "event " + std::to_string(second.at) + "\n";
  text += "  first run   " +
          (second.at < first.events.size() ? describe(first.events[second.at]) : "ended") + "\n";
  text += "  second run  " + (second.differs ? describe(second.found) : "ended") + "\n";
  return text;
}

TraceFile trace_of(const Plan& plan) {
  Schedule::Options options;
  options.record = true;
  Schedule schedule(plan, options);
  const Outcome outcome = schedule.run();
  TraceFile trace;
  trace.build = build_id();
  trace.scenario = scenario_name(plan.scenario);
  trace.seed = plan.seed;
  trace.hash = outcome.hash;
  trace.events = outcome.events;
  trace.config = plan_text(plan);
  trace.faults = schedule.faults();
  if (outcome.violation) {
    char at[32];
    std::snprintf(at, sizeof at, " at %.6f s, ", to_seconds(outcome.violation->at));
    trace.promise = outcome.violation->promise;
    trace.story = trace.promise + at + outcome.violation->text;
  } else {
    trace.story = "no violation";
  }
  for (const Deviation& deviation : schedule.deviations()) {
    trace.choices.push_back({deviation.stream, deviation.index, deviation.n, deviation.value,
                             deviation.name != nullptr ? deviation.name : "?"});
  }
  return trace;
}

Result<Plan> plan_of(const TraceFile& trace) {
  const Result<Scenario> scenario = scenario_named(trace.scenario);
  if (!scenario.ok()) return scenario.error();
  Plan plan = draw_plan(*scenario, trace.seed);
  if (trace.config.empty()) return plan;
  const Result<Done> read = read_plan(trace.config, plan);
  if (!read.ok()) return read.error();
  return plan;
}

CampaignResult run_campaign(const CampaignOptions& options) {
  auto board = std::make_unique<Shared<Board>>();
  Board& shared = **board;
  const int64_t begin = monotonic_ms();
  const bool shows = isatty(STDERR_FILENO) != 0;
  PoolOptions pool;
  pool.jobs = std::clamp(options.jobs, 1, kJobsMost);
  pool.work = [&](int job) { return run_job(options, shared, job); };
  pool.on_end = [&](const ChildEnd& end) { return bury(options, shared, end); };
  pool.on_tick = [&] {
    const int64_t ms = monotonic_ms() - begin;
    if (!shows || ms < 2000) return;
    std::fprintf(stderr, "\r%llu of %llu schedules, %llu violations, %lld s ",
                 wide(shared.done.load()), wide(options.seeds), wide(shared.violations.load()),
                 static_cast<long long>(ms / 1000));
  };
  pool.hangs = [&](int job) {
    const Slot& slot = shared.slots[static_cast<size_t>(job)];
    return slot.running && monotonic_ms() - slot.since_ms > options.schedule_seconds_most * 1000;
  };
  run_pool(pool);
  if (shows && monotonic_ms() - begin >= 2000) std::fprintf(stderr, "\r\033[K");

  CampaignResult result;
  auto sum = std::make_unique<Totals>();
  std::array<uint64_t, kBuckets> events{};
  std::array<uint64_t, kBuckets> busy{};
  std::array<uint64_t, kBuckets> transfers{};
  for (const Slot& slot : shared.slots) {
    const Totals& part = slot.totals;
    result.schedules += part.schedules;
    result.violations += part.violations;
    result.events += part.events;
    result.heartbeats += part.heartbeats;
    result.transfers += part.transfers;
    result.hash += part.hash;
    result.simulated_seconds += static_cast<double>(part.simulated_ms) * 1e-3;
    for (size_t i = 0; i < kBuckets; ++i) {
      events[i] += part.event_counts[i];
      busy[i] += part.busy_counts[i];
      transfers[i] += part.transfer_counts[i];
    }
    for (size_t i = 0; i < kProbesMost; ++i) {
      sum->probe_hits[i] += part.probe_hits[i];
      sum->probe_seeds[i] += part.probe_seeds[i];
    }
  }
  result.events_median = median(events, result.schedules, kEventsBucket);
  result.busy_events_median = median(busy, result.schedules, kEventsBucket);
  result.transfers_median = median(transfers, result.schedules, 1);
  result.seconds = static_cast<double>(monotonic_ms() - begin) * 1e-3;
  if (options.probes) result.probes = probe_lines(*sum);
  return result;
}

std::string summary(const CampaignResult& result, bool json) {
  const double rate =
      result.seconds > 0 ? static_cast<double>(result.schedules) / result.seconds : 0;
  const double speed = result.seconds > 0 ? result.simulated_seconds / result.seconds : 0;
  char text[640];
  if (json) {
    std::snprintf(
        text, sizeof text,
        "{\"schedules\":%llu,\"violations\":%llu,\"seconds\":%.1f,\"schedules_per_second\":%.1f,"
        "\"events\":%llu,\"hash\":\"%016llx\",\"events_median\":%llu,\"busy_events_median\":%llu,"
        "\"transfers_median\":%llu,\"heartbeats\":%llu,\"simulated_over_real\":%.0f}\n",
        wide(result.schedules), wide(result.violations), result.seconds, rate, wide(result.events),
        wide(result.hash), wide(result.events_median), wide(result.busy_events_median),
        wide(result.transfers_median), wide(result.heartbeats), speed);
    return text;
  }
  std::snprintf(text, sizeof text,
                "median of a schedule: %llu events (%llu without what heartbeats cause), "
                "%llu shard transfers completed; heartbeats: %llu\n"
                "schedules=%llu violations=%llu seconds=%.1f schedules_per_second=%.1f events=%llu "
                "hash=%016llx simulated_over_real=%.0f\n",
                wide(result.events_median), wide(result.busy_events_median),
                wide(result.transfers_median), wide(result.heartbeats), wide(result.schedules),
                wide(result.violations), result.seconds, rate, wide(result.events),
                wide(result.hash), speed);
  return text;
}

std::string unreached(const CampaignResult& result) {
  std::string text;
  for (const bool rare : {false, true}) {
    std::string names;
    for (const ProbeLine& probe : result.probes) {
      if (probe.hits == 0 && probe.rare == rare) names += "  " + std::string(probe.name) + "\n";
    }
    if (names.empty()) continue;
    text += rare ? "rare probes never reached:\n" : "probes never reached:\n";
    text += names;
  }
  return text;
}

}  // namespace weightlane::sim
