// The reader's end of a same-host connection: READs are copied by helper threads, out of mapped
// memory where the peer's is shared, by process_vm_readv otherwise.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "net/data_plane.h"
#include "prod/arena_cache.h"
#include "prod/checksum.h"
#include "prod/helper_threads.h"
#include "prod/read_queue.h"
#include "prod/same_host_board.h"
#include "prod/unix_channel.h"

namespace weightlane::prod {

// Frames on the channel.
enum class SameHostFrame : uint32_t {
  kHello = 1,     // reader: a = service; body = hello
  kBoard = 2,     // source: a = address, b = length; with the descriptor
  kArena = 3,     // source: likewise, any time; body = its id
  kAccepted = 4,  // source: a = pair slot, b = serial; body = payload
  kRefused = 5,   // source: a = ErrorCode; body = reason
};

// Who is read from, as far as is known so far. Filled while connecting.
struct SameHostPeer {
  pid_t pid = 0;
  FileDescriptor process;  // pidfd
  std::unique_ptr<BoardView> board;
  BoardPair pair;
  std::map<uint64_t, std::shared_ptr<const MappedArena>> arenas;  // by the peer's ids
};

// Shared by the pair and the copies under way.
class SameHostReader final : public RegionUser,
                             public std::enable_shared_from_this<SameHostReader> {
 public:
  SameHostReader(EventLoop& loop, MemoryRegistry& registry, HelperThreads* copies,
                 ArenaCache* mapped, flow::Signal* wake, net::Capabilities capabilities,
                 SameHostPeer peer, std::shared_ptr<UnixChannel> channel);

  // On the loop's thread.
  net::PostResult post(const net::ReadWork& work);
  ReadQueue& queue() { return *queue_; }
  void on_frame(const UnixFrame& frame, const Bytes& body, FileDescriptor file);
  void on_close() { queue_->break_pair(); }
  // The plane goes: nothing is posted any more, and what is queued ends as flushed.
  void plane_gone();
  void close();
  static flow::Task<Result<Done>> destroy(std::shared_ptr<SameHostReader> reader, Nanos deadline);

  void stop_using_region() override {}  // copies look between two pieces

 private:
  struct Job;
  void carry_out(std::unique_ptr<PendingRead> read);
  net::CompletionStatus copy(PendingRead& read, uint64_t& checksum);
  net::CompletionStatus copy_mapped(PendingRead& read, const uint8_t* from, Checksum& sum);
  net::CompletionStatus copy_by_system(PendingRead& read, uint64_t address, Checksum& sum);
  net::CompletionStatus must_stop(const PendingRead& read) const;
  net::CompletionStatus vm_read(uint64_t address, uint8_t* into, uint64_t bytes) const;
  net::CompletionStatus still_stands(const PendingRead& read, BoardPlace& place) const;
  std::shared_ptr<const MappedArena> arena_of(const BoardPlace& place) const;

  MemoryRegistry* registry_;
  HelperThreads* copies_;  // null once the plane has gone
  ArenaCache* mapped_;     // likewise
  const SameHostPeer peer_;
  const std::shared_ptr<ReadQueue> queue_;
  std::shared_ptr<UnixChannel> channel_;

  mutable std::mutex mutex_;
  std::map<uint64_t, std::shared_ptr<const MappedArena>> arenas_;  // by id; guarded by mutex_
};

std::unique_ptr<net::QueuePair> make_same_host_queue_pair(std::shared_ptr<SameHostReader> reader,
                                                          net::Capabilities capabilities);

// The id in a kArena frame's body; 0 when it is none.
uint64_t arena_id(const Bytes& body);

// One read across by process_vm_readv; nothing and errno when it fails.
std::optional<uint64_t> read_word_of(pid_t pid, uint64_t address);

}  // namespace weightlane::prod
