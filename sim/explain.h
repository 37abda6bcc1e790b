// What a failing run is made of, in words: which choices are not the dull ones, what each means and
// when it fell, which faults, and what the plan is.
#pragma once

#include <string>
#include <vector>

#include "sim/choices.h"
#include "sim/events.h"
#include "sim/schedule.h"

namespace weightlane::sim {

// Notes when each choice that was not 0 was drawn. Watches a schedule that records, as its sink;
// hands every event on to `next`, if there is one.
class ChoiceClock final : public EventSink {
 public:
  ChoiceClock(const Schedule& schedule, EventSink* next) : schedule_(schedule), next_(next) {}
  void on_event(const EventRecord& record) override {
    times_.resize(schedule_.deviations().size(), record.at);
    if (next_ != nullptr) next_->on_event(record);
  }
  // Of the i-th deviation: the time of the first event after it.
  Nanos at(size_t i) const { return i < times_.size() ? times_[i] : kForever; }

 private:
  const Schedule& schedule_;
  EventSink* next_;
  std::vector<Nanos> times_;
};

// One choice: "a message of r0-1 takes 12 times the least delay". `hosts`: names by HostId.
std::string choice_words(const Deviation& choice, const std::vector<std::string>& hosts);

// "3 shards x (1 trainer + 2 rollouts), ...".
std::string plan_words(const Plan& plan);

// The closing of explain and shrink: "FIFO except these k choices: ...; faults: ...". `clock` may
// be null.
std::string schedule_words(Schedule& schedule, const ChoiceClock* clock);

}  // namespace weightlane::sim
