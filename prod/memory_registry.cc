// A region is shared by the map and by its uses; the map lets go first. The state outlives the
// registry as long as a thread holds a use.
#include "prod/memory_registry.h"

#include <errno.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "flow/assert.h"
#include "prod/checksum.h"

namespace weightlane::prod {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kWordsArena = 16ull << 20;   // bytes; costs pages only when touched
constexpr size_t kChecksumPiece = 16ull << 20;  // bytes between two looks at whether to stop
constexpr Nanos kGrace = millis(50);
constexpr uint64_t kWordsApart = 64;  // bytes: no two allocations share a cache line

struct Region {
  net::MemoryRange range;
  bool owned_words = false;  // taken from State::words
  std::atomic<bool> removing{false};
  std::vector<RegionUser*> users;  // one entry per use; guarded by State::mutex
};

std::string describe(const net::MemoryRange& range) {
  return "memory at " + std::to_string(range.address) + ", " + std::to_string(range.length) +
         " bytes";
}

// msync(MS_ASYNC) does nothing but say whether every page is mapped.
bool is_mapped(const net::MemoryRange& range) {
  const uint64_t begin = range.address / kPage * kPage;
  const uint64_t length = range.address + range.length - begin;
  return msync(reinterpret_cast<void*>(begin), length, MS_ASYNC) == 0;
}

std::atomic_ref<uint64_t> word_at(const net::MemoryRange& range, uint32_t index) {
  WL_ASSERT_OP(uint64_t{index} * 8 + 8, <=, range.length);
  return std::atomic_ref<uint64_t>(
      *reinterpret_cast<uint64_t*>(range.address + uint64_t{index} * 8));
}

}  // namespace

struct MemoryRegistry::State {
  State(EventLoop& l, SharedArenas* a) : loop(l), arenas(a), released(l.runtime()) {}

  EventLoop& loop;
  SharedArenas* arenas;
  flow::Signal released;  // a use of a region that is being removed has ended

  mutable std::mutex mutex;
  std::unordered_map<uint64_t, std::shared_ptr<Region>> regions;  // guarded by mutex
  uint64_t next_id = 1;                                           // guarded by mutex

  // Words: on the loop's thread only.
  std::optional<SharedMemory> words;
  uint64_t words_used = 0;                          // bytes from the beginning
  std::map<uint64_t, std::vector<uint64_t>> freed;  // by size in bytes: addresses

  net::RegionId insert(std::shared_ptr<Region> region) {
    std::lock_guard lock(mutex);
    const uint64_t id = next_id++;
    regions.emplace(id, std::move(region));
    return net::RegionId{id};
  }
  std::shared_ptr<Region> take_out(net::RegionId id) {
    std::lock_guard lock(mutex);
    auto found = regions.find(id.value);
    if (found == regions.end()) return nullptr;
    std::shared_ptr<Region> region = std::move(found->second);
    regions.erase(found);
    region->removing.store(true);
    return region;
  }
  bool is_used(const Region& region) const {
    std::lock_guard lock(mutex);
    return !region.users.empty();
  }
  std::shared_ptr<Region> find(net::RegionId id) const {
    std::lock_guard lock(mutex);
    auto found = regions.find(id.value);
    return found == regions.end() ? nullptr : found->second;
  }
};

struct RegionUse::Hold {
  std::shared_ptr<MemoryRegistry::State> state;
  std::shared_ptr<Region> region;
  RegionUser* user = nullptr;
};

void RegionUse::HoldDeleter::operator()(Hold* hold) const {
  bool last = false;
  {
    std::lock_guard lock(hold->state->mutex);
    std::vector<RegionUser*>& users = hold->region->users;
    const auto entry = std::find(users.begin(), users.end(), hold->user);
    WL_ASSERT(entry != users.end());
    *entry = users.back();
    users.pop_back();
    last = users.empty() && hold->region->removing.load();
  }
  if (last) {
    std::weak_ptr<MemoryRegistry::State> state = hold->state;
    hold->state->loop.post_to_loop([state = std::move(state)] {
      if (auto alive = state.lock()) alive->released.notify_all();
    });
  }
  delete hold;
}

RegionUse& RegionUse::operator=(RegionUse&& other) noexcept = default;

bool RegionUse::unwanted() const { return hold_->region->removing.load(std::memory_order_relaxed); }

void RegionUse::release() {
  hold_.reset();
  data_ = nullptr;
  length_ = 0;
}

MemoryRegistry::MemoryRegistry(EventLoop& loop, SharedArenas* arenas)
    : state_(std::make_shared<State>(loop, arenas)) {}
MemoryRegistry::~MemoryRegistry() = default;

Result<net::RegionId> MemoryRegistry::add(net::MemoryRange range) {
  if (range.device != net::Device::kHost) {
    return Error{ErrorCode::kInvalidArgument,
                 describe(range) + ": this plane moves host memory only"};
  }
  if (range.length == 0 || range.address == 0 || range.address + range.length < range.address) {
    return Error{ErrorCode::kInvalidArgument, describe(range) + " is no range of memory"};
  }
  if (!is_mapped(range)) {
    return Error{ErrorCode::kInvalidArgument, describe(range) + " is not mapped from end to end"};
  }
  auto region = std::make_shared<Region>();
  region->range = range;
  return state_->insert(std::move(region));
}

