// A small world with everything in it but the protocol: what the swarm test and the benchmark run.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "sim/fault_injector.h"
#include "tests/sim/core_fixture.h"

namespace weightlane::sim {

struct SwarmResult {
  uint64_t hash = 0;
  uint64_t events = 0;
  uint64_t reads_succeeded = 0;
  std::string violations;
  FaultHits faults;
};

class Recorder final : public EventSink {
 public:
  explicit Recorder(std::vector<EventRecord>& events) : events_(events) {}
  void on_event(const EventRecord& record) override { events_.push_back(record); }

 private:
  std::vector<EventRecord>& events_;
};

// Runs one such world to its end, with config and faults drawn from `choices`.
SwarmResult run_swarm(ChoiceSource& choices, EventSink* sink = nullptr);

}  // namespace weightlane::sim
