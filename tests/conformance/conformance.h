// One contract for every data plane: what the suite needs from the world that a plane lives in.
//
// The suite (reads_test.cc, errors_test.cc, connect_test.cc, memory_test.cc) is written against
// flow and net alone. A factory file (<plane>_factory.cc: sim, tcp, same_host, verbs ...) is linked
// with it into one binary (conformance_<plane>) and defines factories(). A world is two hosts, a
// source and a reader, made anew for each test; they may be two processes, two simulated hosts or
// two plane objects on one loop: the suite can't tell.
//
// What a world must keep: bytes written by Host::write are what READs see; runtime() and plane() of
// one host go together; run() drives both hosts' loops. Everything is called on the thread that
// calls run(), or from tasks in it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "flow/runtime.h"
#include "flow/task.h"
#include "net/data_plane.h"
#include "net/ids.h"

namespace weightlane::conformance {

class Host {
 public:
  virtual ~Host() = default;
  virtual flow::Runtime& runtime() = 0;
  virtual net::DataPlane& plane() = 0;

  // Application memory that the plane can register: page aligned, all 0. Lives until free_memory or
  // the host goes.
  virtual net::MemoryRange allocate(uint64_t bytes) = 0;
  virtual void free_memory(net::MemoryRange range) = 0;
  // As the application would, by plain stores and loads.
  virtual void write(net::MemoryRange range, uint64_t offset, std::span<const uint8_t> bytes) = 0;
  virtual Bytes read(net::MemoryRange range, uint64_t offset, uint64_t length) = 0;
};

class World {
 public:
  virtual ~World() = default;
  virtual Host& source() = 0;
  virtual Host& reader() = 0;

  // Starts `task` and runs the loop until it has ended. False when `limit` (of the world's time,
  // virtual or real) passed first; the task is then dropped before run() returns.
  virtual bool run(flow::Task<void> task, Nanos limit) = 0;

  // Endpoint texts as listen() would give them, for places where nobody listens. Refused: the host
  // answers at once that nothing is there. Silent: nothing ever answers. Empty where the transport
  // has no such place: the test is skipped.
  virtual std::string refused_endpoint() = 0;
  virtual std::string silent_endpoint() = 0;
};

struct Factory {
  std::string name;  // "tcp": the suffix of the tests' names
  // Whether a READ of a region that was deregistered meanwhile is always refused; C6 allows other
  // bytes too.
  bool refuses_stale_regions = true;
  // Whether a READ beyond the region's end is always refused by the source.
  bool checks_ranges = true;
  // The largest memory a test should ask for, both hosts together. 0: tests of big offsets are
  // skipped.
  uint64_t memory_limit_bytes = 1ull << 30;
  // Whether memory can be reserved without being touched (offsets above 2^32 cost nothing).
  bool sparse_memory = true;
  std::function<std::unique_ptr<World>()> make;
};

// Defined by the factory file.
std::vector<Factory> factories();

inline void PrintTo(const Factory& factory, std::ostream* out) { *out << factory.name; }

}  // namespace weightlane::conformance
