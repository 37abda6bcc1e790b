// ArenaCache: peers' shared memory that this process has mapped, kept from one connection to the
// next.
//
// A mapping costs page faults when it is first read, up to as much time again as the copy itself
// (measured), and a reader connects anew for every version. So a mapping stays for as long as the
// process it belongs to lives. It holds no memory that its owner wants back: SharedMemory gives its
// pages back when it is freed, whoever maps them, and a process that ends is seen by its pidfd, so
// that what a dead peer leaves behind goes at once.
//
// An arena is known by its inode, which is a system-wide name for as long as it is mapped; nothing
// that a peer says of itself is a key.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "flow/result.h"
#include "prod/event_loop.h"
#include "prod/shared_memory.h"

namespace weightlane::prod {

class ArenaCache {
 public:
  // `loop` outlives it; everything here runs on the loop's thread.
  explicit ArenaCache(EventLoop& loop) : loop_(loop) {}
  ArenaCache(const ArenaCache&) = delete;
  ArenaCache& operator=(const ArenaCache&) = delete;

  // The peer's arena as MappedArena::map() gives it, or the one from before. `process` is the
  // peer's pidfd.
  Result<std::shared_ptr<const MappedArena>> map(pid_t peer, const FileDescriptor& process,
                                                 uint64_t peer_address, uint64_t length,
                                                 FileDescriptor file);
  size_t size() const;  // mappings kept

 private:
  using Inode = std::pair<uint64_t, uint64_t>;  // device, number
  struct Peer {
    FileDescriptor process;
    std::unique_ptr<FdWatch> watch;  // after `process`: it goes first
    std::map<Inode, std::shared_ptr<const MappedArena>> arenas;
  };
  Peer* peer_of(pid_t pid, const FileDescriptor& process);
  void unmap(std::map<Inode, std::shared_ptr<const MappedArena>> arenas);

  EventLoop& loop_;
  std::map<pid_t, Peer> peers_;
};

}  // namespace weightlane::prod
