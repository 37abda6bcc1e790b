// Time as every layer speaks of it: whole nanoseconds in a strong type.
//
// A Nanos is either a point on one host's monotonic clock (Runtime::now) or a span between two such
// points; the clocks of two hosts are never compared. No floating point: a decision made on a
// double is not reproducible.
#pragma once

#include <compare>
#include <cstdint>
#include <limits>

namespace weightlane {

struct Nanos {
  int64_t count = 0;  // nanoseconds

  constexpr auto operator<=>(const Nanos&) const = default;
  constexpr Nanos operator+(Nanos other) const { return {count + other.count}; }
  constexpr Nanos operator-(Nanos other) const { return {count - other.count}; }
  constexpr Nanos operator*(int64_t factor) const { return {count * factor}; }
  constexpr Nanos operator/(int64_t divisor) const { return {count / divisor}; }
  constexpr Nanos& operator+=(Nanos other) {
    count += other.count;
    return *this;
  }
  constexpr Nanos& operator-=(Nanos other) {
    count -= other.count;
    return *this;
  }
};

constexpr Nanos kZeroNanos{0};
constexpr Nanos kForever{std::numeric_limits<int64_t>::max()};  // a deadline that never comes

constexpr Nanos nanos(int64_t n) { return {n}; }
constexpr Nanos micros(int64_t n) { return {n * 1000}; }
constexpr Nanos millis(int64_t n) { return {n * 1'000'000}; }
constexpr Nanos seconds(int64_t n) { return {n * 1'000'000'000}; }
// For people only.
constexpr double to_seconds(Nanos t) {         // lint: not a decision
  return static_cast<double>(t.count) * 1e-9;  // lint: not a decision
}

// `now + span`, but never past kForever.
constexpr Nanos deadline_after(Nanos now, Nanos span) {
  if (span.count >= kForever.count - now.count) return kForever;
  return now + span;
}

}  // namespace weightlane
