// The two phases, and what each ends with.
#include "sim/schedule.h"

#include <algorithm>

#include "sim/data_plane.h"

namespace weightlane::sim {
namespace {

constexpr StreamId kServerFate = stream_of(kWorldHost, Subsystem::kWorkload);
constexpr SpanRange kServerPause{millis(500), seconds(15)};
constexpr StreamId kCore = stream_of(kWorldHost, Subsystem::kProgram);

// The seed whose schedule runs on this thread, for failed assertions.
struct Running {
  uint64_t seed = 0;
  World* world = nullptr;
};
thread_local Running running;

std::string describe_running() {
  if (running.world == nullptr) return "no schedule is running";
  const HostId host = running.world->current_host();
  return "seed " + std::to_string(running.seed) + ", " +
         std::to_string(running.world->now().count) + " ns of virtual time, host " +
         running.world->host(host).place().name;
}

}  // namespace

Schedule::Schedule(const Plan& plan, Options options)
    : plan_(plan),
      choices_(plan.seed, options),
      world_(plan_.world, choices_),
      checkers_(world_, plan_),
      workload_(&world_, &checkers_, &plan_),
      server_alarm_(world_, &Schedule::on_server_alarm, this),
      events_left_(uint64_t{plan.step_limit_k} * 1000) {
  checkers_.record_faults(options.record);
  running = {plan.seed, &world_};
  set_assert_context(&describe_running);
}

// The processes go while those who watch them are still there.
Schedule::~Schedule() {
  injector_.reset();
  for (uint32_t h = 1; h < world_.host_count(); ++h)
    world_.host({h}).crash(CrashKind::kMemoryFirst);
  running = {};
}

template <typename Predicate>
bool Schedule::run_for(Nanos span, Predicate stop) {
  const Nanos until = world_.now() + span;
  uint64_t steps = 0;
  const StopReason why = world_.run_until(until, events_left_, [&] {
    ++steps;
    return stop();
  });
  events_left_ -= std::min(events_left_, steps);
  if (why == StopReason::kDeadlock) {
    checkers_.violate("P6", "deadlock: nothing runnable, no timer; " + world_.waiting_report());
  } else if (why == StopReason::kEvents) {
    checkers_.violate("P6", "livelock: " + std::to_string(plan_.step_limit_k) +
                                "000 steps and no end; " + world_.waiting_report());
  }
  return why == StopReason::kPredicate;
}

// One trouble after the other: a server crashes and comes back empty, or stands still for a while.
void Schedule::on_server_alarm(void* self) {
  auto* schedule = static_cast<Schedule*>(self);
  if (schedule->world_.healed()) return;
  Choices& choices = schedule->choices_;
  Workload& workload = schedule->workload_;
  if (schedule->server_down_.has_value()) {
    workload.start_server(*std::exchange(schedule->server_down_, std::nullopt));
    schedule->plan_server_crash();
    return;
  }
  const uint32_t victim = choices.choose(kServerFate, "server.which", schedule->plan_.servers);
  const bool pauses = choices.chance(kServerFate, "server.pauses", 300'000);
  Host& server = schedule->world_.host(workload.server_host(victim));
  ++schedule->server_crashes_;
  if (!server.alive()) return schedule->plan_server_crash();
  if (pauses) {
    const int64_t span = choices.log_uniform(kServerFate, "server.pause", kServerPause.least.count,
                                             kServerPause.most.count);
    schedule->world_.fault_happened(Fault::kPause, server.id(), kWorldHost);
    server.pause(Nanos{span});
    return schedule->plan_server_crash();
  }
  workload.crash_server(victim);
  schedule->server_down_ = victim;
  const int64_t back =
      choices.log_uniform(kServerFate, "server.back", millis(1).count, seconds(20).count);
  schedule->server_alarm_.arm(schedule->world_.now() + Nanos{back});
}

void Schedule::plan_server_crash() {
  if (server_crashes_ >= plan_.server_crashes) return;
  const int64_t at =
      choices_.log_uniform(kServerFate, "server.crash", millis(20).count, seconds(10).count);
  server_alarm_.arm(world_.now() + Nanos{at});
}

Outcome Schedule::run() {
  workload_.start();
  phase_one();
  if (!checkers_.violation()) {
    heal();
    settle();
  }
  if (!checkers_.violation()) meet();
  if (!checkers_.violation()) fresh_replica();
  if (!checkers_.violation()) close_all();
  if (!checkers_.violation()) look_for_leaks();
  Outcome outcome;
  outcome.seed = plan_.seed;
  outcome.hash = world_.hash();
  outcome.events = world_.counts().total();
  outcome.heartbeats = world_.counts().polls;
  outcome.busy_events =
      outcome.events - std::min(outcome.events, outcome.heartbeats * kEventsPerPollMessage);
  outcome.transfers = checkers_.transfers();
  outcome.ended = world_.now();
  outcome.violation = checkers_.violation();
  return outcome;
}

void Schedule::phase_one() {
  injector_ = std::make_unique<FaultInjector>(world_, InjectorConfig{}, workload_);
  injector_->start();
  plan_server_crash();
  run_for(plan_.habits.limit, [this] { return workload_.has_run(); });
  if (!checkers_.violation()) checkers_.check_bounds();
}

// A core is healed, the rest is lost: half of that crashes, half freezes, which is worse: a frozen
// process still serves READs.
void Schedule::heal() {
  injector_->heal(plan_.core_all != 0);
  world_.heal();
  healed_at_ = world_.now();
  for (uint32_t i = 0; i < plan_.servers; ++i) {
    // A server that is lost for good, as long as another is left.
    const bool lost = plan_.core_all == 0 && i + 1 < plan_.servers &&
                      choices_.chance(kCore, "core.server_lost", 200'000);
    if (lost)
      world_.host(workload_.server_host(i)).crash(CrashKind::kMachine);
    else
      workload_.start_server(i);
  }
  for (uint32_t h = 1; h < world_.host_count(); ++h) {
    Host& host = world_.host({h});
    if (workload_.is_server(host.id())) continue;
    bool loses = !host.alive();
    if (plan_.core_all == 0 && host.alive()) {
      loses = choices_.chance(kCore, "core.lost", 200'000);
      if (loses && choices_.chance(kCore, "core.frozen", 500'000)) {
        host.pause(seconds(1'000'000));
      } else if (loses) {
        host.crash(CrashKind::kMachine);
      }
    }
    if (!loses) continue;
    lost_.push_back(host.id());
    workload_.lose(host.id());
  }
}

void Schedule::settle() {
  workload_.enter(Stage::kSettle);
  // With a whole copy in reach, a call for the latest that was under way has no more to wait for
  // than the bound, whatever its time-out.
  const Nanos healed = world_.now();
  const bool held = workload_.someone_holds();
  const Nanos bound = workload_.call_bound() + plan_.server.missing_member;
  const auto at_rest = [this] { return workload_.busy() == 0; };
  if (run_for(bound, at_rest) || checkers_.violation()) return;
  const std::string late = workload_.waiting_for_latest(healed);
  if (held && workload_.someone_holds() && !late.empty()) {
    checkers_.violate("P6", "since the last fault a whole copy is there, but these wait: " + late);
    return;
  }
  // What waits for a version that nobody has, or for a shard that stays away, may wait its time
  // out, and then the group goes on.
  const Nanos patience = plan_.habits.patience + plan_.server.missing_member;
  // Three calls, one after the other, may each do so.
  for (int call = 0; call < 3; ++call) {
    if (run_for(workload_.call_bound() + patience, at_rest) || checkers_.violation()) return;
  }
  checkers_.check_bounds();
  if (checkers_.violation()) return;
  checkers_.violate("P6", "after the last fault these do not rest: " + workload_.busy_report());
}

// P9: all meet at the first server of the list that is left, and what they hold is visible there.
void Schedule::meet() {
  const Nanos met_by = healed_at_ + workload_.meeting_bound();
  const Nanos span = met_by > world_.now() ? met_by - world_.now() : kZeroNanos;
  const auto met = [this] { return workload_.apart().empty(); };
  if (met() || run_for(span + millis(1), met) || checkers_.violation() || met()) return;
  checkers_.violate("P9", workload_.apart());
}

void Schedule::fresh_replica() {
  const bool must = workload_.someone_holds();
  workload_.start_fresh();
  const bool got = run_for(workload_.call_bound(), [this] { return workload_.fresh_succeeded(); });
  // A holder may yet find out that the server had let it go before the last fault (seed 160270).
  if (got || checkers_.violation() || !must || !workload_.someone_holds()) return;
  checkers_.violate("P6", "a whole copy is there, but a fresh replica could not get it: " +
                              workload_.busy_report());
}

void Schedule::close_all() {
  workload_.enter(Stage::kClose);
  const Nanos patience = workload_.call_bound() * 2;
  const bool closed = run_for(patience, [this] { return workload_.busy() == 0; });
  if (closed || checkers_.violation()) return;
  checkers_.violate("P6", "these did not close: " + workload_.busy_report());
}

// Nothing is retained any more, so nothing is kept in host memory (P11).
void Schedule::look_for_offloads() {
  const auto kept = [this] {
    std::string text;
    for (uint32_t h = 1; h < world_.host_count(); ++h) {
      Host& host = world_.host({h});
      const RetentionChecker& retention = checkers_.retention();
      if (host.state() != HostState::kUp) continue;
      // Memory that something may still land in never comes back, but its registrations do.
      const bool lost = retention.poisoned(host.id());
      if (lost ? host.sim_data().live_registrations() == 0 : retention.bytes(host.id()) == 0)
        continue;
      text += (text.empty() ? "" : ", ") + host.place().name + " " +
              std::to_string(retention.bytes(host.id()));
    }
    return text;
  };
  if (kept().empty()) return;
  const bool emptied =
      run_for(workload_.call_bound() + plan_.server.lease, [&kept] { return kept().empty(); });
  if (emptied || checkers_.violation()) return;
  checkers_.violate("P11", "nobody retains anything, but bytes are kept in host memory: " + kept());
}

void Schedule::look_for_leaks() {
  look_for_offloads();
  if (checkers_.violation()) return;
  for (uint32_t h = 1; h < world_.host_count(); ++h) {
    Host& host = world_.host({h});
    if (host.state() != HostState::kUp) continue;
    const uint32_t left = host.sim_data().live_registrations();
    if (left == 0) continue;
    checkers_.violate("P11", host.place().name + " still has " + std::to_string(left) +
                                 " registrations after every handle was closed");
    return;
  }
  // Frozen and crashed clients are forgotten after their lease.
  const auto empty = [this] { return checkers_.remembered().empty(); };
  if (empty()) return;
  const bool emptied = run_for(plan_.server.lease * 2 + seconds(1), empty);
  if (emptied || checkers_.violation()) return;
  checkers_.violate("P11", "a server did not forget: " + checkers_.remembered());
}

Outcome run_plan(const Plan& plan) {
  Schedule schedule(plan);
  return schedule.run();
}

Outcome run_plan_with(const Plan& plan, ChoiceMode mode, std::span<const Deviation> choices) {
  Schedule schedule(plan, {.mode = mode, .overrides = choices});
  return schedule.run();
}

std::vector<std::string> cast_of(const Plan& plan) {
  Schedule schedule(plan);
  schedule.workload_.start();
  std::vector<std::string> names;
  for (uint32_t h = 0; h < schedule.world_.host_count(); ++h)
    names.push_back(schedule.world_.host({h}).place().name);
  return names;
}

}  // namespace weightlane::sim
