// Registering and deregistering pin and unpin pages, so they run on helper threads; words are a
// page or so, done in place.
#include "prod/verbs_memory.h"

#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include "prod/checksum.h"

namespace weightlane::prod {
namespace {

using MadeRegion = Result<std::shared_ptr<VerbsRegion>>;

constexpr uint64_t kPage = 4096;
// Up to this size pages are pinned faster than a helper is woken.
constexpr uint64_t kInPlaceMax = 64 * 1024;

Error no_region(net::RegionId id) {
  return Error{ErrorCode::kInvalidArgument,
               "region " + std::to_string(id.value) + " is not registered, or not that long"};
}

bool inside(const VerbsRegion& region, uint64_t offset, uint64_t length) {
  return offset <= region.length() && length <= region.length() - offset;
}

}  // namespace

VerbsMemory::~VerbsMemory() {
  *alive_ = false;
  for (auto& [id, entry] : entries_) {
    entry.region.reset();
    if (entry.owns_words) std::free(entry.words);
  }
}

flow::Task<Result<net::RegionId>> VerbsMemory::add(net::MemoryRange range) {
  if (range.length == 0)
    co_return Error{ErrorCode::kInvalidArgument, "a region of no bytes cannot be registered"};
  const bool on_gpu = range.device == net::Device::kCuda;
  std::function<MadeRegion()> work = [device = device_, range, on_gpu] {
    return VerbsRegion::create(device, range.address, range.length, on_gpu);
  };
  std::optional<MadeRegion> made;
  if (range.length <= kInPlaceMax) {
    made = work();
  } else {
    made = co_await loop_.run_on_helper<MadeRegion>(std::move(work));
  }
  MadeRegion& region = *made;
  if (!region.ok()) co_return region.error();
  const net::RegionId id{++last_id_};
  entries_[id.value].region = std::move(*region);
  co_return id;
}

flow::Task<void> VerbsMemory::remove(net::RegionId id) {
  const auto found = entries_.find(id.value);
  if (found == entries_.end() || found->second.words != nullptr) co_return;
  leaving_[id.value] = std::move(found->second);
  entries_.erase(found);
  while (leaving_[id.value].readers != 0) co_await released_.wait();
  std::shared_ptr<VerbsRegion> region = std::move(leaving_[id.value].region);
  leaving_.erase(id.value);
  if (region->length() <= kInPlaceMax) co_return;
  std::function<Done()> work = [region = std::move(region)]() mutable {
    region.reset();
    return Done{};
  };
  co_await loop_.run_on_helper<Done>(std::move(work));
}

const VerbsRegion* VerbsMemory::find(net::RegionId id) const {
  const auto found = entries_.find(id.value);
  return found == entries_.end() ? nullptr : found->second.region.get();
}

Result<net::RegionId> VerbsMemory::add_words(uint32_t count) {
  if (count == 0) return Error{ErrorCode::kInvalidArgument, "no words were asked for"};
  // Whole pages of their own: a device registers pages, and a neighbour's data must not be readable
  // with them.
  const uint64_t bytes = (count * sizeof(uint64_t) + kPage - 1) / kPage * kPage;
  void* memory = std::aligned_alloc(kPage, bytes);
  if (memory == nullptr)
    return Error{ErrorCode::kResourceExhausted, "no memory for a control block"};
  std::memset(memory, 0, bytes);
  Result<net::RegionId> id =
      register_words(static_cast<uint64_t*>(memory), count * sizeof(uint64_t), true);
  if (!id.ok()) std::free(memory);
  return id;
}

Result<net::RegionId> VerbsMemory::adopt_words(net::MemoryRange words) {
  return register_words(reinterpret_cast<uint64_t*>(words.address), words.length, false);
}

Result<net::RegionId> VerbsMemory::register_words(uint64_t* words, uint64_t bytes, bool owned) {
  Result<std::shared_ptr<VerbsRegion>> region =
      VerbsRegion::create(device_, reinterpret_cast<uint64_t>(words), bytes, false);
  if (!region.ok()) return region.error();
  const net::RegionId id{++last_id_};
  Entry& entry = entries_[id.value];
  entry.region = std::move(*region);
  entry.words = words;
  entry.owns_words = owned;
  return id;
}

void VerbsMemory::remove_words(net::RegionId id) {
  const auto found = entries_.find(id.value);
  if (found == entries_.end() || found->second.words == nullptr) return;
  WL_ASSERT(found->second.readers == 0);
  uint64_t* const owned = found->second.owns_words ? found->second.words : nullptr;
  entries_.erase(found);  // deregistered first
  std::free(owned);
}

uint64_t* VerbsMemory::word(net::RegionId id, uint32_t index) const {
  const auto found = entries_.find(id.value);
  WL_ASSERT(found != entries_.end());
  const Entry& entry = found->second;
  WL_ASSERT(entry.words != nullptr);
  WL_ASSERT_OP(index * sizeof(uint64_t), <, entry.region->length());
  return entry.words + index;
}

void VerbsMemory::checksum_then(net::RegionId id, uint64_t offset, uint64_t length,
                                std::function<void(uint64_t)> done) {
  Entry& entry = entries_.at(id.value);
  WL_ASSERT(inside(*entry.region, offset, length));
  ++entry.readers;
  const auto* data = reinterpret_cast<const uint8_t*>(entry.region->address()) + offset;
  auto sum = std::make_shared<uint64_t>(0);
  loop_.post_work([sum, data, length] { *sum = checksum_of({data, length}); },
                  [this, alive = alive_, id, sum, done = std::move(done)] {
                    if (*alive) release(id);
                    done(*sum);
                  });
}

void VerbsMemory::release(net::RegionId id) {
  const auto found = entries_.find(id.value);
  Entry& entry = found != entries_.end() ? found->second : leaving_.at(id.value);
  --entry.readers;
  if (entry.readers == 0) released_.notify_all();
}

flow::Task<Result<uint64_t>> VerbsMemory::checksum(net::RegionId id, uint64_t offset,
                                                   uint64_t length) {
  const VerbsRegion* const region = find(id);
  if (region == nullptr || !inside(*region, offset, length)) co_return no_region(id);
  if (region->on_gpu())
    co_return Error{ErrorCode::kInvalidArgument, "checksums cover host memory only on this plane"};
  auto promise = std::make_shared<flow::Promise<uint64_t>>(loop_.runtime());
  flow::Future<uint64_t> future = promise->future();
  checksum_then(id, offset, length, [promise](uint64_t sum) { promise->set(sum); });
  promise.reset();
  co_return co_await future;
}

}  // namespace weightlane::prod
