// ReadQueue: the READs of one queue pair between the loop, which posts and polls, and the threads
// that carry them out.
//
// It gives a pair of sockets or a process_vm_readv the manners of an RC queue pair (C2): at most
// `max_outstanding_reads` in it; completions come in the order of posting, whatever thread ends
// first; after the first error everything later is flushed, even what happened to succeed. READs
// posted before the one that failed are let finish, so the first error is told as what it was.
//
// A thread calls finish() only when it will not touch the destination any more: that is what a
// completion, and the end of destroy(), promise (C3).
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "flow/signal.h"
#include "flow/task.h"
#include "net/data_plane.h"
#include "prod/event_loop.h"
#include "prod/memory_registry.h"

namespace weightlane::prod {

// A READ to carry out. Whoever has it finishes it, exactly once.
struct PendingRead {
  uint64_t sequence = 0;
  net::ReadWork work;
  RegionUse into;
};

class ReadQueue : public std::enable_shared_from_this<ReadQueue> {
 public:
  // `wake` outlives the pair: it isn't touched after close().
  ReadQueue(EventLoop& loop, flow::Signal* wake, net::Capabilities capabilities);

  // --- on the loop's thread
  // kPosted, and `out` holds what to carry out; or it is empty because the work was wrong and has
  // already ended with a local error.
  net::PostResult post(MemoryRegistry& registry, RegionUser* user, const net::ReadWork& work,
                       std::unique_ptr<PendingRead>& out);
  std::optional<net::Completion> poll();
  // Nobody is told anything any more; threads should give up what they have.
  void close();
  // After close(): ok when every READ was finished. kDestinationPoisoned at the deadline; `whom`
  // names the peer.
  static flow::Task<Result<Done>> drained(std::shared_ptr<ReadQueue> queue, std::string whom,
                                          Nanos deadline);

  // --- on any thread
  void finish(std::unique_ptr<PendingRead> read, net::CompletionStatus status,
              uint64_t checksum = 0);
  // No more posts: the connection is gone. Wakes the pair's owner.
  void break_pair();
  bool broken() const { return broken_.load(); }
  // Whether this READ will not count whatever becomes of it.
  bool given_up(uint64_t sequence) const {
    return closed_.load(std::memory_order_relaxed) ||
           sequence > first_error_.load(std::memory_order_relaxed);
  }

 private:
  struct Slot {
    uint64_t work_id = 0;
    net::CompletionStatus status = net::CompletionStatus::kSuccess;
    uint64_t checksum = 0;
    bool done = false;
  };
  void end(uint64_t sequence, net::CompletionStatus status, uint64_t checksum);
  void notify_later(std::unique_lock<std::mutex> lock);

  EventLoop& loop_;
  flow::Signal* wake_;  // the loop's; null after close()
  const net::Capabilities capabilities_;
  flow::Signal drained_;
  std::atomic<bool> broken_{false};
  std::atomic<bool> closed_{false};
  std::atomic<uint64_t> first_error_{std::numeric_limits<uint64_t>::max()};

  std::mutex mutex_;
  std::deque<Slot> slots_;         // guarded by mutex_; the first is number first_
  uint64_t first_ = 0;             // guarded by mutex_
  uint64_t unfinished_ = 0;        // guarded by mutex_
  bool notification_due_ = false;  // guarded by mutex_
  bool flushing_ = false;          // the loop's: an error was polled
};

}  // namespace weightlane::prod
