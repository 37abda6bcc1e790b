// Ranges are sorted by address because addresses only grow within a life; a freed one keeps its
// place, so that what reads it finds it dead instead of finding another.
#include "sim/memory.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>

#include "flow/assert.h"
#include "sim/hash.h"
#include "sim/world.h"

namespace weightlane::sim {
namespace {

constexpr uint64_t kFirstAddress = 1ull << 40;
constexpr uint64_t kPage = 4096;

GranuleBytes bytes_of(uint64_t tag) {
  GranuleBytes bytes;
  for (uint32_t word = 0; word < kRealBytes / 8; ++word) {
    const uint64_t value = tag == 0 ? 0 : mix64(tag, word);
    for (uint32_t i = 0; i < 8; ++i) bytes[word * 8 + i] = static_cast<uint8_t>(value >> (8 * i));
  }
  return bytes;
}

}  // namespace

Memory::Memory(World& world, HostId host)
    : world_(world),
      host_(host),
      granule_bytes_(world.config().data.granule_bytes),
      real_bytes_(world.config().data.real_bytes),
      base_(kFirstAddress),
      next_(kFirstAddress) {}

uint64_t Memory::allocate(uint64_t bytes) {
  WL_ASSERT(bytes > 0);
  const uint64_t granules = (bytes + granule_bytes_ - 1) / granule_bytes_;
  Range range;
  range.address = next_;
  range.bytes = bytes;
  range.live = true;
  range.tags.assign(granules, 0);
  if (real_bytes_) range.real.assign(granules, bytes_of(0));
  // A gap, so that a READ past the end finds nothing; and pages, as real memory has.
  next_ = (next_ + (granules + 1) * granule_bytes_ + kPage - 1) / kPage * kPage;
  bytes_allocated_ += bytes;
  ranges_.push_back(std::move(range));
  return ranges_.back().address;
}

void Memory::free(uint64_t address) {
  const uint32_t index = find(address, 1);
  WL_ASSERT(index != kNoRange);
  Range& range = ranges_[index];
  WL_ASSERT_OP(range.address, ==, address);
  bytes_allocated_ -= range.bytes;
  range.live = false;
  range.tags = {};
  range.real = {};
}

uint32_t Memory::find(uint64_t address, uint64_t bytes) const {
  auto after = std::upper_bound(ranges_.begin(), ranges_.end(), address,
                                [](uint64_t a, const Range& range) { return a < range.address; });
  if (after == ranges_.begin()) return kNoRange;
  const Range& range = *--after;
  if (!range.live || bytes > range.bytes || address - range.address > range.bytes - bytes) {
    return kNoRange;
  }
  return static_cast<uint32_t>(after - ranges_.begin());
}

void Memory::write(uint64_t address, uint64_t tag) { write(address, std::span(&tag, 1)); }

void Memory::write(uint64_t address, std::span<const uint64_t> tags) {
  const uint32_t index = find(address, 1);
  WL_ASSERT(index != kNoRange);
  Range& range = ranges_[index];
  const uint64_t first = (address - range.address) / granule_bytes_;
  WL_ASSERT((address - range.address) % granule_bytes_ == 0);
  WL_ASSERT(first + tags.size() <= range.tags.size());
  range.written = world_.now();
  RollingHash hash;
  for (uint64_t i = 0; i < tags.size(); ++i) {
    range.tags[first + i] = tags[i];
    if (real_bytes_) range.real[first + i] = bytes_of(tags[i]);
    hash.add(tags[i]);
    if (world_.observer() != nullptr) {
      world_.observer()->on_memory_written(world_.now(), host_, address + i * granule_bytes_,
                                           tags[i]);
    }
  }
  world_.event(EventKind::kMemory, host_, address, hash.value(), tags.size());
}

void Memory::write_torn(uint64_t address, uint64_t tag) {
  const uint32_t index = find(address, 1);
  WL_ASSERT(index != kNoRange);
  Range& range = ranges_[index];
  const uint64_t granule = (address - range.address) / granule_bytes_;
  const uint64_t old = range.tags[granule];
  // Neither the old content nor the new: no checker knows this tag, no checksum covers these bytes.
  const uint64_t torn = mix64(old, tag) | 1;
  range.tags[granule] = torn;
  if (real_bytes_) {
    const GranuleBytes fresh = bytes_of(tag);
    std::copy_n(fresh.begin(), kRealBytes / 2, range.real[granule].begin());
  }
  if (world_.observer() != nullptr) {
    world_.observer()->on_memory_written(world_.now(), host_, address, torn);
  }
  world_.event(EventKind::kMemory, host_, address, torn, 1);
}

uint64_t Memory::read(uint64_t address) const {
  const uint32_t index = find(address, 1);
  WL_ASSERT(index != kNoRange);
  const Range& range = ranges_[index];
  return range.tags[(address - range.address) / granule_bytes_];
}

uint64_t Memory::checksum(uint64_t address, uint64_t bytes) const {
  const uint32_t index = find(address, bytes);
  WL_ASSERT(index != kNoRange);
  const Range& range = ranges_[index];
  const uint64_t first = (address - range.address) / granule_bytes_;
  return checksum(range, first, (bytes + granule_bytes_ - 1) / granule_bytes_);
}

uint64_t Memory::checksum(const Range& range, uint64_t first_granule, uint64_t count) const {
  WL_ASSERT(first_granule + count <= range.tags.size());
  if (real_bytes_) {
    return XXH3_64bits(range.real.data() + first_granule, count * sizeof(GranuleBytes));
  }
  RollingHash hash;
  for (uint64_t i = 0; i < count; ++i) hash.add(range.tags[first_granule + i]);
  return hash.value();
}

void Memory::place(Range& range, uint64_t granule, uint64_t tag, const GranuleBytes* real) {
  range.tags[granule] = tag;
  if (real != nullptr) range.real[granule] = *real;
}

void Memory::reset(bool reuse) {
  ranges_.clear();
  bytes_allocated_ = 0;
  if (!reuse) {
    const uint64_t where = world_.choices().value(stream_of(host_, Subsystem::kRandom));
    base_ = kFirstAddress + (where % (1ull << 20)) * (1ull << 24);
  }
  next_ = base_;
}

}  // namespace weightlane::sim
