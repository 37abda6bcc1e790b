// What the benchmarks of the planes share: memory, a source in a process of its own, and a reader
// that keeps so many READs in flight until every byte has come once.
//
// The source's process lives until its end of the control socket closes, so it goes with its parent
// whatever happens. Forks: to be used before this process has threads.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "flow/signal.h"
#include "net/data_plane.h"
#include "prod/event_loop.h"
#include "prod/file_descriptor.h"

namespace weightlane::prod {

inline constexpr Nanos kBenchPatience = seconds(60);  // for any one step of a benchmark

struct Unmap {
  uint64_t bytes = 0;
  void operator()(uint8_t* data) const;
};
using BenchMemory = std::unique_ptr<uint8_t, Unmap>;  // null: no memory

BenchMemory allocate_bench_memory(uint64_t bytes);  // huge pages where there are any
void fill_bench_memory(uint8_t* data, uint64_t bytes, uint64_t seed);
net::MemoryRange memory_range(const uint8_t* data, uint64_t bytes);
double median(std::vector<double> values);  // of one value or more

// Serves one region to each reader: the one whose number is the first byte of its hello.
class BenchAcceptor final : public net::Acceptor {
 public:
  explicit BenchAcceptor(std::vector<net::RegionId> regions) : regions_(std::move(regions)) {}
  net::AcceptDecision on_connect(std::span<const uint8_t> hello,
                                 std::unique_ptr<net::PassiveQueuePair> pair) override;

 private:
  std::vector<net::RegionId> regions_;
  std::vector<std::unique_ptr<net::PassiveQueuePair>> pairs_;
};

// A reader's side of a connection to a BenchAcceptor.
struct BenchLink {
  explicit BenchLink(flow::Runtime& runtime) : wake(runtime) {}
  flow::Signal wake;
  std::unique_ptr<net::QueuePair> pair;
  net::RemoteRegion remote;
};
// `loop`, `plane` and `link` outlive the task.
flow::Task<Result<Done>> connect_bench_link(EventLoop* loop, net::DataPlane* plane,
                                            std::string endpoint, uint8_t region, BenchLink* link);

struct BenchTransfer {
  net::RegionId into;
  uint64_t bytes = 0;
  uint64_t slice_bytes = 0;  // one READ
  uint64_t depth = 0;        // READs in flight
  bool checksums = false;
};
// All the bytes once; the seconds that took. `loop` and `link` outlive the task.
flow::Task<Result<double>> read_all(EventLoop* loop, BenchLink* link, BenchTransfer transfer);

// The source's process, seen from its parent. The destructor ends it and waits for that.
class BenchSource {
 public:
  // `be_source` runs in the child with the child's end of the control socket: it writes one
  // greeting there, then calls serve_until_closed().
  static Result<std::unique_ptr<BenchSource>> fork(const std::function<void(int)>& be_source);
  BenchSource(pid_t pid, FileDescriptor control) : pid_(pid), control_(std::move(control)) {}
  ~BenchSource();
  BenchSource(const BenchSource&) = delete;
  BenchSource& operator=(const BenchSource&) = delete;

  pid_t pid() const { return pid_; }
  template <typename Greeting>
  bool hear(Greeting& greeting) const {
    return recv(control_.get(), &greeting, sizeof greeting, MSG_WAITALL) == sizeof greeting;
  }

 private:
  pid_t pid_;
  FileDescriptor control_;
};

// In the child: runs the loop until the parent closes its end, or is gone.
[[noreturn]] void serve_until_closed(EventLoop& loop, int control);

}  // namespace weightlane::prod
