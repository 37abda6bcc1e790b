// Schedule: one run of one plan, from the empty world to the closed handles.
//
//   phase 1  the workload runs, faults happen, until all versions are published (or time is up);
//   phase 2  faults stop: a core is healed, the rest is lost (crashed, or frozen for good). Within
//            the bound of P6 every call under way returns; all clients are at the first server left
//            (P9); a fresh replica gets the latest version
//            if anybody whole holds one; every handle closes; nothing is left in the data planes,
//            and after the leases nothing in the server.
//
// The outcome is a pure function of (plan, overrides, build).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sim/checkers.h"
#include "sim/plan.h"
#include "sim/workload.h"
#include "sim/world.h"

namespace weightlane::sim {

// Steps and timers of a Poll that brings nothing, by message, at most: an idle cluster shows 2.25
// (determinism_test measures it).
constexpr uint64_t kEventsPerPollMessage = 3;

struct Outcome {
  uint64_t seed = 0;
  uint64_t hash = 0;
  uint64_t events = 0;       // without the messages of heartbeats
  uint64_t busy_events = 0;  // nor the steps and timers that those cause
  uint64_t heartbeats = 0;
  uint64_t transfers = 0;  // completed, of shards
  Nanos ended;
  std::optional<Violation> violation;
};

class Schedule final {
 public:
  struct Options {
    ChoiceMode mode = ChoiceMode::kSeed;
    std::span<const Deviation> overrides;  // see ChoiceSource
    bool record = false;  // keep the choices that were not 0 and the faults, for a trace file
    std::vector<Draw>* census = nullptr;  // see ChoiceSource
  };
  // `plan` is copied.
  explicit Schedule(const Plan& plan, Options options);
  explicit Schedule(const Plan& plan) : Schedule(plan, Options{}) {}
  ~Schedule();
  Schedule(const Schedule&) = delete;
  Schedule& operator=(const Schedule&) = delete;

  // Before run(). None is owned.
  void tell(StoryTeller* story) { checkers_.tell(story); }
  void set_sink(EventSink* sink) { world_.set_sink(sink); }

  Outcome run();

  const Plan& plan() const { return plan_; }
  World& world() { return world_; }
  const std::vector<Deviation>& deviations() const { return choices_.deviations(); }
  const std::vector<std::string>& faults() const { return checkers_.faults_seen(); }

 private:
  friend std::vector<std::string> cast_of(const Plan& plan);
  // Steps until `stop`, a violation, or the time; false: it was not `stop`.
  template <typename Predicate>
  bool run_for(Nanos span, Predicate stop);
  void phase_one();
  void heal();
  void settle();
  void meet();
  void fresh_replica();
  void close_all();
  void look_for_offloads();
  void look_for_leaks();
  void plan_server_crash();
  static void on_server_alarm(void* self);

  // The first draws are made while the world is built.
  struct Choices final : ChoiceSource {
    Choices(uint64_t seed, const Options& options) : ChoiceSource(seed, options.mode) {
      set_overrides(options.overrides);
      set_recording(options.record);
      set_census(options.census);
    }
  };

  Plan plan_;
  Choices choices_;
  World world_;
  Checkers checkers_;
  Workload workload_;
  std::unique_ptr<FaultInjector> injector_;
  Alarm server_alarm_;
  uint32_t server_crashes_ = 0;
  std::optional<uint32_t> server_down_;  // which comes back next
  Nanos healed_at_{0};
  uint64_t events_left_ = 0;
  std::vector<HostId> lost_;
};

// Runs a plan once, with nobody watching.
Outcome run_plan(const Plan& plan);
// The same, its choices laid over the mode's.
Outcome run_plan_with(const Plan& plan, ChoiceMode mode, std::span<const Deviation> choices);

// The names of a plan's processes, by HostId, as they stand before the first step: the world
// itself, the server, trainers, rollouts. The fresh replica of phase 2 comes after these.
std::vector<std::string> cast_of(const Plan& plan);

}  // namespace weightlane::sim
