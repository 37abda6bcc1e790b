// Worker processes for campaigns: each schedule runs in one of J children, so a core each, and a
// schedule that breaks an assertion or loops for ever costs its child and no more.
//
// Children talk to the parent through one block of shared memory of plain values; no pipes, no
// locks: every child writes its own slot, and the next seed is handed out by one atomic counter.
// A child notes the seed that it is about to run, so the parent knows whose death it was.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <new>
#include <type_traits>

#include "flow/assert.h"

namespace weightlane::sim {

void* map_shared(size_t bytes);
void unmap_shared(void* block, size_t bytes);

// A T in memory shared with children forked after it was made. T is plain: no pointers, no
// destructor.
template <typename T>
class Shared {
  static_assert(std::is_trivially_destructible_v<T>);

 public:
  Shared() : value_(new(map_shared(sizeof(T))) T{}) {}
  ~Shared() { unmap_shared(value_, sizeof(T)); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  T* operator->() { return value_; }
  T& operator*() { return *value_; }

 private:
  T* value_;
};

struct ChildEnd {
  int job = 0;
  bool crashed = false;  // by a signal, or with a status that is not 0
  int signal = 0;        // 0: it exited
  int status = 0;        // with this
};

struct PoolOptions {
  int jobs = 1;
  // Runs in a child, which exits with its value.
  std::function<int(int job)> work;
  // Runs in the parent when a child has gone; true: start another child for the same job.
  std::function<bool(const ChildEnd&)> on_end;
  // Runs in the parent about five times a second; may be empty.
  std::function<void()> on_tick;
  // Asked at each tick: whether the child of this job hangs and shall be killed. May be empty.
  std::function<bool(int job)> hangs;
};

// Returns when all children are gone. With one job and nothing to watch it still forks.
void run_pool(const PoolOptions& options);

}  // namespace weightlane::sim
