// WorldObserver: what checkers see of a world. Everything is called in place, at the moment it
// happens, in virtual time `at` of the world (not of a host's skewed clock). An observer must not
// change the world.
#pragma once

#include <cstdint>

#include "flow/time.h"
#include "net/data_plane.h"
#include "sim/choices.h"
#include "sim/fault_list.h"

namespace weightlane::sim {

using QueuePairId = StrongId<struct QueuePairTag, uint64_t>;  // never reused in a world

// One granule or one word, read at its source.
struct ReadExecuted {
  Nanos at;
  HostId reader;
  uint32_t reader_life = 0;
  HostId source;
  uint32_t source_life = 0;
  QueuePairId pair;
  uint64_t work_id = 0;
  net::RegionId region;  // at the source
  bool is_word = false;
  uint64_t address =
      0;               // of the granule in the source's memory; of a word: its index in the region
  uint64_t value = 0;  // tag or word
};

// One granule or one word, placed at its destination.
struct ReadLanded {
  Nanos at;
  HostId reader;
  uint32_t reader_life = 0;
  QueuePairId pair;
  uint64_t work_id = 0;
  net::RegionId region;  // at the reader
  bool is_word = false;
  uint64_t address = 0;  // as above, in the reader's memory
  uint64_t value = 0;
};

class WorldObserver {
 public:
  virtual ~WorldObserver() = default;

  virtual void on_read_executed(const ReadExecuted&) {}
  virtual void on_read_landed(const ReadLanded&) {}
  virtual void on_completion(Nanos /*at*/, HostId /*reader*/, QueuePairId, const net::Completion&) {
  }
  virtual void on_word_stored(Nanos /*at*/, HostId, net::RegionId, uint32_t /*index*/,
                              uint64_t /*value*/) {}
  // By the application (Memory::write), not by a READ.
  virtual void on_memory_written(Nanos /*at*/, HostId, uint64_t /*address*/, uint64_t /*tag*/) {}
  virtual void on_registered(Nanos /*at*/, HostId, net::RegionId, net::MemoryRange) {}
  virtual void on_deregistered(Nanos /*at*/, HostId, net::RegionId) {}
  virtual void on_queue_pair_created(Nanos /*at*/, QueuePairId, HostId /*reader*/,
                                     HostId /*source*/) {}
  // The reader's end; from now on nothing can land.
  virtual void on_queue_pair_destroyed(Nanos /*at*/, QueuePairId) {}
  // The source's end was dropped: the fence.
  virtual void on_passive_dropped(Nanos /*at*/, QueuePairId) {}
  virtual void on_started(Nanos /*at*/, HostId, uint32_t /*life*/) {}
  virtual void on_crashed(Nanos /*at*/, HostId, uint32_t /*life*/) {}
  virtual void on_paused(Nanos /*at*/, HostId) {}
  virtual void on_resumed(Nanos /*at*/, HostId) {}
  virtual void on_fault(Nanos /*at*/, Fault, HostId, HostId /*other; 0 = none*/) {}
  virtual void on_healed(Nanos /*at*/) {}
  // Runtime::trace of a host. `event.detail` is valid during the call only.
  virtual void on_trace(Nanos /*at*/, HostId, const flow::TraceEvent& /*event*/) {}
};

}  // namespace weightlane::sim
