// Drawing a plan, and its text. Integers only, each from one draw, so that every build and machine
// draws the same.
#include "sim/plan.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "flow/random.h"

namespace weightlane::sim {
namespace {

constexpr uint64_t kPlanStream = 0x706c616e;  // apart from every stream of the world

class Dice {
 public:
  explicit Dice(uint64_t seed) : rng_(seed, kPlanStream) {}
  uint64_t below(uint64_t n) { return rng_.below(n); }
  bool percent(uint64_t p) { return rng_.below(100) < p; }
  uint64_t between(uint64_t low, uint64_t high) { return low + rng_.below(high - low + 1); }
  Nanos between(Nanos low, Nanos high) {
    return {static_cast<int64_t>(
        between(static_cast<uint64_t>(low.count), static_cast<uint64_t>(high.count)))};
  }
  // Each power of two as likely as the next.
  uint64_t log(uint64_t low, uint64_t high) {
    uint64_t doublings = 0;
    while ((low << doublings) < high) ++doublings;
    const uint64_t power = low << rng_.below(doublings + 1);
    const uint64_t value = power + rng_.below(power);
    return std::min(value, high);
  }
  Nanos log(Nanos low, Nanos high) {
    return {static_cast<int64_t>(
        log(static_cast<uint64_t>(low.count), static_cast<uint64_t>(high.count)))};
  }
  // Off in half of the plans, else log-uniform.
  uint32_t maybe(uint64_t low, uint64_t high) {
    const bool on = percent(50);
    const uint64_t value = log(low, high);
    return on ? static_cast<uint32_t>(value) : 0;
  }

