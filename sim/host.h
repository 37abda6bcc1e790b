// Host: one simulated process, and the flow::Runtime of everything that runs in it.
//
// A Host is a slot that lives as long as the world; the process in it has lives. start() begins one
// with a main task; crash() ends it: the host is dead first (so destructors reach nothing outside),
// then its tasks are cancelled, latest spawned first, then its memory goes. Everything that a
// process owns must be owned by its tasks.
//
// A paused process (F12) runs no task and hears no timer and no message, all of which wait in
// order; its memory is still read by others.
//
// now() is skewed: the world's time scaled by a drift and moved by an offset, both drawn per life.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "flow/runtime.h"
#include "flow/task_set.h"
#include "net/control_plane.h"
#include "net/data_plane.h"
#include "sim/config.h"
#include "sim/memory.h"
#include "sim/timer_queue.h"

namespace weightlane::sim {

class World;
class SimControlPlane;
class SimDataPlane;

enum class HostState : uint8_t { kDown, kUp, kPaused };

enum class CrashKind : uint8_t {
  kMemoryFirst,     // peers' READs fail with REM_ACCESS at once
  kQueuePairFirst,  // peers' READs fail with RETRY_EXC after their retry time
  kMachine,         // as above, and nothing tells the peers' control connections either
};

class Host final : public flow::Runtime {
 public:
  Host(World& world, HostId id, HostPlace place);
  ~Host() override;
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  HostId id() const { return id_; }
  uint32_t life() const { return life_; }  // 0 before the first start
  HostState state() const { return state_; }
  bool alive() const { return state_ != HostState::kDown; }
  // Down because its whole machine went: nobody answers in its name.
  bool machine_gone() const { return !alive() && last_crash_ == CrashKind::kMachine; }
  CrashKind last_crash() const { return last_crash_; }
  bool paused() const { return state_ == HostState::kPaused; }
  const HostPlace& place() const { return place_; }
  World& world() { return world_; }

  net::ControlPlane& control();
  net::DataPlane& data();
  SimDataPlane& sim_data() { return *data_; }
  SimControlPlane& sim_control() { return *control_; }
  Memory& memory() { return *memory_; }
  // Text for ControlPlane::serve and connect: "h3:7000".
  std::string address(uint32_t port) const;

  // Begins a life. `reuse` (F11): it hands out the addresses, keys and queue pair numbers of the
  // life before.
  void start(flow::Task<void> main, const char* name, bool reuse = false);
  // Ends the life at this instant. Not from the host's own tasks: those call exit().
  void crash(CrashKind kind);
  // Ends the life at the next event; for the host's own tasks.
  void exit();
  void pause(Nanos span);
  void resume();
  // So many times slower, its NIC (F29); 1 = normal.
  void set_slowdown(uint32_t factor);

  size_t live_tasks() const { return tasks_.size(); }
  // visit(const char* name) for every spawned task that has not ended.
  template <typename Visit>
  void for_each_task(Visit visit) const {
    tasks_.for_each_name(visit);
  }
  // The world's time at which this host's clock shows `local`; and back.
  Nanos to_world(Nanos local) const;
  Nanos to_local(Nanos world_time) const;

  // flow::Runtime
  Nanos now() const override;
  uint64_t random() override;
  void probe(const flow::ProbePoint& point) override;
  void trace(const flow::TraceEvent& event) override;
  void spawn(flow::Task<void> task, const char* name) override;
  void make_ready(flow::ReadyNode& node) override;
  void cancel_ready(flow::ReadyNode& node) override;
  void arm_timer(flow::TimerNode& node, Nanos when) override;
  void disarm_timer(flow::TimerNode& node) override;

 private:
  friend class World;
  void draw_clock();
  void end_life(CrashKind kind);
  void unpark_timers();

  World& world_;
  HostId id_;
  HostPlace place_;
  HostState state_ = HostState::kDown;
  uint32_t life_ = 0;
  CrashKind last_crash_ = CrashKind::kMemoryFirst;
  int64_t clock_offset_ = 0;
  int64_t clock_drift_ = 0;       // a fraction, 40 bits behind the point
  int64_t clock_drift_back_ = 0;  // drift / (1 + drift)
  Nanos clock_origin_;            // the world's time of this life's start
  Alarm resume_alarm_;
  Alarm exit_alarm_;
  ReadyList parked_ready_;  // while paused
  std::vector<TimerQueue::Entry> parked_timers_;
  std::unique_ptr<Memory> memory_;
  std::unique_ptr<SimControlPlane> control_;
  std::unique_ptr<SimDataPlane> data_;
  flow::TaskSet tasks_;  // after all that its tasks use
};

}  // namespace weightlane::sim
