// The driving of the two runtimes over a Loop.
#include "flow/loop.h"

namespace weightlane::flow {

bool LoopRuntime::turn(size_t limit) {
  const size_t fired = loop_.fire_timers(now());
  size_t resumed = 0;
  while (resumed < limit && loop_.run_ready_one()) ++resumed;
  return fired + resumed > 0;
}

bool ManualRuntime::step(Nanos until) {
  if (core().run_ready_one()) return true;
  const Nanos next = core().next_timer_time();
  if (next == kForever || next > until) return false;
  if (next > now_) now_ = next;
  core().fire_timers(now_);
  return true;
}

void ManualRuntime::run() {
  while (step()) {
  }
}

void ManualRuntime::run_until(Nanos when) {
  while (step(when)) {
  }
  if (when > now_) now_ = when;
}

}  // namespace weightlane::flow