 private:
  flow::Rng rng_;
};

void draw_cluster(Dice& dice, Plan& plan) {
  // Small clusters more often: they show most, and cost least.
  const uint64_t shards = dice.below(100);
  plan.shards = shards < 40 ? 2 : shards < 75 ? 3 : 4;
  plan.trainers = dice.percent(35) ? 2 : 1;
  const uint64_t rollouts = dice.below(100);
  plan.rollouts = rollouts < 50 ? 3 : rollouts < 80 || plan.shards == 4 ? 4 : 5;
  plan.shards_per_host = dice.percent(30) ? plan.shards : 1;
  plan.tensors = static_cast<uint32_t>(dice.between(1, kTensorsMost));
  for (uint32_t& granules : plan.granules)
    granules = static_cast<uint32_t>(dice.log(1, kGranulesMost));
}

void draw_protocol(Dice& dice, Plan& plan) {
  WorldConfig& world = plan.world;
  const uint64_t granule = dice.percent(50) ? 64u << 10 : dice.log(4u << 10, 4u << 20);
  world.data.granule_bytes = granule;
  uint64_t total = 0;
  for (uint32_t t = 0; t < plan.tensors; ++t) total += plan.granules[t];
  // A slice is some granules; a shard has no more than about 14 of them, so that a run stays small.
  const uint64_t least = std::max<uint64_t>(1, total / 14);
  plan.handle.slice_bytes = granule * dice.between(least, least + 7);
  const uint64_t window = dice.between(1, 8);
  plan.handle.window_bytes = plan.handle.slice_bytes * window;
  plan.handle.window_start_bytes = plan.handle.slice_bytes * dice.between(1, window);
  world.data.max_outstanding_reads = static_cast<uint32_t>(dice.log(2, 64));
  world.data.pieces_most = static_cast<uint32_t>(dice.between(1, 3));
  plan.server.pipelining = !dice.percent(10);
  plan.handle.checksums = dice.percent(25);
  world.data.real_bytes = dice.percent(10);
  world.control.codec = world.data.real_bytes;
  plan.habits.own_tags = !plan.handle.checksums && !world.data.real_bytes;
  const uint64_t kind = dice.below(10);
  world.order = kind < 5   ? ReadyOrder::kRandom
                : kind < 7 ? ReadyOrder::kFifo
                : kind < 9 ? ReadyOrder::kPct
                           : ReadyOrder::kStarveOne;
}

// Every time-out divided by the same number, so that their order stays what it is meant to be.
void draw_timing(Dice& dice, Plan& plan) {
  const uint64_t kind = dice.below(10);
  const int64_t divide = kind < 7 ? 1 : 2;
  ros::ServerOptions& server = plan.server;
  for (Nanos* span : {&server.heartbeat, &server.lease, &server.drain, &server.missing_member,
                      &server.offload, &server.retry_same_source, &server.seed_patience}) {
    *span = *span / divide;
  }
  ros::HandleOptions& handle = plan.handle;
  for (Nanos* span :
       {&handle.connect, &handle.stall, &handle.quarantine, &handle.rpc_retry_first,
        &handle.rpc_retry_max, &handle.rpc_attempt, &handle.server_silent, &handle.server_lost}) {
    *span = *span / divide;
  }
  // Short drains fence readers in the middle of their work: what the seal is for.
  const uint64_t drain = dice.below(100);
  if (drain < 35)
    server.drain = dice.log(micros(200), millis(50));
  else if (drain < 50)
    server.drain = dice.log(millis(50), server.drain);
  if (dice.percent(30)) handle.stall = dice.log(handle.stall / 4, handle.stall * 2);
  if (dice.percent(20)) handle.connect = dice.log(handle.connect / 8, handle.connect);
  handle.progress_poll = dice.log(micros(200), millis(4));
  handle.progress_poll_max = std::max(handle.progress_poll, dice.log(millis(5), millis(40)));
  // The simulated NIC's retry time keeps its relation to the stall deadline as well.
  plan.world.data.retry_nominal = plan.world.data.retry_nominal / divide;
}

// A whole shard takes between a millisecond and half a second on an idle NIC, but a full window of
// every shard of a host never takes half the stall deadline: slow is a fault, not a plan.
void draw_speed(Dice& dice, Plan& plan) {
  uint64_t bytes = 0;
  for (uint32_t t = 0; t < plan.tensors; ++t) bytes += plan.granules[t];
  bytes *= plan.world.data.granule_bytes;
  const auto transfer_us = static_cast<uint64_t>(dice.log(millis(1), millis(500)).count / 1000);
  const auto stall_us = static_cast<uint64_t>(plan.handle.stall.count / 1000);
  const uint64_t windows = plan.handle.window_bytes * plan.shards_per_host * 2;
  const uint64_t rate = std::max<uint64_t>(
      1 << 20, std::max(bytes * 1'000'000 / transfer_us, windows * 1'000'000 / stall_us * 2));
  plan.world.bandwidth.nic_tx = rate;
  plan.world.bandwidth.nic_rx = rate * dice.between(1, 2);
}

// Replicas stand in up to three datacenters; the links between them are slower than a NIC, and
// still fast enough for a full window of all who may read across at once (as above).
void draw_datacenters(Dice& dice, Plan& plan) {
  const uint64_t kind = dice.below(100);
  plan.datacenters = kind < 65 ? 1 : kind < 90 ? 2 : 3;
  plan.placement = static_cast<uint32_t>(dice.below(1u << 20));
  const auto spot = static_cast<uint32_t>(dice.below(uint64_t{1} << plan.rollouts));
  if (dice.percent(40) && plan.datacenters > 1) plan.spot = spot << plan.trainers;
  plan.server.seed_patience = dice.log(millis(500), plan.server.seed_patience);
  uint64_t bytes = 0;
  for (uint32_t t = 0; t < plan.tensors; ++t) bytes += plan.granules[t];
  bytes *= plan.world.data.granule_bytes * plan.shards;
  const auto stall_us = static_cast<uint64_t>(plan.handle.stall.count / 1000);
  const uint64_t windows = plan.handle.window_bytes * plan.shards * plan.rollouts * 2;
  const uint64_t least = std::max(bytes * 2 / 3, windows * 1'000'000 / stall_us * 2);
  plan.world.bandwidth.wide = std::max(least, plan.world.bandwidth.nic_tx / dice.log(2, 16));
}

void draw_habits(Dice& dice, Plan& plan) {
  Habits& habits = plan.habits;
  habits.rounds = static_cast<uint32_t>(dice.between(3, 5));
  habits.train = dice.log(millis(5), millis(400));
  habits.hold = dice.log(millis(60), millis(1500));
  habits.think = dice.log(habits.hold / 4, habits.hold);
  habits.limit = plan.server.lease * static_cast<int64_t>(dice.between(50, 120)) / 100;
  // Long enough, in some plans, that only a whole copy and no time-out ends a wait (P6).
  const bool patient = dice.percent(30);
  habits.patience = patient ? seconds(400) : dice.log(seconds(1), seconds(20));
  habits.want_exact = dice.maybe(20, 200);
  habits.want_back = dice.maybe(20, 200);
  habits.leave_version = dice.maybe(20, 300);
  habits.close = dice.maybe(10, 100);
  habits.unregister = dice.maybe(10, 100);
  habits.drop_call = dice.maybe(10, 100);
  habits.wrong_state = dice.maybe(10, 100);
  habits.list = dice.maybe(10, 100);
  if (patient) habits.want_exact = habits.want_back = 0;
  habits.mismatch = dice.percent(10) ? dice.maybe(5, 50) : 0;
  habits.silent = dice.percent(25) ? dice.maybe(5, 50) : 0;
  habits.other_layout = dice.percent(10) ? dice.maybe(20, 200) : 0;
}

void draw_retention(Dice& dice, Plan& plan) {
  Habits& habits = plan.habits;
  const bool retains = dice.percent(40);
  const Nanos in_time = dice.log(seconds(5), seconds(40));
  const auto latest = static_cast<uint32_t>(dice.between(1, 2));
  const uint64_t exact = dice.between(1, 3);
  const bool names = dice.percent(25);
  const auto spot = static_cast<uint32_t>(dice.below(uint64_t{1} << plan.replicas()));
  const bool spots = dice.percent(50);
  const bool drops = dice.percent(30);
  const bool limited = dice.percent(20);
  uint64_t bytes = 0;
  for (uint32_t t = 0; t < plan.tensors; ++t) bytes += plan.granules[t];
  bytes *= plan.world.data.granule_bytes * plan.shards_per_host;
  const uint64_t limit = dice.between(0, 2) * bytes;
  habits.rewind = dice.percent(15) ? static_cast<uint32_t>(dice.log(20, 200)) : 0;
  habits.wait = dice.maybe(10, 60);
  habits.notice = dice.percent(50) ? static_cast<uint32_t>(dice.log(10, 80)) : 0;
  if (!retains) return;
  plan.server.offload = in_time;
  plan.retain_latest = latest;
  if (names) plan.retain_exact = exact;
  if (spots) plan.spot = spot;
  plan.offload_drop = drops;
  if (limited) plan.offload_limit = limit;
}

// A lease that runs out while the process lives is what evictions, reopening and P2 without a
// server are about; with the default lease a run is over before that happens.
void draw_lease(Dice& dice, Plan& plan) {
  ros::ServerOptions& server = plan.server;
  const bool brief = dice.percent(25);
  const uint64_t divide = dice.between(2, 6);
  if (brief) {
    server.lease = server.lease / static_cast<int64_t>(divide);
    if (divide > 3) server.heartbeat = server.heartbeat / 2;
  }
  // Heartbeats are the greater part of what happens in an idle cluster: most plans have no more of
  // them than it takes to find an eviction that should not be.
  const bool sparse = dice.percent(85);
  if (sparse) server.heartbeat = server.lease / 4;
  const bool impatient = dice.percent(10);
  const uint64_t ahead = dice.between(6, 10);
  if (impatient) server.calls_ahead_most = ahead;
  // A drift beyond the 200 ppm of a bad crystal is a fault like any other.
  const uint64_t drift = dice.log(1, 3000);
  plan.world.clock_drift_ppm_most = dice.percent(50) ? 200 : static_cast<uint32_t>(drift);
}

void no_faults(Plan& plan) {
  plan.world.faults = FaultRates{};
  plan.server_crashes = 0;
  plan.core_all = 1;
}

// Where there are standbys something mostly befalls the servers. Only the scenario that is about
// them has any: see traces/README.md for what still goes wrong there.
void draw_servers(Dice& dice, Plan& plan) {
  const uint64_t servers = dice.below(100);
  if (plan.scenario == Scenario::kServer)
    plan.servers = servers < 30 ? 1 : servers < 75 ? 2 : kServersMost;
  const bool trouble = dice.percent(plan.servers > 1 ? 60 : 15);
  const uint64_t times = dice.between(1, 3);
  plan.server_crashes = trouble ? static_cast<uint32_t>(times) : 0;
  if (dice.percent(30)) plan.handle.server_silent = dice.log(millis(300), seconds(4));
}

void raise(FaultRates& rates, Fault fault, uint32_t least) {
  rates.set(fault, std::max(rates.of(fault), least));
}

void shape(Plan& plan) {
  FaultRates& rates = plan.world.faults;
  switch (plan.scenario) {
    case Scenario::kDefault:
      break;
    case Scenario::kQuiet:
      no_faults(plan);
      break;
    case Scenario::kServer:
      plan.server_crashes = std::max(plan.server_crashes, 1u);
      for (Fault fault : {Fault::kControlPartition, Fault::kOneWayPartition})
        raise(rates, fault, 20'000);
      break;
    case Scenario::kChurn:
      for (Fault fault :
           {Fault::kCrashMemoryFirst, Fault::kCrashQueuePairFirst, Fault::kCrashMachine}) {
        raise(rates, fault, 20'000);
      }
      break;
    case Scenario::kSlow:
      for (Fault fault :
           {Fault::kPause, Fault::kDataPartition, Fault::kControlPartition, Fault::kFullPartition,
            Fault::kOneWayPartition, Fault::kLowSpeed, Fault::kFlapShort, Fault::kFlapLong}) {
        raise(rates, fault, 10'000);
      }
      for (Fault fault : {Fault::kSlowPair, Fault::kGoodputNil}) raise(rates, fault, 2'000);
      break;
    case Scenario::kReuse:
      for (Fault fault : {Fault::kCrashMemoryFirst, Fault::kCrashQueuePairFirst})
        raise(rates, fault, 20'000);
      raise(rates, Fault::kRestartReuse, 800'000);
      raise(rates, Fault::kKeyReused, 100'000);
      break;
  }
}

std::string to_text(uint64_t value) { return std::to_string(value); }

bool from_text(const std::string& text, uint64_t& value) {
  char* end = nullptr;
  errno = 0;
  value = std::strtoull(text.c_str(), &end, 10);
  return errno == 0 && !text.empty() && *end == '\0' && text[0] != '-';
}

// visit(name, get, set) for every setting: `get` gives its number, `set` takes one.
template <typename Visit>
void visit_plan(Plan& plan, Visit visit) {
  auto number = [&visit](const char* name, auto& field) {
    using Field = std::remove_reference_t<decltype(field)>;
    visit(name, static_cast<uint64_t>(field),
          [&field](uint64_t value) { field = static_cast<Field>(value); });
  };
  auto span = [&visit](const char* name, Nanos& field) {
    visit(name, static_cast<uint64_t>(field.count),
          [&field](uint64_t value) { field = Nanos{static_cast<int64_t>(value)}; });
  };
  number("shards", plan.shards);
  number("trainers", plan.trainers);
  number("rollouts", plan.rollouts);
  number("shards_per_host", plan.shards_per_host);
  number("tensors", plan.tensors);
  static constexpr const char* kGranules[] = {"granules_0", "granules_1", "granules_2",
                                              "granules_3", "granules_4", "granules_5"};
  for (size_t t = 0; t < plan.granules.size(); ++t) number(kGranules[t], plan.granules[t]);
  number("retain_latest", plan.retain_latest);
  number("retain_exact", plan.retain_exact);
  number("spot", plan.spot);
  number("offload_drop", plan.offload_drop);
  number("offload_limit", plan.offload_limit);
  number("datacenters", plan.datacenters);
  number("placement", plan.placement);
  number("servers", plan.servers);
  number("server_crashes", plan.server_crashes);
  number("core_all", plan.core_all);
  number("step_limit_k", plan.step_limit_k);

  Habits& habits = plan.habits;
  number("rounds", habits.rounds);
  span("train_ns", habits.train);
  span("hold_ns", habits.hold);
  span("think_ns", habits.think);
  span("limit_ns", habits.limit);
  span("patience_ns", habits.patience);
  number("want_exact", habits.want_exact);
  number("want_back", habits.want_back);
  number("leave_version", habits.leave_version);
  number("close", habits.close);
  number("unregister", habits.unregister);
  number("drop_call", habits.drop_call);
  number("wrong_state", habits.wrong_state);
  number("mismatch", habits.mismatch);
  number("silent", habits.silent);
  number("other_layout", habits.other_layout);
  number("list", habits.list);
  number("rewind", habits.rewind);
  number("wait", habits.wait);
  number("notice", habits.notice);
  number("own_tags", habits.own_tags);

  span("server.heartbeat_ns", plan.server.heartbeat);
  span("server.lease_ns", plan.server.lease);
  span("server.drain_ns", plan.server.drain);
  span("server.missing_member_ns", plan.server.missing_member);
  span("server.retry_same_source_ns", plan.server.retry_same_source);
  span("server.offload_ns", plan.server.offload);
  span("server.seed_patience_ns", plan.server.seed_patience);
  number("server.pipelining", plan.server.pipelining);
  number("server.calls_ahead_most", plan.server.calls_ahead_most);
  span("handle.connect_ns", plan.handle.connect);
  span("handle.stall_ns", plan.handle.stall);
  span("handle.quarantine_ns", plan.handle.quarantine);
  span("handle.rpc_retry_first_ns", plan.handle.rpc_retry_first);
  span("handle.rpc_retry_max_ns", plan.handle.rpc_retry_max);
  span("handle.rpc_attempt_ns", plan.handle.rpc_attempt);
  span("handle.server_silent_ns", plan.handle.server_silent);
  span("handle.server_lost_ns", plan.handle.server_lost);
  span("handle.progress_poll_ns", plan.handle.progress_poll);
  span("handle.progress_poll_max_ns", plan.handle.progress_poll_max);
  number("handle.slice_bytes", plan.handle.slice_bytes);
  number("handle.window_bytes", plan.handle.window_bytes);
  number("handle.window_start_bytes", plan.handle.window_start_bytes);
  number("handle.checksums", plan.handle.checksums);

  WorldConfig& world = plan.world;
  number("world.order", world.order);
  number("world.pct_change_points", world.pct_change_points);
  number("world.pct_steps", world.pct_steps);
  number("world.codec", world.control.codec);
  number("world.drop_first_replies", world.control.drop_first_replies);
  number("world.granule_bytes", world.data.granule_bytes);
  number("world.max_outstanding_reads", world.data.max_outstanding_reads);
  number("world.fences", world.data.fences);
  number("world.lanes", world.data.lanes);
  number("world.real_bytes", world.data.real_bytes);
  number("world.pieces_most", world.data.pieces_most);
  span("world.retry_nominal_ns", world.data.retry_nominal);
  number("world.nic_tx", world.bandwidth.nic_tx);
  number("world.nic_rx", world.bandwidth.nic_rx);
  number("world.wide", world.bandwidth.wide);
  number("world.clock_drift_ppm_most", world.clock_drift_ppm_most);
}

constexpr const char* kFaultPrefix = "fault.";

}  // namespace

const char* scenario_name(Scenario scenario) {
  switch (scenario) {
    case Scenario::kDefault:
      return "default";
    case Scenario::kQuiet:
      return "quiet";
    case Scenario::kServer:
      return "server";
    case Scenario::kChurn:
      return "churn";
    case Scenario::kSlow:
      return "slow";
    case Scenario::kReuse:
      return "reuse";
  }
  return "unknown";
}

const char* scenario_help(Scenario scenario) {
  switch (scenario) {
    case Scenario::kDefault:
      return "the swarm: every kind of fault, each off in half of the seeds";
    case Scenario::kQuiet:
      return "the same without any fault";
    case Scenario::kServer:
      return "the reference servers crash, come back empty, are paused, are cut off";
    case Scenario::kChurn:
      return "processes crash and restart all the time";
    case Scenario::kSlow:
      return "partitions, pauses, slow links";
    case Scenario::kReuse:
      return "restarted processes reuse addresses, keys and queue pair numbers (F11)";
  }
  return "";
}

Result<Scenario> scenario_named(const std::string& name) {
  std::string known;
  for (Scenario scenario : kScenarios) {
    if (name == scenario_name(scenario)) return scenario;
    known += std::string(known.empty() ? "" : ", ") + scenario_name(scenario);
  }
  return Error{ErrorCode::kInvalidArgument, "no scenario '" + name + "'; there are: " + known};
}

uint64_t Plan::shard_granules(uint32_t shard) const {
  uint64_t total = 0;
  for (uint32_t t = 0; t < tensors; ++t) total += tensor_granules(shard, t);
  return total;
}

Plan draw_plan(Scenario scenario, uint64_t seed) {
  Plan plan;
  plan.scenario = scenario;
  plan.seed = seed;
  Dice dice(seed);
  draw_cluster(dice, plan);
  draw_protocol(dice, plan);
  draw_timing(dice, plan);
  draw_speed(dice, plan);
  draw_datacenters(dice, plan);
  draw_habits(dice, plan);
  draw_lease(dice, plan);
  draw_servers(dice, plan);
  plan.core_all = dice.percent(50);
  plan.world.data.fences = !dice.percent(40);
  plan.world.data.lanes = dice.percent(50) ? 1 : static_cast<uint32_t>(dice.log(2, 16));
  plan.world.control.drop_first_replies = dice.percent(5);
  ChoiceSource swarm(seed);
  plan.world.faults = draw_swarm(swarm, plan.handle.checksums);
  draw_retention(dice, plan);
  const bool quiet = plan.world.faults == FaultRates{};
  if (quiet) no_faults(plan);
  shape(plan);
  return plan;
}

PlanText plan_text(const Plan& plan) {
  PlanText text;
  Plan copy = plan;
  visit_plan(copy, [&text](const char* name, uint64_t value, auto&&) {
    text.emplace_back(name, to_text(value));
  });
  for (uint32_t f = 1; f < kFaultCount; ++f) {
    const uint32_t rate = plan.world.faults.of(static_cast<Fault>(f));
    if (rate != 0) text.emplace_back(kFaultPrefix + std::to_string(f), to_text(rate));
  }
  return text;
}

bool set_plan(Plan& plan, const std::string& name, uint64_t value) {
  bool known = false;
  visit_plan(plan, [&](const char* field, uint64_t, auto&& set) {
    if (name != field) return;
    set(value);
    known = true;
  });
  uint64_t fault = 0;
  if (!known && name.rfind(kFaultPrefix, 0) == 0 && from_text(name.substr(6), fault) &&
      fault < kFaultCount) {
    plan.world.faults.set(static_cast<Fault>(fault), static_cast<uint32_t>(value));
    known = true;
  }
  return known;
}

Result<Done> read_plan(const PlanText& text, Plan& plan) {
  plan.world.faults = FaultRates{};
  for (const auto& [name, written] : text) {
    uint64_t value = 0;
    if (!from_text(written, value)) {
      return Error{ErrorCode::kInvalidArgument,
                   "setting " + name + ": '" + written + "' is no number"};
    }
    if (!set_plan(plan, name, value))
      return Error{ErrorCode::kInvalidArgument, "no setting '" + name + "' in this build"};
  }
  return Done{};
}

}  // namespace weightlane::sim
