// MemoryRegistry: which memory of this process a plane may read and write, under which id.
//
// The application's ranges and the plane's own words (control blocks, landing words). A thread that
// is about to touch a region takes a RegionUse, range-checked, and keeps it while it does; remove()
// first makes new uses impossible, lets those at work stop between two pieces, then makes their
// users stop, and waits for the last of them. So when it has returned nothing of ours touches the
// range, whatever a peer does.
//
// Ids are never reused in a process, so a stale id names nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "flow/result.h"
#include "flow/signal.h"
#include "flow/task.h"
#include "net/data_plane.h"
#include "prod/event_loop.h"
#include "prod/shared_memory.h"

namespace weightlane::prod {

// Who uses regions: one end of a connection.
class RegionUser {
 public:
  // It holds on to a region that is being removed: give every use back soon, whatever peers do.
  // Called on the loop's thread with the registry locked: must only shut sockets and set flags.
  virtual void stop_using_region() = 0;

 protected:
  ~RegionUser() = default;
};

class MemoryRegistry;

// While it lives, [data, data + length) stays registered. Any thread may hold and release it.
class RegionUse {
 public:
  RegionUse() = default;
  RegionUse(RegionUse&& other) noexcept = default;
  RegionUse& operator=(RegionUse&& other) noexcept;
  ~RegionUse() { release(); }

  explicit operator bool() const { return hold_ != nullptr; }
  uint8_t* data() const { return data_; }
  uint64_t length() const { return length_; }
  // Whether remove() waits for this use: stop between two pieces.
  bool unwanted() const;
  void release();

 private:
  friend class MemoryRegistry;
  struct Hold;
  struct HoldDeleter {
    void operator()(Hold* hold) const;
  };
  std::unique_ptr<Hold, HoldDeleter> hold_;
  uint8_t* data_ = nullptr;
  uint64_t length_ = 0;
};

class MemoryRegistry {
 public:
  // `arenas` (may be null) is where words are allocated, so that peers can map them. Both outlive
  // it.
  MemoryRegistry(EventLoop& loop, SharedArenas* arenas);
  ~MemoryRegistry();
  MemoryRegistry(const MemoryRegistry&) = delete;
  MemoryRegistry& operator=(const MemoryRegistry&) = delete;

  // Host memory that is mapped from end to end. kInvalidArgument.
  Result<net::RegionId> add(net::MemoryRange range);
  // Unknown ids are ignored. `registry` outlives the task.
  static flow::Task<void> remove(MemoryRegistry* registry, net::RegionId region);
  // Without waiting: for owners of memory that stays mapped. Uses that exist go on.
  void forget(net::RegionId region);

  Result<net::RegionId> allocate_words(uint32_t count);
  // Words that somebody else owns, and frees after free_words().
  net::RegionId adopt_words(net::MemoryRange words);
  void free_words(net::RegionId words);
  void store_word(net::RegionId words, uint32_t index, uint64_t value);
  uint64_t load_word(net::RegionId words, uint32_t index) const;

  // Thread-safe. The whole region; nothing when the id is not registered (any more).
  std::optional<net::MemoryRange> find(net::RegionId region) const;
  // Thread-safe. Empty when the id is unknown, or the range is not all inside. `user` (may be null)
  // outlives the use.
  RegionUse use(net::RegionId region, uint64_t offset, uint64_t length, RegionUser* user);

  // On a helper thread. kInvalidArgument: not (any more) a registered range. `registry` outlives
  // it.
  static flow::Task<Result<uint64_t>> checksum(MemoryRegistry* registry, net::RegionId region,
                                               uint64_t offset, uint64_t length);

  size_t size() const;

 private:
  friend class RegionUse;
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace weightlane::prod
