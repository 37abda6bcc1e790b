// VerbsMemory: the registrations of one verbs plane, by number. On the loop's thread only.
//
// A number that was deregistered is never used again, so a stale one finds nothing here; a peer's
// stale key is refused by the device (REM_ACCESS), unless the same value came back for other memory
// (S12), which callers seal against.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "flow/result.h"
#include "flow/signal.h"
#include "flow/task.h"
#include "net/data_plane.h"
#include "prod/event_loop.h"
#include "prod/verbs_device.h"

namespace weightlane::prod {

class VerbsMemory {
 public:
  VerbsMemory(EventLoop& loop, std::shared_ptr<VerbsDevice> device)
      : loop_(loop), device_(std::move(device)), released_(loop.runtime()) {}
  ~VerbsMemory();
  VerbsMemory(const VerbsMemory&) = delete;
  VerbsMemory& operator=(const VerbsMemory&) = delete;

  flow::Task<Result<net::RegionId>> add(net::MemoryRange range);
  flow::Task<void> remove(net::RegionId id);
  // Null when there is no such region (any more).
  const VerbsRegion* find(net::RegionId id) const;

  Result<net::RegionId> add_words(uint32_t count);
  // Words in memory that stays another's.
  Result<net::RegionId> adopt_words(net::MemoryRange words);
  void remove_words(net::RegionId id);
  // The word must exist.
  uint64_t* word(net::RegionId id, uint32_t index) const;

  flow::Task<Result<uint64_t>> checksum(net::RegionId id, uint64_t offset, uint64_t length);
  // Computes on a helper thread and calls `done` on the loop's; remove() waits for it. The range
  // must be inside the region, and in host memory. `done` must own what it touches.
  void checksum_then(net::RegionId id, uint64_t offset, uint64_t length,
                     std::function<void(uint64_t)> done);

 private:
  struct Entry {
    std::shared_ptr<VerbsRegion> region;
    uint32_t readers = 0;  // helper threads that read the memory now
    uint64_t* words = nullptr;
    bool owns_words = false;
  };
  Result<net::RegionId> register_words(uint64_t* words, uint64_t bytes, bool owned);
  void release(net::RegionId id);

  EventLoop& loop_;
  std::shared_ptr<VerbsDevice> device_;
  uint64_t last_id_ = 0;
  std::unordered_map<uint64_t, Entry> entries_;
  std::unordered_map<uint64_t, Entry> leaving_;  // being removed, still read by helpers
  flow::Signal released_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace weightlane::prod
