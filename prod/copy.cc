// Non-temporal stores want an aligned destination: the first bytes up to a cache line and the last
// that fill none are copied plainly.
#include "prod/copy.h"

#include <algorithm>
#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace weightlane::prod {
namespace {

#if defined(__x86_64__)
constexpr size_t kLine = 64;
constexpr size_t kBlock = 256;
constexpr size_t kWorthIt = 2 * 1024;

// `into` is aligned to a line; `bytes` is a multiple of kBlock.
__attribute__((target("avx2"))) void stream_blocks(uint8_t* into, const uint8_t* from,
                                                   size_t bytes) {
  for (size_t at = 0; at < bytes; at += kBlock) {
    __m256i parts[kBlock / 32];
    for (size_t i = 0; i < kBlock / 32; ++i) {
      parts[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + at + i * 32));
    }
    for (size_t i = 0; i < kBlock / 32; ++i) {
      _mm256_stream_si256(reinterpret_cast<__m256i*>(into + at + i * 32), parts[i]);
    }
  }
}
#endif

}  // namespace

void copy_streaming(uint8_t* into, std::span<const uint8_t> from) {
#if defined(__x86_64__)
  if (from.size() >= kWorthIt && __builtin_cpu_supports("avx2")) {
    const size_t ahead = (kLine - reinterpret_cast<uintptr_t>(into) % kLine) % kLine;
    std::memcpy(into, from.data(), ahead);
    into += ahead;
    from = from.subspan(ahead);
    const size_t blocks = from.size() / kBlock * kBlock;
    stream_blocks(into, from.data(), blocks);
    _mm_sfence();
    into += blocks;
    from = from.subspan(blocks);
  }
#endif
  if (!from.empty()) std::memcpy(into, from.data(), from.size());
}

void copy_streaming_summed(uint8_t* into, std::span<const uint8_t> from, Checksum& sum) {
  // By way of the first-level cache: what is summed there is what goes out.
  alignas(64) std::array<uint8_t, 16 * 1024> passing;
  while (!from.empty()) {
    const size_t piece = std::min(from.size(), passing.size());
    std::memcpy(passing.data(), from.data(), piece);
    const std::span<const uint8_t> bytes(passing.data(), piece);
    sum.add(bytes);
    copy_streaming(into, bytes);
    into += piece;
    from = from.subspan(piece);
  }
}

}  // namespace weightlane::prod
