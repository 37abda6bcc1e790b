// operator new and delete of every program that holds the simulator: small blocks from free lists
// by size.
//
// A world makes and drops some thousands of coroutine frames, strings and vectors, nearly all below
// a kilobyte. Here such a block costs a pop and a push. Blocks of one size come from 64 KiB chunks,
// aligned to their size, whose first bytes say which size it is; so delete needs no size and blocks
// no header. Memory is reused and never given back: what a program holds is what its largest world
// needed. A block may be freed by another thread than its own: it just moves there.
//
// Nothing in a run depends on addresses, so this changes no hash. Larger or over-aligned blocks are
// malloc's; so is everything under a sanitizer, which must see each block.
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || \
    __has_feature(memory_sanitizer)
#define WL_SIM_PLAIN_MALLOC 1
#endif
#endif

#ifndef WL_SIM_PLAIN_MALLOC

#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace weightlane::sim {
namespace {

constexpr size_t kStep = 16;
constexpr size_t kSmallMost = 4096;
constexpr size_t kClasses = kSmallMost / kStep;
constexpr size_t kChunk = 64 << 10;
constexpr size_t kReserved = size_t{64} << 30;  // addresses, not memory

struct Block {
  Block* next;
};
struct alignas(kStep) ChunkHeader {
  size_t size_class;
};
struct Lists {
  std::array<Block*, kClasses> free;
  std::array<uint8_t*, kClasses> fresh;  // of the chunk in use: not yet handed out
  std::array<uint8_t*, kClasses> end;
};

thread_local constinit Lists lists{};
constinit std::atomic<uint8_t*> region_begin{nullptr};
constinit std::atomic<uint8_t*> region_next{nullptr};

uint8_t* reserve() {
  void* mapped = mmap(nullptr, kReserved + kChunk, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  const auto address = reinterpret_cast<uintptr_t>(mapped);
  auto* begin = reinterpret_cast<uint8_t*>((address + kChunk - 1) / kChunk * kChunk);
  uint8_t* nobody = nullptr;
  if (!region_begin.compare_exchange_strong(nobody, begin)) {
    munmap(mapped, kReserved + kChunk);  // another thread was first
    return nobody;
  }
  return begin;
}

// Null when there is no more: malloc's turn.
uint8_t* take_chunk() {
  uint8_t* begin = region_begin.load(std::memory_order_acquire);
  if (begin == nullptr) begin = reserve();
  if (begin == nullptr) return nullptr;
  uint8_t* nobody = nullptr;
  region_next.compare_exchange_strong(nobody, begin);
  uint8_t* chunk = region_next.fetch_add(kChunk, std::memory_order_relaxed);
  return chunk + kChunk <= begin + kReserved ? chunk : nullptr;
}

void* refill(size_t size_class) {
  const size_t size = (size_class + 1) * kStep;
  Lists& l = lists;
  if (l.fresh[size_class] == nullptr || l.fresh[size_class] + size > l.end[size_class]) {
    uint8_t* chunk = take_chunk();
    if (chunk == nullptr) return std::malloc(size);
    new (chunk) ChunkHeader{size_class};
    l.fresh[size_class] = chunk + sizeof(ChunkHeader);
    l.end[size_class] = chunk + kChunk;
  }
  void* block = l.fresh[size_class];
  l.fresh[size_class] += size;
  return block;
}

void* allocate(size_t bytes) {
  if (bytes > kSmallMost) [[unlikely]]
    return std::malloc(bytes);
  const size_t size_class = bytes == 0 ? 0 : (bytes - 1) / kStep;
  Block*& head = lists.free[size_class];
  if (head == nullptr) [[unlikely]]
    return refill(size_class);
  Block* block = head;
  head = block->next;
  return block;
}

void release(void* pointer) noexcept {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  const auto begin = reinterpret_cast<uintptr_t>(region_begin.load(std::memory_order_relaxed));
  if (address - begin >= kReserved || begin == 0) [[unlikely]]
    return std::free(pointer);
  const auto* header = reinterpret_cast<const ChunkHeader*>(address / kChunk * kChunk);
  auto* block = static_cast<Block*>(pointer);
  Block*& head = lists.free[header->size_class];
  block->next = head;
  head = block;
}

}  // namespace
}  // namespace weightlane::sim

void* operator new(size_t bytes) {
  void* block = weightlane::sim::allocate(bytes);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}
void* operator new[](size_t bytes) { return operator new(bytes); }
void operator delete(void* block) noexcept { weightlane::sim::release(block); }
void operator delete[](void* block) noexcept { weightlane::sim::release(block); }
void operator delete(void* block, size_t) noexcept { weightlane::sim::release(block); }
void operator delete[](void* block, size_t) noexcept { weightlane::sim::release(block); }

#endif
