// Memory: the symbolic memory of one simulated process.
//
// A range is a row of granules (DataConfig::granule_bytes each), and a granule holds one 64-bit tag
// that the application writes and READs carry: TB-scale shards cost 8 bytes a granule. In
// real-bytes mode each granule also has kRealBytes bytes, derived from the tag on a whole write,
// which READs copy and checksums cover.
//
// Addresses are of this process's life: a crash frees everything, and the next life may hand out
// the same addresses for other things (F11). READs never touch a freed range: they fail at the
// registration first.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "flow/time.h"
#include "sim/choices.h"

namespace weightlane::sim {

class World;

constexpr uint32_t kRealBytes = 64;
using GranuleBytes = std::array<uint8_t, kRealBytes>;

struct Granule {
  uint64_t tag = 0;  // 0: never written
};

class Memory {
 public:
  Memory(World& world, HostId host);
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  // A new range of `bytes`, a multiple of granule_bytes or not (the last granule is short then);
  // all tags 0.
  uint64_t allocate(uint64_t bytes);
  void free(uint64_t address);

  // One granule, as the application would write it: whole, at this instant. `address` is that of
  // the granule.
  void write(uint64_t address, uint64_t tag);
  // The first half of a write: readers see a mix of the old and the new until write() follows
  // (F15).
  void write_torn(uint64_t address, uint64_t tag);
  // `count` granules from `address` on, tags[i] each.
  void write(uint64_t address, std::span<const uint64_t> tags);
  uint64_t read(uint64_t address) const;
  // Of `bytes` from `address` on: the same function as ReadWork::want_checksum over them.
  uint64_t checksum(uint64_t address, uint64_t bytes) const;

  uint64_t granule_bytes() const { return granule_bytes_; }
  uint64_t bytes_allocated() const { return bytes_allocated_; }

  // For the data plane. A position in a range that is found once and then indexed.
  struct Range {
    uint64_t address = 0;
    uint64_t bytes = 0;
    bool live = false;
    Nanos written{-1};  // by the application, last
    std::vector<uint64_t> tags;
    std::vector<GranuleBytes> real;  // real-bytes mode
  };
  static constexpr uint32_t kNoRange = ~0u;
  // The live range that contains [address, address + bytes), or kNoRange.
  uint32_t find(uint64_t address, uint64_t bytes) const;
  Range& range(uint32_t index) { return ranges_[index]; }
  const Range& range(uint32_t index) const { return ranges_[index]; }
  uint64_t checksum(const Range& range, uint64_t first_granule, uint64_t count) const;
  // A READ places a granule; `real` is null unless in real-bytes mode.
  void place(Range& range, uint64_t granule, uint64_t tag, const GranuleBytes* real);
  // A crash: everything is gone. `reuse`: the next life's addresses begin where this one's did
  // (F11).
  void reset(bool reuse);

 private:
  World& world_;
  HostId host_;
  uint64_t granule_bytes_;
  bool real_bytes_;
  uint64_t base_;
  uint64_t next_;
  uint64_t bytes_allocated_ = 0;
  std::vector<Range> ranges_;  // by address, ascending; freed ones stay, empty
};

}  // namespace weightlane::sim
