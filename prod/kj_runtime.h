// KjRuntime: flow's Runtime in production. Its queue and timers are flow::LoopRuntime's; this adds
// the host's monotonic clock, a seed from the operating system, and a place for the story to go.
//
// EventLoop drives it. Nothing else should.
#pragma once

#include <functional>
#include <utility>

#include "flow/loop.h"

namespace weightlane::prod {

// CLOCK_MONOTONIC.
Nanos monotonic_now();
// 64 bits from the operating system.
uint64_t os_random();

class KjRuntime final : public flow::LoopRuntime {
 public:
  explicit KjRuntime(std::function<void(const flow::TraceEvent&)> on_trace)
      : LoopRuntime(os_random()), on_trace_(std::move(on_trace)) {}
  ~KjRuntime() override { cancel_tasks(); }

  Nanos now() const override { return monotonic_now(); }
  void trace(const flow::TraceEvent& event) override {
    if (on_trace_) on_trace_(event);
  }
  bool has_ready() const { return loop().ready_count() > 0; }
  Nanos next_timer_time() const { return loop().next_timer_time(); }
  void cancel_spawned() { cancel_tasks(); }

 private:
  std::function<void(const flow::TraceEvent&)> on_trace_;
};

}  // namespace weightlane::prod
