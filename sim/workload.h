// Workload: the application that a run simulates: trainers that publish version after version, and
// rollout workers that follow them, each shard a worker on its host.
//
// All shards of a replica must make the same n-th call (P3), though each runs for itself and may
// crash and come back: what a worker does next is a pure function of (replica, number of the call,
// what it holds). Now and then a worker does something else on purpose: drops its call, makes
// another one, stays away, closes, calls in a wrong state.
//
// A worker uses its memory whenever the contract gives it to it, and at once: after unpublish, and
// after a failed replicate or update, it scribbles over every tensor.
//
// A run has stages. kRun: faults are on. kSettle: workers finish what their replica has begun;
// trainers that hold nothing publish once more, rollouts that hold nothing ask for the latest.
// kClose: every handle is closed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "flow/signal.h"
#include "ros/offload.h"
#include "ros/queries.h"
#include "ros/server.h"
#include "ros/shard_handle.h"
#include "sim/checkers.h"
#include "sim/fault_injector.h"
#include "sim/plan.h"
#include "sim/world.h"

namespace weightlane::sim {

enum class Stage : uint8_t { kRun, kSettle, kClose };

class Workload final : public HostDirector {
 public:
  // All outlive it; it outlives every life of every host.
  Workload(World* world, Checkers* checkers, const Plan* plan);

  // Adds the hosts and starts them: the server, the trainers, the rollouts.
  void start();
  // One more replica, on hosts of its own, which replicates the latest once.
  void start_fresh();
  void enter(Stage stage);
  void start_server(uint32_t index);
  void crash_server(uint32_t index);
  HostId server_host(uint32_t index) const { return servers_[index].host; }
  bool is_server(HostId host) const;
  // P9: who is not where all should be, or is there and not seen; empty: nobody.
  std::string apart() const;
  // From the last fault until nobody is.
  Nanos meeting_bound() const;

  // Trainers that are there have published all their versions, and the rest had time to follow.
  bool has_run() const { return trainers_left_ == 0 && world_->now() >= followed_at_; }
  // Workers whose process is there and who are not yet where the stage wants them.
  uint32_t busy() const;
  // Those whose process is there and who still wait for the latest version, in a call begun before.
  std::string waiting_for_latest(Nanos before) const;
  // Whether the fresh replica has what it asked for, on every shard.
  bool fresh_succeeded() const;
  // A whole copy is visible, and every process of it is alive.
  bool someone_holds() const;
  Nanos call_bound() const { return bound_; }
  // Workers of this host never come back.
  void lose(HostId host);
  std::string busy_report() const;

  // HostDirector
  void restart(Host& host, bool reuse) override;
  bool may_crash(Host& host) override;

 private:
  enum class Role : uint8_t { kTrainer, kRollout, kFresh };
  enum class Resting : uint8_t { kBusy, kSettled, kClosed };
  struct Worker {
    WorkerId id;
    Role role = Role::kRollout;
    uint32_t replica = 0;
    uint32_t shard = 0;
    Host* host = nullptr;
    StreamId stream;
    bool lost = false;
    bool fresh_done = false;
    uint32_t last_tries = 0;    // calls begun in kSettle
    bool wants_latest = false;  // in a call that any whole copy would end
    uint32_t published = 0;     // versions, by a trainer
    bool finished = false;      // a trainer has published all
    // Of this life.
    Resting resting = Resting::kBusy;
    Nanos latest_since;
    flow::Signal* stage_changed = nullptr;
    ros::OffloadStore* offloads = nullptr;     // of its process
    const ros::ShardHandle* handle = nullptr;  // open
    uint64_t lineage = 0;                      // of its numbers
    std::vector<TensorRow> rows;               // in the order of registration
    bool odd_layout = false;
    bool kept = false;  // unpublished, and the bytes are still those of `last`
    VersionId last;
  };
  struct NumberedVersion {
    uint32_t replica = 0;
    uint64_t group = 0;
    CallNumber number;
    VersionId version;
  };
  enum class StepKind : uint8_t { kRest, kPublish, kPublishAgain, kUnpublish, kReplicate, kUpdate };
  // What a worker does next.
  struct Step {
    StepKind kind = StepKind::kRest;
    VersionId version;
    net::VersionSpec wanted;
    bool keep = false;  // kUnpublish: leave the bytes as they are
  };

