// HostMemory: where a process puts what it keeps for others (offloads, P5 and P8).
//
// Implemented by the simulator (symbolic memory) and by prod (memory that readers on this machine
// can map). Used on the loop's thread.
#pragma once

#include "flow/result.h"
#include "net/data_plane.h"

namespace weightlane::net {

class HostMemory {
 public:
  virtual ~HostMemory() = default;
  // Page aligned. kResourceExhausted, with what was asked for.
  virtual Result<MemoryRange> allocate(uint64_t bytes) = 0;
  // What allocate() gave, whole; nothing of it is registered any more.
  virtual void release(MemoryRange range) = 0;
};

}  // namespace weightlane::net
