// The two system calls behind KjRuntime.
#include "prod/kj_runtime.h"

#include <sys/random.h>
#include <time.h>

namespace weightlane::prod {

Nanos monotonic_now() {
  timespec time{};
  WL_ASSERT(clock_gettime(CLOCK_MONOTONIC, &time) == 0);
  return Nanos{static_cast<int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec};
}

uint64_t os_random() {
  uint64_t value = 0;
  WL_ASSERT(getrandom(&value, sizeof value, 0) == static_cast<ssize_t>(sizeof value));
  return value;
}

}  // namespace weightlane::prod
