// Scheduler: who reads from whom. Works on the Directory's state, in one step: choosing a source
// reserves it (P7).
//
// Rules, in their order: a source is free (with pipelining it serves one reader replica at a time);
// same node, then same datacenter, then others, if seeding.h lets it go there at all; whole copies
// before partial ones; the shortest chain. A partial replica
// is a source only while its own chain ends in a whole copy at this server, and never for a replica
// that feeds it at any distance. The source that failed a shard last is left out for a while and
// then allowed again, in case there is no other. Requests wait in order; re-routes go first, calls
// that would begin to read from another datacenter last: a slow link keeps its source busy for
// long.
#pragma once

#include "ros/directory.h"

namespace weightlane::ros {

class Scheduler {
 public:
  Scheduler(Directory& directory, Nanos now) : directory_(directory), now_(now) {}
  // One look at the whole queue; sets Directory::sources_changed_ when it is worth another.
  void run();
  bool reads_from(const Publication& publication, const Publication& other) const;

  // A whole copy, or one that will be whole if its sources go on.
  bool rooted(const Publication& publication) const;

 private:
  void pass(bool new_calls_cross);
  // Each returns true when the entry leaves the queue.
  bool serve_call(Group& group, GroupCall& call);
  // The content that an update is to take; null: it is decided (nothing), or is to wait.
  ContentEntry* serve_update(Group& group, GroupCall& call, ContentEntry* target);
  bool serve_reroute(Publication& reader);
  // A call whose transfer had begun under another server, or before a shard opened anew.
  void resume_transfer(Group& group, GroupCall& call, Publication& reader);

  Directory::Permission may_update(Group& group, GroupCall& call);
  bool layouts_agree(Group& group, GroupCall& call, const ContentEntry& entry);
  void begin_transfer(Group& group, GroupCall& call, ContentEntry& entry, Publication& source);
  void assign(Publication& reader, ShardIndex shard, Publication& source);

  // The best source of `content` for these shards of `group`; `reader` is null for a transfer that
  // has not begun.
  Publication* choose(const Group& group, const Publication* reader, const ContentEntry& content,
                      const std::vector<uint32_t>& shards) const;
  bool eligible(const Publication& candidate, const Group& group, const Publication* reader,
                const std::vector<uint32_t>& shards) const;
  // The reader is an offload that the source's own processes keep.
  static bool within_process(const Group& reader, const Group& source);
  // Links to the nearest whole copy; kUnrooted when the chain does not end in one.
  uint32_t chain_length(const Publication& publication, uint32_t depth = 0) const;
  uint32_t measure_chain(const Publication& publication, uint32_t depth) const;

  Directory& directory_;
  Nanos now_;
  bool new_calls_cross_ = false;  // in this pass
  mutable bool would_cross_ = false;
};

}  // namespace weightlane::ros
