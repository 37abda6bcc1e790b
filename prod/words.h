// Reading words that another thread or process stores while they are read: each aligned 8 bytes
// whole (C1). Control blocks are a few words; tensors are copied in any way.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <span>

namespace weightlane::prod {

constexpr size_t kWordsCopyMax = 512;  // bytes: what is treated as words, when it is aligned

inline bool are_words(std::span<const uint8_t> bytes) {
  return bytes.size() <= kWordsCopyMax && bytes.size() % 8 == 0 &&
         reinterpret_cast<uintptr_t>(bytes.data()) % 8 == 0;
}

// `into` need not be aligned.
inline void copy_words(uint8_t* into, std::span<const uint8_t> words) {
  for (size_t at = 0; at < words.size(); at += 8) {
    // An atomic_ref wants a mutable object; it is only loaded.
    auto* word = const_cast<uint64_t*>(reinterpret_cast<const uint64_t*>(words.data() + at));
    const uint64_t value = std::atomic_ref<uint64_t>(*word).load(std::memory_order_acquire);
    std::memcpy(into + at, &value, 8);
  }
}

}  // namespace weightlane::prod
