// The board: what a source tells its readers of the same machine, in memory that they map.
//
// Nothing can stop another process that reads this one's memory (process_vm_readv asks nobody, a
// mapping stays). So the reader looks: every READ compares, before and after it copies, that its
// connection has not been dropped and that the region still has the name it was given. A source
// that drops a pair or deregisters first takes the entry off the board, so no READ that ends later
// succeeds with bytes of afterwards. Until it looks again the reader may go on reading what it
// throws away.
//
// One writer, the source's loop; any number of readers, who map it read-only and believe nothing
// they find: an address on it is only ever given to process_vm_readv or looked up among mapped
// arenas.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "flow/result.h"
#include "net/data_plane.h"
#include "prod/shared_memory.h"

namespace weightlane::prod {

struct BoardPair {
  uint64_t slot = 0;
  uint64_t serial = 0;  // never 0, never twice in a process
};

class SourceBoard {
 public:
  // kResourceExhausted. `nonce` identifies the process to whoever reads its memory.
  static Result<std::unique_ptr<SourceBoard>> create(uint64_t nonce);

  // `arena` is the SharedArena's id that the range lies in; 0: none.
  Result<Done> publish(net::RegionId region, net::MemoryRange range, uint64_t arena);
  void retract(net::RegionId region);
  // The region must be on the board.
  net::RemoteRegion describe(net::RegionId region) const;

  std::optional<BoardPair> add_pair();
  void drop_pair(const BoardPair& pair);

  uint64_t address() const;  // of the nonce, in this process
  uint64_t length() const;
  int file() const;

 private:
  SourceBoard() = default;
  SharedArenas own_;
  std::optional<SharedMemory> memory_;
  std::shared_ptr<const SharedArena> arena_;
  std::unordered_map<uint64_t, uint32_t> slots_;  // of regions
  std::vector<uint32_t> free_slots_;
  uint32_t used_slots_ = 0;
  std::vector<uint64_t> free_pairs_;
  uint64_t used_pairs_ = 0;
  uint64_t last_serial_ = 0;
};

// Where bytes of a region are in the peer.
struct BoardPlace {
  uint64_t address = 0;
  uint64_t arena = 0;  // 0: in none
  bool operator==(const BoardPlace&) const = default;
};

// A reader's view of a peer's board.
class BoardView {
 public:
  static Result<std::unique_ptr<BoardView>> map(uint64_t peer_address, uint64_t length,
                                                FileDescriptor file);
  uint64_t nonce() const;
  bool pair_stands(const BoardPair& pair) const;
  // Where [offset, offset + length) of the region is in the peer; nothing if the region isn't on
  // the board under this name, or not that long.
  std::optional<BoardPlace> locate(uint64_t key, uint64_t offset, uint64_t length) const;

 private:
  explicit BoardView(std::unique_ptr<MappedArena> arena, const uint8_t* data)
      : arena_(std::move(arena)), data_(data) {}
  std::unique_ptr<MappedArena> arena_;
  const uint8_t* data_;
};

}  // namespace weightlane::prod
