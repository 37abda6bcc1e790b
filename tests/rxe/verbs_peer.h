// A source in a process of its own, for tests of the verbs plane: the same binary, started again
// with --peer. It registers memory with a known pattern, accepts whoever connects, and obeys
// one-letter orders on its standard input; each is answered by a line. What a test does to it
// beyond that are signals.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "flow/task.h"
#include "net/data_plane.h"
#include "prod/event_loop.h"
#include "prod/verbs_plane.h"

namespace weightlane::rxe {

inline uint8_t pattern(uint64_t i) { return static_cast<uint8_t>((i * 2654435761u) >> 13); }

// The body of the other process: serves until its standard input ends.
int run_peer(const std::string& device, uint64_t bytes);

class Peer {
 public:
  static constexpr char kFence = 'f';       // drop every passive queue pair
  static constexpr char kDeregister = 'd';  // and the memory
  static constexpr char kClosed = 'c';      // how many readers are known to have gone

  // Starts it and waits until it listens. kUnreachable with what it said.
  static Result<Peer> start(const std::string& device, uint64_t bytes);
  Peer(Peer&& other) noexcept { *this = std::move(other); }
  Peer& operator=(Peer&& other) noexcept;
  ~Peer() { stop(); }

  const std::string& endpoint() const { return endpoint_; }
  std::string order(char what);
  void signal(int number) const;
  // kill -9, and gone when it returns.
  void stop();

 private:
  Peer() = default;
  std::string read_line() const;

  pid_t child_ = 0;
  int to_ = -1;
  int from_ = -1;
  std::string endpoint_;
};

struct Reading {
  std::unique_ptr<net::QueuePair> pair;
  net::RemoteRegion region;
};
flow::Task<Result<Reading>> connect(net::DataPlane* plane, std::string endpoint, flow::Signal* wake,
                                    Nanos deadline);

// The next completion. Nothing when the deadline comes first.
flow::Task<std::optional<net::Completion>> next(net::QueuePair* pair, flow::Signal* wake,
                                                Nanos deadline);

}  // namespace weightlane::rxe
