// ChoiceSource: every decision of a simulated world, as numbered choices.
//
// choose(stream, name, n) gives [0, n), and 0 is always the dull outcome: first runnable task, no
// fault, least delay. A stream belongs to one host and one subsystem. The k-th draw of a stream is
// a pure function of (seed, stream, k), so one more draw in one stream changes nothing in any
// other, and a list of deviations can be laid over a seed.
//
// A run is named in three ways:
//   kSeed       every draw comes from the seed, except where an override names (stream, index);
//   kReplay     every draw is 0, except where an override names (stream, index): a shrunk trace;
//   recording   every draw that came out other than 0 is written down, and replays the run in
//   kReplay mode.
//
// Values that carry no choice (stamps, ids: Runtime::random) come from value(), from streams of
// their own, and are never deviations. Integers only: a decision made on a double is not
// reproducible.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "net/ids.h"

namespace weightlane::sim {

// A slot for a process in the world; 0 is the world itself. Lives of a restarted process share it.
using HostId = StrongId<struct HostTag, uint32_t>;
constexpr HostId kWorldHost{0};

enum class Subsystem : uint8_t {
  kConfig,    // shape of the cluster, swarm
  kSchedule,  // ready order
  kClock,     // offset, drift
  kControl,   // messages of the control plane
  kData,      // connect, READs, destroy
  kMemory,    // registration, keys, addresses
  kFaults,    // crashes, pauses, partitions
  kRandom,    // Runtime::random
  kWorkload,  // what the application does; for the campaign
  kProgram,   // the same, a second stream
};
constexpr uint32_t kSubsystems = 16;

struct StreamId {
  uint32_t value = 0;
  constexpr auto operator<=>(const StreamId&) const = default;
};
constexpr StreamId stream_of(HostId host, Subsystem subsystem) {
  return {host.value * kSubsystems + static_cast<uint32_t>(subsystem)};
}

// One draw that did not come out as 0.
struct Deviation {
  StreamId stream;
  uint64_t index = 0;          // of the draw within its stream, from 0
  uint32_t n = 0;              // how many outcomes there were
  uint32_t value = 0;          // which one it was
  const char* name = nullptr;  // a string literal; in overrides it may be null
};

// A draw that had more than one outcome, whatever it came out as: what could be chosen otherwise.
struct Draw {
  StreamId stream;
  uint64_t index = 0;
  uint32_t n = 0;
  uint32_t value = 0;
  // Bit v: outcome v can come out in a seeded run (a fault whose rate is 0 cannot). 0: all can.
  uint32_t possible = 0;
  const char* name = nullptr;
};

enum class ChoiceMode : uint8_t { kSeed, kReplay };

class ChoiceSource {
 public:
  explicit ChoiceSource(uint64_t seed, ChoiceMode mode = ChoiceMode::kSeed);
  ChoiceSource(const ChoiceSource&) = delete;
  ChoiceSource& operator=(const ChoiceSource&) = delete;

  // Before the first draw. An override's value is cut to n - 1 when the draw has fewer outcomes.
  void set_overrides(std::span<const Deviation> overrides);
  void set_recording(bool on) { recording_ = on; }
  // Every draw with a choice in it is added to `into`, which outlives the source. Null: none.
  void set_census(std::vector<Draw>* into) { census_ = into; }

  // [0, n); n >= 1.
  uint32_t choose(StreamId stream, const char* name, uint32_t n);
  // True with the given probability; a draw is spent even when it is 0, so that rates don't shift
  // the stream.
  bool chance(StreamId stream, const char* name, uint32_t per_million);
  // 0 (nothing) or 1 + the index of the weight drawn; what the weights leave of a million is
  // nothing.
  uint32_t weighted(StreamId stream, const char* name, std::span<const uint32_t> per_million);
  // [low, high], low is the dull one.
  int64_t between(StreamId stream, const char* name, int64_t low, int64_t high);
  // [low, high], each power of two as likely as the next; low >= 1 is the dull one. To one part in
  // 256.
  int64_t log_uniform(StreamId stream, const char* name, int64_t low, int64_t high);
  // 64 bits that carry no choice.
  uint64_t value(StreamId stream);

  uint64_t seed() const { return seed_; }
  ChoiceMode mode() const { return mode_; }
  const std::vector<Deviation>& deviations() const { return deviations_; }
  uint64_t draws() const { return draws_; }
  uint64_t deviations_seen() const { return deviations_seen_; }  // counted without recording too

 private:
  struct Stream {
    uint64_t key = 0;
    uint64_t index = 0;
    uint32_t next_override = 0;  // into overrides_
    uint32_t end_override = 0;
    bool ready = false;
  };
  Stream& stream(StreamId id) {
    if (id.value >= streams_.size() || !streams_[id.value].ready) [[unlikely]]
      make_stream(id);
    return streams_[id.value];
  }
  void make_stream(StreamId id);
  static uint64_t raw(const Stream& s, uint64_t index);
  // Takes one index; true when an override decided.
  bool overridden(Stream& s, uint64_t index, uint32_t n, uint32_t& value) const;
  uint32_t settle(StreamId id, uint64_t index, const char* name, uint32_t n, uint32_t value,
                  std::span<const uint32_t> weights = {});
  void count(StreamId id, uint64_t index, const char* name, uint32_t n, uint32_t value,
             std::span<const uint32_t> weights);

  uint64_t seed_;
  ChoiceMode mode_;
  bool recording_ = false;
  std::vector<Draw>* census_ = nullptr;
  uint64_t draws_ = 0;
  uint64_t deviations_seen_ = 0;
  std::vector<Stream> streams_;
  std::vector<Deviation> overrides_;  // by (stream, index)
  std::vector<Deviation> deviations_;
};

}  // namespace weightlane::sim
