// A draw is a hash of (seed, stream, index), not a state that moves on: a stream is made when it is
// first used, and an overridden draw leaves the others as they were.
#include "sim/choices.h"

#include <algorithm>

#include "flow/assert.h"
#include "sim/hash.h"

namespace weightlane::sim {
namespace {

bool earlier(const Deviation& a, const Deviation& b) {
  return a.stream != b.stream ? a.stream < b.stream : a.index < b.index;
}

}  // namespace

ChoiceSource::ChoiceSource(uint64_t seed, ChoiceMode mode) : seed_(seed), mode_(mode) {
  streams_.reserve(16 * kSubsystems);
}

void ChoiceSource::set_overrides(std::span<const Deviation> overrides) {
  WL_ASSERT(draws_ == 0);
  overrides_.assign(overrides.begin(), overrides.end());
  std::sort(overrides_.begin(), overrides_.end(), earlier);
  for (Stream& s : streams_) s.ready = false;
}

void ChoiceSource::make_stream(StreamId id) {
  if (id.value >= streams_.size()) streams_.resize((id.value / kSubsystems + 1) * kSubsystems);
  Stream& s = streams_[id.value];
  s.ready = true;
  s.key = mix64(seed_, id.value);
  const Deviation first{.stream = id};
  const auto begin = std::lower_bound(overrides_.begin(), overrides_.end(), first, earlier);
  auto end = begin;
  while (end != overrides_.end() && end->stream == id) ++end;
  s.next_override = static_cast<uint32_t>(begin - overrides_.begin());
  s.end_override = static_cast<uint32_t>(end - overrides_.begin());
}

uint64_t ChoiceSource::raw(const Stream& s, uint64_t index) {
  return mix64(s.key + index * 0x9e3779b97f4a7c15ull);
}

bool ChoiceSource::overridden(Stream& s, uint64_t index, uint32_t n, uint32_t& value) const {
  if (s.next_override == s.end_override) return false;
  const Deviation& next = overrides_[s.next_override];
  if (next.index != index) return false;
  ++s.next_override;
  value = std::min(next.value, n - 1);
  return true;
}

void ChoiceSource::count(StreamId id, uint64_t index, const char* name, uint32_t n, uint32_t value,
                         std::span<const uint32_t> weights) {
  uint32_t possible = 0;
  for (size_t i = 0; i < weights.size() && i < 31; ++i) {
    if (weights[i] != 0) possible |= 2u << i;
  }
  if (n < 2 || (!weights.empty() && possible == 0 && value == 0)) return;
  census_->push_back({id, index, n, value, possible, name});
}

uint32_t ChoiceSource::settle(StreamId id, uint64_t index, const char* name, uint32_t n,
                              uint32_t value, std::span<const uint32_t> weights) {
  if (census_ != nullptr) [[unlikely]]
    count(id, index, name, n, value, weights);
  if (value == 0) return 0;
  ++deviations_seen_;
  if (recording_) [[unlikely]] {
    deviations_.push_back({.stream = id, .index = index, .n = n, .value = value, .name = name});
  }
  return value;
}

uint32_t ChoiceSource::choose(StreamId id, const char* name, uint32_t n) {
  WL_ASSERT(n >= 1);
  Stream& s = stream(id);
  const uint64_t index = s.index++;
  ++draws_;
  uint32_t value = 0;
  if (!overridden(s, index, n, value) && mode_ == ChoiceMode::kSeed) {
    value = static_cast<uint32_t>(((raw(s, index) >> 32) * n) >> 32);
  }
  return settle(id, index, name, n, value);
}

bool ChoiceSource::chance(StreamId id, const char* name, uint32_t per_million) {
  return weighted(id, name, {&per_million, 1}) != 0;
}

uint32_t ChoiceSource::weighted(StreamId id, const char* name,
                                std::span<const uint32_t> per_million) {
  Stream& s = stream(id);
  const uint64_t index = s.index++;
  ++draws_;
  const auto n = static_cast<uint32_t>(per_million.size()) + 1;
  uint32_t value = 0;
  if (!overridden(s, index, n, value) && mode_ == ChoiceMode::kSeed) {
    auto left = static_cast<uint32_t>(((raw(s, index) >> 32) * 1'000'000) >> 32);
    for (uint32_t i = 0; i + 1 < n && value == 0; ++i) {
      if (left < per_million[i]) value = i + 1;
      left -= per_million[i];  // wraps only when decided
    }
  }
  return settle(id, index, name, n, value, per_million);
}

int64_t ChoiceSource::between(StreamId id, const char* name, int64_t low, int64_t high) {
  WL_ASSERT_OP(low, <=, high);
  WL_ASSERT(high - low < 0xffff'ffff);
  const uint32_t value = choose(id, name, static_cast<uint32_t>(high - low + 1));
  return low + value;
}

int64_t ChoiceSource::log_uniform(StreamId id, const char* name, int64_t low, int64_t high) {
  WL_ASSERT_OP(low, >=, 1);
  WL_ASSERT_OP(low, <=, high);
  // Octaves from low up; the last one is cut at high.
  uint32_t octaves = 1;
  while (octaves < 62 && (high >> octaves) >= low) ++octaves;
  const uint32_t value = choose(id, name, octaves * 256);
  const int64_t octave = low << (value / 256);
  const int64_t step = octave >= 256 ? (octave >> 8) * (value % 256)
                                     : (octave * static_cast<int64_t>(value % 256)) >> 8;
  return std::min(high, octave + step);
}

uint64_t ChoiceSource::value(StreamId id) {
  Stream& s = stream(id);
  const uint64_t index = s.index++;
  return mix64(raw(s, index));
}

}  // namespace weightlane::sim
