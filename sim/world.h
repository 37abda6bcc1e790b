// World: one simulated run. Single thread, virtual time; owns the hosts, the network, both planes
// and the two queues.
//
//     ChoiceSource choices(seed);
//     World world(config, choices);
//     Host& server = world.add_host({.name = "server"});
//     server.start(run_server(&server), "server");
//     StopReason why = world.run_until(seconds(60), 100'000, [&] { return finished; });
//
// A step runs one ready coroutine, drawn by the seed's ready order, or else fires the earliest
// timer, which moves the time. Every event goes into a rolling hash: same config, same choices,
// same program: same hash, whatever the build.
//
// Host 0 is the world itself: tasks of the fault injector and of the campaign's driver run there,
// on the true clock.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sim/bandwidth.h"
#include "sim/choices.h"
#include "sim/config.h"
#include "sim/events.h"
#include "sim/hash.h"
#include "sim/host.h"
#include "sim/network.h"
#include "sim/observer.h"
#include "sim/probes.h"
#include "sim/timer_queue.h"

namespace weightlane::sim {

class ControlNet;
class DataNet;

enum class StopReason : uint8_t {
  kPredicate,  // the predicate came true
  kStopped,    // request_stop()
  kTime,       // the time was reached: everything before it has happened
  kEvents,     // so many events without any of the above
  kDeadlock,   // nothing runnable, no timer
};

class World {
 public:
  // `choices` outlives the world.
  World(const WorldConfig& config, ChoiceSource& choices);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // Cancels every task of every host, silently. For owners of what tasks point to; the destructor
  // does it anyway.
  void end();

  // Before or during the run; at most TimerQueue::kHostLimit - 1. The host is down until it is
  // started.
  Host& add_host(HostPlace place);
  Host& host(HostId id) { return *hosts_[id.value]; }
  uint32_t host_count() const {
    return static_cast<uint32_t>(hosts_.size());
  }  // with the world itself
  flow::Runtime& runtime() { return *hosts_[0]; }  // of the world itself

  const WorldConfig& config() const { return config_; }
  ChoiceSource& choices() { return choices_; }
  Nanos now() const { return now_; }

  // One step; false: nothing runnable and no timer.
  bool step();
  // Steps until one of StopReason. `stop` is asked after every step; `time` is the world's.
  template <typename Predicate>
  StopReason run_until(Nanos time, uint64_t max_events, Predicate stop) {
    for (uint64_t events = 0; events < max_events; ++events) {
      if (now_ > time) return StopReason::kTime;
      if (ready_.empty()) {
        if (timers_.empty()) return StopReason::kDeadlock;
        if (timers_.top_time() > time.count) return advance_to(time);
      }
      step();
      if (stop_requested_) return StopReason::kStopped;
      if (stop()) return StopReason::kPredicate;
    }
    return StopReason::kEvents;
  }
  StopReason run_until(Nanos time, uint64_t max_events) {
    return run_until(time, max_events, [] { return false; });
  }
  // For checkers: the run ends after this step.
  void request_stop() { stop_requested_ = true; }
  // Who waits: every host with its state and its live tasks, one line each. For deadlock and P6
  // reports.
  std::string waiting_report() const;

  // Paths. Cuts of tests and of the injector; both planes hear of every change.
  Network& network() { return network_; }
  const Network& network() const { return network_; }
  CutId cut(Cut cut);
  void mend(CutId id);
  // Faults stop for good: paths mended, speeds normal, paused hosts run, all rates 0. What is down
  // stays down.
  void heal();
  bool healed() const { return healed_; }
  // Draws a fault of the given stream; always false after heal().
  bool fault(StreamId stream, Fault fault) {
    const uint32_t rate = healed_ ? 0 : config_.faults.of(fault);
    const bool drawn = choices_.chance(stream, fault_name(fault), rate);
    return drawn && !healed_;  // an override of another schedule may fall after heal()
  }

  // Observation. Null: nobody. Not owned.
  void set_observer(WorldObserver* observer) { observer_ = observer; }
  void set_sink(EventSink* sink) { sink_ = sink; }
  WorldObserver* observer() { return observer_; }
  uint64_t hash() const { return hash_.value(); }
  const EventCounts& counts() const { return counts_; }
  EventCounts& mutable_counts() { return counts_; }
  void event(EventKind kind, HostId host, uint64_t a, uint64_t b, uint64_t c) {
    hash_.add(static_cast<uint64_t>(now_.count));
    hash_.add(a ^ static_cast<uint64_t>(kind) << 56 ^ static_cast<uint64_t>(host.value) << 48);
    hash_.add(b);
    hash_.add(c);
    if (sink_ != nullptr) [[unlikely]]
      sink_->on_event({now_, kind, host, a, b, c});
  }
  // Something of the campaign's that must be the same in both runs.
  void mark(HostId host, uint64_t a, uint64_t b, uint64_t c) {
    event(EventKind::kMark, host, a, b, c);
  }
  void fault_happened(Fault fault, HostId host, HostId other);
  void probe_outcome(Fault fault, WorkOutcome outcome) { ++fault_hits_.at(fault, outcome); }
  void count_probe(const flow::ProbePoint& point);
  // Hits of points given to Runtime::probe, by id; and of fault x outcome.
  const std::vector<uint32_t>& probe_hits() const { return probe_hits_; }
  const FaultHits& fault_hits() const { return fault_hits_; }

  // Takes a timer back, armed or parked.
  void disarm(flow::TimerNode& node);
  TimerQueue& timers() { return timers_; }
  ControlNet& control_net() { return *control_net_; }
  DataNet& data_net() { return *data_net_; }
  Bandwidth& bandwidth() { return bandwidth_; }
  // The host whose code runs at this moment, for assertions.
  HostId current_host() const { return current_host_; }

 private:
  friend class Host;
  void run_ready();
  void fire_timer();
  flow::ReadyNode* pick();
  flow::ReadyNode* pick_pct();
  flow::ReadyNode* pick_starving();
  StopReason advance_to(Nanos time);
  void draw_order();
  HostId starved();
  void hold_up_starved();

  WorldConfig config_;
  ChoiceSource& choices_;
  Nanos now_;
  RollingHash hash_;
  EventCounts counts_;
  uint64_t step_count_ = 0;
  bool stop_requested_ = false;
  bool healed_ = false;
  HostId current_host_;
  WorldObserver* observer_ = nullptr;
  EventSink* sink_ = nullptr;
  std::vector<uint32_t> probe_hits_;
  FaultHits fault_hits_;

  TimerQueue timers_;
  ReadyList ready_;
  std::vector<int64_t> pct_priority_;       // by host; greater runs first
  std::vector<uint32_t> pct_change_steps_;  // ascending
  int64_t pct_lowest_ = 0;
  HostId starved_;
  Alarm starve_alarm_;

  Network network_;
  Bandwidth bandwidth_;
  std::unique_ptr<ControlNet> control_net_;
  std::unique_ptr<DataNet> data_net_;
  std::vector<std::unique_ptr<Host>> hosts_;
};

}  // namespace weightlane::sim
