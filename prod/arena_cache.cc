// To unmap takes milliseconds a gigabyte: a helper does it.
#include "prod/arena_cache.h"

#include <fcntl.h>
#include <sys/stat.h>

namespace weightlane::prod {
namespace {

// Beyond so many of one peer those that nobody reads go: a peer may allocate anew for each version.
constexpr size_t kArenasOfPeerMax = 64;

}  // namespace

// Null when the process can't be watched: then nothing of it is kept.
ArenaCache::Peer* ArenaCache::peer_of(pid_t pid, const FileDescriptor& process) {
  const auto found = peers_.find(pid);
  if (found != peers_.end()) return &found->second;
  FileDescriptor mine(fcntl(process.get(), F_DUPFD_CLOEXEC, 0));
  if (!mine) return nullptr;
  Peer& peer = peers_[pid];
  peer.process = std::move(mine);
  peer.watch = loop_.watch(peer.process.get(), [this, pid](FdReady ready) {
    if (!ready.readable) return;  // it lives
    const auto ended = peers_.find(pid);
    unmap(std::move(ended->second.arenas));
    peers_.erase(ended);
  });
  return &peer;
}

Result<std::shared_ptr<const MappedArena>> ArenaCache::map(pid_t peer,
                                                           const FileDescriptor& process,
                                                           uint64_t peer_address, uint64_t length,
                                                           FileDescriptor file) {
  struct stat status{};
  const Inode inode =
      fstat(file.get(), &status) == 0 ? Inode{status.st_dev, status.st_ino} : Inode{};
  Peer* const of = peer_of(peer, process);
  if (of != nullptr) {
    const auto found = of->arenas.find(inode);
    if (found != of->arenas.end() && found->second->is(peer_address, length)) return found->second;
  }
  Result<std::unique_ptr<MappedArena>> mapped =
      MappedArena::map(peer_address, length, std::move(file));
  if (!mapped) return mapped.error();
  std::shared_ptr<const MappedArena> arena = std::move(*mapped);
  if (of == nullptr) return arena;
  if (of->arenas.size() >= kArenasOfPeerMax) {
    std::map<Inode, std::shared_ptr<const MappedArena>> unused;
    for (auto at = of->arenas.begin(); at != of->arenas.end();) {
      const auto next = std::next(at);
      if (at->second.use_count() == 1) unused.insert(of->arenas.extract(at));
      at = next;
    }
    unmap(std::move(unused));
  }
  of->arenas[inode] = arena;
  return arena;
}

void ArenaCache::unmap(std::map<Inode, std::shared_ptr<const MappedArena>> arenas) {
  if (arenas.empty()) return;
  auto shared = std::make_shared<decltype(arenas)>(std::move(arenas));
  loop_.post_work([shared = std::move(shared)]() mutable { shared.reset(); }, [] {});
}

size_t ArenaCache::size() const {
  size_t count = 0;
  for (const auto& [pid, peer] : peers_) count += peer.arenas.size();
  return count;
}

}  // namespace weightlane::prod