  void add_replica(Role role, uint32_t replica, const std::string& name);
  void start_host(Host& host, bool reuse);
  ros::Environment environment(const Worker& worker) const;
  ros::OpenOptions open_options(const Worker& worker) const;

  static flow::Task<void> run_server(Workload* self, uint32_t index);
  static flow::Task<void> run_host(Workload* self, Host* host);
  static flow::Task<void> run_worker(Workload* self, Worker* worker);
  // One open handle: until it is lost or given up.
  static flow::Task<void> run_handle(Workload* self, Worker* worker, ros::ShardHandle* handle);
  static flow::Task<void> make_call(Workload* self, Worker* worker, ros::ShardHandle* handle,
                                    Step step);
  static flow::Task<void> publish(Workload* self, Worker* worker, ros::ShardHandle* handle,
                                  Step step);
  static flow::Task<void> unpublish(Workload* self, Worker* worker, ros::ShardHandle* handle,
                                    Step step);
  static flow::Task<void> receive(Workload* self, Worker* worker, ros::ShardHandle* handle,
                                  Step step);
  static flow::Task<bool> receive_once(Workload* self, Worker* worker, ros::ShardHandle* handle,
                                       Step step, Nanos patience);
  // Things nobody should do, which must do no harm. True: the handle is to be closed.
  static flow::Task<bool> misbehave(Workload* self, Worker* worker, ros::ShardHandle* handle);
  // `noticed`: the machine is taken away after a while.
  static flow::Task<void> close_handle(Workload* self, Worker* worker, ros::ShardHandle* handle,
                                       bool noticed);
  static flow::Task<void> rest(Workload* self, Worker* worker, Nanos span);
  static flow::Task<void> list_once(Workload* self, Worker* worker);
  static flow::Task<void> wait_once(Workload* self, Worker* worker);
  static flow::Task<void> rewind_once(Workload* self, Worker* worker);
  // Its process takes its leave: what it keeps for others is handed over, or lost.
  static flow::Task<void> hand_over(Workload* self, Worker* worker);

  void lay_out_memory(Worker& worker);
  std::vector<ros::TensorSpec> tensors(const Worker& worker) const;
  void write_all(Worker& worker, uint64_t publication_bits);
  void scribble(Worker& worker);
  bool chance(const Worker& worker, const char* name, uint32_t per_mille);
  Nanos drawn_span(const Worker& worker, const char* name, Nanos most);
  VersionId version_for(const Worker& worker, CallNumber number);
  PublicationId publication_for(VersionId version);
  Step next_step(Worker& worker, const ros::ShardHandle& handle);
  Step trainer_step(Worker& worker, CallNumber number, bool holds);
  // kSettle: a rollout that holds nothing asks for the latest, if that can succeed.
  bool asks_at_last(const Worker& worker) const;
  Step rollout_step(Worker& worker, CallNumber number, bool holds);
  void nudge(uint32_t replica);
  void note_trainers();

  World* world_;
  Checkers* checkers_;
  const Plan* plan_;
  Stage stage_ = Stage::kRun;
  struct Server {
    HostId host;
    std::string address;
  };
  std::vector<Server> servers_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<NumberedVersion> versions_;
  std::vector<NumberedVersion> last_asked_;  // calls that asks_at_last() began
  std::vector<std::pair<VersionId, PublicationId>>
      publications_;  // when a version has one set of tags
  uint64_t highest_version_ = 0;
  uint64_t scribbles_ = 0;
  uint32_t trainers_left_ = 0;
  Nanos followed_at_{0};
  Nanos bound_{0};            // of a call, apart from its own time-out
  Nanos hand_back_bound_{0};  // P2
};

}  // namespace weightlane::sim