flow::Task<void> MemoryRegistry::remove(MemoryRegistry* registry, net::RegionId id) {
  std::shared_ptr<State> state = registry->state_;
  std::shared_ptr<Region> region = state->take_out(id);
  if (region == nullptr) co_return;
  // Most uses end by themselves in no time, being between two pieces or just done; only a peer that
  // stalls makes it necessary to break its connection.
  Nanos patience = deadline_after(state->loop.runtime().now(), kGrace);
  while (state->is_used(*region)) {
    const bool one_ended = co_await state->released.wait_until(patience);
    if (one_ended) continue;
    patience = kForever;
    std::lock_guard lock(state->mutex);
    for (RegionUser* user : region->users) {
      if (user != nullptr) user->stop_using_region();
    }
  }
}

void MemoryRegistry::forget(net::RegionId id) { state_->take_out(id); }

Result<net::RegionId> MemoryRegistry::allocate_words(uint32_t count) {
  if (count == 0) return Error{ErrorCode::kInvalidArgument, "0 words"};
  const uint64_t bytes = (uint64_t{count} * 8 + kWordsApart - 1) / kWordsApart * kWordsApart;
  State& state = *state_;
  WL_ASSERT(state.arenas != nullptr);
  if (!state.words) {
    Result<SharedMemory> memory = SharedMemory::allocate(*state.arenas, kWordsArena);
    if (!memory) return memory.error();
    state.words.emplace(std::move(memory).value());
  }
  uint64_t address = 0;
  std::vector<uint64_t>& freed = state.freed[bytes];
  if (!freed.empty()) {
    address = freed.back();
    freed.pop_back();
  } else if (bytes <= state.words->size() - state.words_used) {
    address = reinterpret_cast<uint64_t>(state.words->data()) + state.words_used;
    state.words_used += bytes;
  } else {
    return Error{ErrorCode::kResourceExhausted,
                 "no room for " + std::to_string(count) +
                     " more words of control blocks (16 MiB are in use)"};
  }
  auto region = std::make_shared<Region>();
  region->range.address = address;
  region->range.length = uint64_t{count} * 8;
  region->owned_words = true;
  for (uint32_t i = 0; i < count; ++i) word_at(region->range, i).store(0);
  return state.insert(std::move(region));
}

net::RegionId MemoryRegistry::adopt_words(net::MemoryRange words) {
  WL_ASSERT(words.address % 8 == 0 && words.length % 8 == 0);
  auto region = std::make_shared<Region>();
  region->range = words;
  return state_->insert(std::move(region));
}

void MemoryRegistry::free_words(net::RegionId words) {
  const std::shared_ptr<Region> region = state_->take_out(words);
  if (region == nullptr || !region->owned_words) return;
  const uint64_t bytes = (region->range.length + kWordsApart - 1) / kWordsApart * kWordsApart;
  // Words that somebody may still write into are not given out again: a few bytes lost, once in a
  // broken connection's life.
  if (!state_->is_used(*region)) state_->freed[bytes].push_back(region->range.address);
}

void MemoryRegistry::store_word(net::RegionId words, uint32_t index, uint64_t value) {
  const std::shared_ptr<Region> region = state_->find(words);
  WL_ASSERT(region != nullptr);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  word_at(region->range, index).store(value, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

uint64_t MemoryRegistry::load_word(net::RegionId words, uint32_t index) const {
  const std::shared_ptr<Region> region = state_->find(words);
  WL_ASSERT(region != nullptr);
  return word_at(region->range, index).load(std::memory_order_seq_cst);
}

std::optional<net::MemoryRange> MemoryRegistry::find(net::RegionId id) const {
  const std::shared_ptr<Region> region = state_->find(id);
  if (region == nullptr) return std::nullopt;
  return region->range;
}

RegionUse MemoryRegistry::use(net::RegionId id, uint64_t offset, uint64_t length,
                              RegionUser* user) {
  RegionUse use;
  std::lock_guard lock(state_->mutex);
  auto found = state_->regions.find(id.value);
  if (found == state_->regions.end()) return use;
  const std::shared_ptr<Region>& region = found->second;
  if (offset > region->range.length || length > region->range.length - offset) return use;
  region->users.push_back(user);
  use.hold_.reset(new RegionUse::Hold{state_, region, user});
  use.data_ = reinterpret_cast<uint8_t*>(region->range.address + offset);
  use.length_ = length;
  return use;
}

flow::Task<Result<uint64_t>> MemoryRegistry::checksum(MemoryRegistry* registry, net::RegionId id,
                                                      uint64_t offset, uint64_t length) {
  EventLoop& loop = registry->state_->loop;
  auto use = std::make_shared<RegionUse>(registry->use(id, offset, length, nullptr));
  const Error gone{
      ErrorCode::kInvalidArgument,
      "checksum of a range that is not registered: region " + std::to_string(id.value)};
  if (!*use) co_return gone;
  std::function<std::optional<uint64_t>()> work = [use] {
    std::span<const uint8_t> left(use->data(), use->length());
    Checksum sum;
    while (!left.empty() && !use->unwanted()) {
      const size_t piece = std::min(left.size(), kChecksumPiece);
      sum.add(left.first(piece));
      left = left.subspan(piece);
    }
    use->release();
    return left.empty() ? std::optional<uint64_t>(sum.value()) : std::nullopt;
  };
  const std::optional<uint64_t> sum =
      co_await loop.run_on_helper<std::optional<uint64_t>>(std::move(work));
  if (!sum) co_return gone;
  co_return *sum;
}

size_t MemoryRegistry::size() const {
  std::lock_guard lock(state_->mutex);
  return state_->regions.size();
}

}  // namespace weightlane::prod
