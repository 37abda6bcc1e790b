// SimHostMemory: a simulated process's memory for what it keeps for others.
#pragma once

#include "net/host_memory.h"
#include "sim/host.h"
#include "sim/memory.h"

namespace weightlane::sim {

class SimHostMemory final : public net::HostMemory {
 public:
  explicit SimHostMemory(Host* host) : host_(host) {}
  Result<net::MemoryRange> allocate(uint64_t bytes) override {
    return net::MemoryRange{host_->memory().allocate(bytes), bytes, net::Device::kHost, 0};
  }
  void release(net::MemoryRange range) override { host_->memory().free(range.address); }

 private:
  Host* host_;
};

}  // namespace weightlane::sim
