// The counting operators. Everything goes to malloc, so sanitizers still see each block.
// ThreadSanitizer's runtime has operators of its own that can't be replaced: there its allocation
// hooks count.
#include "tests/flow/alloc_count.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

#if __has_feature(thread_sanitizer)
#include <sanitizer/allocator_interface.h>
#endif

namespace weightlane::flow::testing {
namespace {

constinit std::atomic<int64_t> made{0};
constinit std::atomic<int64_t> freed{0};

}  // namespace

int64_t allocations_made() { return made.load(std::memory_order_relaxed); }
int64_t allocations_live() { return made.load() - freed.load(); }

#if __has_feature(thread_sanitizer)
namespace {

void count_allocation(const volatile void*, size_t) {
  made.fetch_add(1, std::memory_order_relaxed);
}
void count_free(const volatile void* block) {
  if (block != nullptr) freed.fetch_add(1, std::memory_order_relaxed);
}
const int hooks_installed =
    __sanitizer_install_malloc_and_free_hooks(&count_allocation, &count_free);

}  // namespace
}  // namespace weightlane::flow::testing
#else

void* counted_allocation(std::size_t size, std::size_t alignment) {
  made.fetch_add(1, std::memory_order_relaxed);
  void* block = alignment <= alignof(std::max_align_t)
                    ? std::malloc(size)
                    : std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (block == nullptr) std::abort();
  return block;
}

void counted_free(void* block) noexcept {
  if (block == nullptr) return;
  freed.fetch_add(1, std::memory_order_relaxed);
  std::free(block);
}

}  // namespace weightlane::flow::testing

using weightlane::flow::testing::counted_allocation;
using weightlane::flow::testing::counted_free;

void* operator new(std::size_t size) { return counted_allocation(size, 1); }
void* operator new[](std::size_t size) { return counted_allocation(size, 1); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return counted_allocation(size, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t size, std::align_val_t alignment) {
  return counted_allocation(size, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return counted_allocation(size, 1);
}
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept {
  return counted_allocation(size, 1);
}
void operator delete(void* block) noexcept { counted_free(block); }
void operator delete[](void* block) noexcept { counted_free(block); }
void operator delete(void* block, std::size_t) noexcept { counted_free(block); }
void operator delete[](void* block, std::size_t) noexcept { counted_free(block); }
void operator delete(void* block, std::align_val_t) noexcept { counted_free(block); }
void operator delete[](void* block, std::align_val_t) noexcept { counted_free(block); }
void operator delete(void* block, std::size_t, std::align_val_t) noexcept { counted_free(block); }
void operator delete[](void* block, std::size_t, std::align_val_t) noexcept { counted_free(block); }
void operator delete(void* block, const std::nothrow_t&) noexcept { counted_free(block); }
void operator delete[](void* block, const std::nothrow_t&) noexcept { counted_free(block); }
#endif
