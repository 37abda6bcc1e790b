// ArenaMemory: a process's memory for what it keeps for others (net::HostMemory), as memory that
// readers on this machine can map.
#pragma once

#include <map>

#include "net/host_memory.h"
#include "prod/shared_memory.h"

namespace weightlane::prod {

class ArenaMemory final : public net::HostMemory {
 public:
  // Outlives it.
  explicit ArenaMemory(SharedArenas* arenas) : arenas_(arenas) {}

  Result<net::MemoryRange> allocate(uint64_t bytes) override {
    Result<SharedMemory> memory = SharedMemory::allocate(*arenas_, bytes);
    if (!memory) return memory.error();
    const auto address = reinterpret_cast<uint64_t>(memory->data());
    taken_.emplace(address, std::move(*memory));
    return net::MemoryRange{address, bytes, net::Device::kHost, 0};
  }
  void release(net::MemoryRange range) override { taken_.erase(range.address); }

 private:
  SharedArenas* arenas_;
  std::map<uint64_t, SharedMemory> taken_;  // by address
};

}  // namespace weightlane::prod
