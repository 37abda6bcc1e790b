// Fleet: the protocol itself at the paper's scale: a reference server and up to 100,000 GPUs in a
// simulated world, each GPU a process with a ShardHandle of its own.
//
//     Fleet fleet({.shard_bytes = 66 * kGiga, .shards = 16});
//     const uint32_t trainer = fleet.add_replica("trainer");
//     const uint32_t rollout = fleet.add_replica("rollout");
//     fleet.open();
//     fleet.order(trainer, {Verb::kPublish, 1});
//     fleet.settle();
//     fleet.order(rollout, {Verb::kUpdate});
//     fleet.settle();
//     fleet.mean(rollout);   // seconds that its GPUs were stalled by their last call
//
// Nothing is drawn: every span is the config's. Memory is symbolic; what each worker holds after a
// successful call is compared with what was published. A shard is cut into `slices` READs, much
// longer than real ones, so a pipeline's hop, some eight slices, costs more than a real one: times
// are on the safe side.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "ros/server.h"
#include "ros/shard_handle.h"
#include "sim/paper/machine.h"
#include "sim/world.h"

namespace weightlane::sim::paper {

struct FleetConfig {
  uint64_t shard_bytes = 50 * kGiga;
  uint32_t shards = 1;  // of a replica, one GPU each
  uint32_t slices = 512;
  Machine machine{};
  ros::ServerOptions server{};
  ros::HandleOptions handle{};  // the slices and windows are set from `slices`
};

// Where a replica's GPUs stand.
struct ReplicaPlace {
  std::string datacenter = "dc0";
  bool own_machine =
      false;  // begins a machine; else it shares the one begun last while it has room
};

enum class Verb : uint8_t { kPublish, kUnpublish, kReplicate, kUpdate };

struct Order {
  Verb verb = Verb::kUpdate;
  uint64_t version = 0;  // kPublish
};

struct FleetWorker {
  uint32_t replica = 0;
  uint32_t shard = 0;
  std::string name;  // of the replica
  Host* host = nullptr;
  uint64_t memory = 0;
  std::deque<Order> orders;
  flow::Signal* ordered = nullptr;  // in the frame of its task
  bool open = false;
  // The last call.
  Nanos began;
  Nanos ended;
  bool ok = false;
  uint64_t version = 0;  // held
};

class Fleet {
 public:
  explicit Fleet(const FleetConfig& config);
  ~Fleet();
  Fleet(const Fleet&) = delete;
  Fleet& operator=(const Fleet&) = delete;

  uint32_t add_replica(const std::string& name, const ReplicaPlace& place = {});
  // Opens and registers everything that was added since.
  void open();
  // To every shard of the replica; done in the order of giving.
  void order(uint32_t replica, Order order);
  // Until every order was carried out.
  void settle();
  void run_for(Nanos span);
  // One GPU, 1500: one and a half times slower.
  void slow_down(uint32_t replica, uint32_t shard, uint32_t permille);
  // All machines of a replica lose power; its orders are dropped.
  void crash(uint32_t replica);

  // Of the last call, in seconds.
  double mean(uint32_t replica) const;
  double longest(uint32_t replica) const;
  double total(uint32_t replica) const;  // over its GPUs
  bool all_ok(uint32_t replica) const;
  Nanos now() const { return world_->now(); }
  World& world() { return *world_; }
  const ros::Directory* directory() const { return directory_; }

 private:
  static flow::Task<void> serve(Fleet* self);
  static flow::Task<void> live(Fleet* self, FleetWorker* worker);
  static flow::Task<void> carry_out(Fleet* self, FleetWorker* worker, ros::ShardHandle* handle,
                                    Order order);
  ros::OpenOptions open_options(const FleetWorker& worker) const;
  void write(const FleetWorker& worker, uint64_t version);
  void verify(const FleetWorker& worker) const;
  uint64_t tag(const FleetWorker& worker, uint64_t version, uint64_t granule) const;
  uint64_t granules() const;

  FleetConfig config_;
  ChoiceSource choices_;
  std::unique_ptr<World> world_;
  Host* server_ = nullptr;
  std::string address_;
  const ros::Directory* directory_ = nullptr;
  std::vector<std::unique_ptr<FleetWorker>> workers_;
  std::vector<std::vector<FleetWorker*>> replicas_;
  uint32_t machines_ = 0;
  uint32_t room_ = 0;  // on the last machine
  std::string last_datacenter_;
  size_t opened_ = 0;
  uint64_t busy_ = 0;  // workers that open, and orders not yet carried out
};

}  // namespace weightlane::sim::paper
