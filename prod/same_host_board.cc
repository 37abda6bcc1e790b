// Layout: the nonce in a page of its own, a word per pair, 32 bytes per region. A key is (slot,
// id); an entry's key is stored last and taken away first.
#include "prod/same_host_board.h"

#include <atomic>
#include <string>
#include <utility>

#include "flow/assert.h"

namespace weightlane::prod {
namespace {

constexpr uint64_t kPairsMax = 65'536;
constexpr uint64_t kRegionsMax = 1u << 20;
constexpr uint64_t kPairsAt = 4096;
constexpr uint64_t kRegionsAt = kPairsAt + kPairsMax * 8;
constexpr uint64_t kEntryWords = 4;  // key, base, length, arena
constexpr uint64_t kBoardBytes = kRegionsAt + kRegionsMax * kEntryWords * 8;
constexpr unsigned kSlotShift = 40;

std::atomic_ref<uint64_t> word(const uint8_t* data, uint64_t at) {
  // An atomic_ref wants a mutable object; views only load.
  return std::atomic_ref<uint64_t>(
      *const_cast<uint64_t*>(reinterpret_cast<const uint64_t*>(data + at)));
}
uint64_t entry_at(uint64_t slot) { return kRegionsAt + slot * kEntryWords * 8; }

}  // namespace

Result<std::unique_ptr<SourceBoard>> SourceBoard::create(uint64_t nonce) {
  auto board = std::unique_ptr<SourceBoard>(new SourceBoard());
  Result<SharedMemory> memory = SharedMemory::allocate(board->own_, kBoardBytes);
  if (!memory) return memory.error();
  board->memory_.emplace(std::move(memory).value());
  board->arena_ = board->own_.find(board->address(), kBoardBytes);
  WL_ASSERT(board->arena_ != nullptr);
  word(board->memory_->data(), 0).store(nonce);
  return board;
}

Result<Done> SourceBoard::publish(net::RegionId region, net::MemoryRange range, uint64_t arena) {
  uint32_t slot = 0;
  if (!free_slots_.empty()) {
    slot = free_slots_.back();
    free_slots_.pop_back();
  } else if (used_slots_ < kRegionsMax) {
    slot = used_slots_++;
  } else {
    return Error{ErrorCode::kResourceExhausted, "more than a million registered ranges"};
  }
  WL_ASSERT(region.value >> kSlotShift == 0);
  slots_[region.value] = slot;
  const uint8_t* data = memory_->data();
  word(data, entry_at(slot) + 8).store(range.address);
  word(data, entry_at(slot) + 16).store(range.length);
  word(data, entry_at(slot) + 24).store(arena);
  word(data, entry_at(slot)).store(uint64_t{slot} << kSlotShift | region.value);
  return Done{};
}

void SourceBoard::retract(net::RegionId region) {
  const auto found = slots_.find(region.value);
  if (found == slots_.end()) return;
  word(memory_->data(), entry_at(found->second)).store(0);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  free_slots_.push_back(found->second);
  slots_.erase(found);
}

net::RemoteRegion SourceBoard::describe(net::RegionId region) const {
  const auto found = slots_.find(region.value);
  WL_ASSERT(found != slots_.end());
  const uint8_t* data = memory_->data();
  net::RemoteRegion remote;
  remote.key = uint64_t{found->second} << kSlotShift | region.value;
  remote.base = word(data, entry_at(found->second) + 8).load();
  remote.length = word(data, entry_at(found->second) + 16).load();
  return remote;
}

std::optional<BoardPair> SourceBoard::add_pair() {
  BoardPair pair;
  if (!free_pairs_.empty()) {
    pair.slot = free_pairs_.back();
    free_pairs_.pop_back();
  } else if (used_pairs_ < kPairsMax) {
    pair.slot = used_pairs_++;
  } else {
    return std::nullopt;
  }
  pair.serial = ++last_serial_;
  word(memory_->data(), kPairsAt + pair.slot * 8).store(pair.serial);
  return pair;
}

void SourceBoard::drop_pair(const BoardPair& pair) {
  word(memory_->data(), kPairsAt + pair.slot * 8).store(0);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  free_pairs_.push_back(pair.slot);
}

uint64_t SourceBoard::address() const { return reinterpret_cast<uint64_t>(memory_->data()); }
uint64_t SourceBoard::length() const { return kBoardBytes; }
int SourceBoard::file() const { return arena_->file.get(); }

Result<std::unique_ptr<BoardView>> BoardView::map(uint64_t peer_address, uint64_t length,
                                                  FileDescriptor file) {
  if (length != kBoardBytes) {
    return Error{ErrorCode::kCorrupt, "a board of " + std::to_string(length) + " bytes"};
  }
  Result<std::unique_ptr<MappedArena>> arena =
      MappedArena::map(peer_address, length, std::move(file));
  if (!arena) return arena.error();
  const uint8_t* data = (*arena)->at(peer_address, length);
  return std::unique_ptr<BoardView>(new BoardView(std::move(*arena), data));
}

uint64_t BoardView::nonce() const { return word(data_, 0).load(); }

bool BoardView::pair_stands(const BoardPair& pair) const {
  return pair.slot < kPairsMax && word(data_, kPairsAt + pair.slot * 8).load() == pair.serial;
}

std::optional<BoardPlace> BoardView::locate(uint64_t key, uint64_t offset, uint64_t length) const {
  const uint64_t slot = key >> kSlotShift;
  if (slot >= kRegionsMax || key == 0) return std::nullopt;
  if (word(data_, entry_at(slot)).load() != key) return std::nullopt;
  BoardPlace place;
  place.address = word(data_, entry_at(slot) + 8).load() + offset;
  place.arena = word(data_, entry_at(slot) + 24).load();
  const uint64_t room = word(data_, entry_at(slot) + 16).load();
  // Whoever took the entry away since may have written another range over this one.
  if (word(data_, entry_at(slot)).load() != key) return std::nullopt;
  if (offset > room || length > room - offset) return std::nullopt;
  return place;
}

}  // namespace weightlane::prod
