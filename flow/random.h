// Small deterministic random numbers: the same on every machine and compiler, which
// std::*_distribution is not.
//
// SplitMix64 makes seeds; Rng is xoshiro256** (Blackman and Vigna), which passes the usual tests
// and costs a nanosecond. Neither is for secrets.
#pragma once

#include <array>
#include <cstdint>

#include "flow/assert.h"

namespace weightlane::flow {

class SplitMix64 {
 public:
  explicit constexpr SplitMix64(uint64_t seed) : state_(seed) {}
  constexpr uint64_t next() {
    state_ += 0x9e3779b97f4a7c15;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }

 private:
  uint64_t state_;
};

class Rng {
 public:
  explicit constexpr Rng(uint64_t seed) {
    SplitMix64 seeds(seed);
    for (uint64_t& word : state_) word = seeds.next();
  }
  // A stream of its own for each (seed, stream): one more draw in one changes nothing in the
  // others.
  constexpr Rng(uint64_t seed, uint64_t stream)
      : Rng(SplitMix64(seed).next() ^ SplitMix64(~stream).next()) {}

  constexpr uint64_t next() {
    const uint64_t result = rotate(state_[1] * 5, 7) * 9;
    const uint64_t t = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= t;
    state_[3] = rotate(state_[3], 45);
    return result;
  }
  // Uniform in [0, n), n > 0, without bias (Lemire's method).
  constexpr uint64_t below(uint64_t n) {
    WL_ASSERT(n > 0);
    Wide product = static_cast<Wide>(next()) * n;
    if (static_cast<uint64_t>(product) < n) {
      const uint64_t threshold = (0 - n) % n;
      while (static_cast<uint64_t>(product) < threshold) product = static_cast<Wide>(next()) * n;
    }
    return static_cast<uint64_t>(product >> 64);
  }
  // True in `numerator` of `denominator` cases.
  constexpr bool chance(uint64_t numerator, uint64_t denominator) {
    return below(denominator) < numerator;
  }

 private:
  __extension__ using Wide = unsigned __int128;
  static constexpr uint64_t rotate(uint64_t x, int k) { return (x << k) | (x >> (64 - k)); }
  std::array<uint64_t, 4> state_{};
};

}  // namespace weightlane::flow
