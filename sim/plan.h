// Plan: everything that a seed decides before its world begins to run: the cluster, the tensors,
// the options of the protocol, how the application behaves, which faults may happen how often.
//
// draw_plan() is a pure function of (scenario, seed). A trace file carries the plan as text, so a
// recorded run does not depend on how a later build draws; every field has a name, listed once in
// visit_plan().
//
// Swarm: a seed has its own mix. One in five is quiet; in the others each class of fault is off in
// half of the seeds. Spans of time are drawn around the defaults of ros/options.h and mostly are
// those defaults.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "flow/result.h"
#include "ros/options.h"
#include "sim/config.h"

namespace weightlane::sim {

constexpr uint32_t kShardsMost = 4;
constexpr uint32_t kTrainersMost = 2;
constexpr uint32_t kRolloutsMost = 5;
constexpr uint32_t kTensorsMost = 6;
constexpr uint32_t kServersMost = 3;
constexpr uint32_t kGranulesMost = 64;  // of one tensor

enum class Scenario : uint8_t {
  kDefault,  // the swarm
  kQuiet,    // the same without any fault
  kServer,   // the reference servers crash, come back empty, are paused and cut off
  kChurn,    // processes crash and restart all the time
  kSlow,     // partitions, slow links, pauses: time is what goes wrong
  kReuse,    // restarts reuse addresses, keys and versions (F11)
};
constexpr std::array kScenarios = {Scenario::kDefault, Scenario::kQuiet, Scenario::kServer,
                                   Scenario::kChurn,   Scenario::kSlow,  Scenario::kReuse};
const char* scenario_name(Scenario scenario);
const char* scenario_help(Scenario scenario);
// kInvalidArgument: lists what there is.
Result<Scenario> scenario_named(const std::string& name);

// How the application behaves. Chances are per mille, of each step of a worker.
struct Habits {
  uint32_t rounds = 4;         // versions that a trainer publishes
  Nanos train{0};              // a trainer computes so long between two versions, at most
  Nanos hold{0};               // and keeps a version published so long, at least
  Nanos think{0};              // a rollout worker rests so long between calls, at most
  Nanos limit{0};              // phase 1 ends here, at the latest
  Nanos patience{0};           // the timeout of replicate and update
  uint32_t want_exact = 0;     // replicate(version) instead of latest
  uint32_t want_back = 0;      // latest-k
  uint32_t leave_version = 0;  // a rollout unpublishes
  uint32_t close = 0;          // a worker closes its handle and opens another
  uint32_t unregister = 0;     // unregister, register again
  uint32_t drop_call = 0;      // the caller's task is dropped in mid-call
  uint32_t wrong_state = 0;    // a call that the state does not allow
  uint32_t mismatch = 0;       // a shard makes another call than its group
  uint32_t silent = 0;         // a shard stays away from a call for long
  uint32_t other_layout = 0;   // a replica registers another layout once
  uint32_t list = 0;           // list_replicas
  uint32_t rewind = 0;         // a trainer goes back to an older version
  uint32_t wait = 0;           // wait_for_version
  uint32_t notice = 0;         // a replica on spot machines is told that it has to go
  bool own_tags =
      true;  // each publication has tags of its own; false: the same version, the same tags
};

struct Plan {
  Scenario scenario = Scenario::kDefault;
  uint64_t seed = 0;
  WorldConfig world;
  uint32_t shards = 2;
  uint32_t trainers = 1;
  uint32_t rollouts = 3;
  uint32_t shards_per_host = 1;
  uint32_t tensors = 1;
  std::array<uint32_t, kTensorsMost>
      granules{};  // of each tensor of shard 0; other shards have them rotated
  uint32_t datacenters = 1;
  uint32_t placement = 0;  // two bits for each replica
  ros::ServerOptions server;
  ros::HandleOptions handle;
  Habits habits;
  // Retention (P5): what the trainers' handles retain, which version those of r0 retain (0: none),
  // which replicas are on spot machines (mask), and what a process may keep for others.
  uint32_t retain_latest = 0;
  uint64_t retain_exact = 0;
  uint32_t spot = 0;
  uint32_t offload_drop = 0;  // 1: what cannot be offloaded is let go; 0: it stays published
  uint64_t offload_limit = UINT64_MAX;  // bytes
  uint32_t servers = 1;
  uint32_t server_crashes = 0;   // in phase 1: crashes and pauses of a server
  uint32_t core_all = 1;         // phase 2: every host is healed; 0: some are lost
  uint32_t step_limit_k = 2000;  // thousands of steps after which a run is called a livelock

  uint32_t replicas() const { return trainers + rollouts; }
  bool retains() const { return retain_latest != 0 || retain_exact != 0; }
  // Of the trainers, then the rollouts, then the fresh one. The first trainer is in datacenter 0.
  uint32_t datacenter_of(uint32_t replica) const {
    if (replica == 0 || replica >= 16) return 0;
    return (placement >> replica * 2 & 3) % datacenters;
  }
  bool is_spot(uint32_t replica) const { return replica < 32 && (spot >> replica & 1) != 0; }
  uint64_t shard_granules(uint32_t shard) const;
  uint32_t tensor_granules(uint32_t shard, uint32_t tensor) const {
    return granules[(tensor + shard) % tensors];
  }
};

Plan draw_plan(Scenario scenario, uint64_t seed);

using PlanText = std::vector<std::pair<std::string, std::string>>;
PlanText plan_text(const Plan& plan);
// Overwrites the fields that are named. kInvalidArgument: an unknown name, a value that is no
// number.
Result<Done> read_plan(const PlanText& text, Plan& plan);
// One setting by its name. False: there is none of that name.
bool set_plan(Plan& plan, const std::string& name, uint64_t value);

}  // namespace weightlane::sim
