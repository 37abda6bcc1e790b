// 64-bit mixing and the rolling hash over a world's events: two runs are the same run when their
// hashes are.
#pragma once

#include <cstdint>

namespace weightlane::sim {

// The finaliser of splitmix64: a bijection in which every input bit reaches every output bit.
constexpr uint64_t mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}
constexpr uint64_t mix64(uint64_t a, uint64_t b) {
  return mix64(a * 0x9e3779b97f4a7c15ull + mix64(b + 0x632be59bd9b4e019ull));
}

class RollingHash {
 public:
  constexpr void add(uint64_t x) {
    state_ ^= x * 0x9e3779b97f4a7c15ull;
    state_ = (state_ << 31 | state_ >> 33) * 0xbf58476d1ce4e5b9ull;
  }
  constexpr uint64_t value() const { return mix64(state_); }

 private:
  uint64_t state_ = 0x243f6a8885a308d3ull;
};

}  // namespace weightlane::sim
