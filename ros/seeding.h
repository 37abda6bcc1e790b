// Seeding: what may cross the slow link into a datacenter, and who carries it (P8).
//
// A version enters a datacenter once. Whoever carries it is its seeder there: the receiving
// publication that was first given a source elsewhere. While there is a seeder, or a whole copy, or
// any replica in the datacenter on its way to become one, nobody else there reads across: replicate
// waits and reads locally, update answers that there is nothing new (skips). The seeder is not
// written down apart: it is a publication with `seed_order` set, so whatever ends the publication
// frees the place, and the next in the queue that finds it free takes over, from its own prefix.
//
// Update prefers the highest newer version that is whole in its datacenter. Without one it may
// seed, unless
//   - a newer version is arriving here already (one at a time, so that a slow link is never so
//     divided that nothing arrives: no datacenter starves);
//   - it holds the last copy of the newest version that is whole here, and others here do not have
//     that yet (a datacenter keeps its newest version until a newer one is here);
//   - it is spot, and a replica that is not is here too.
// The last two are wishes: they hold for `seed_patience`, counted from the first update refused.
#pragma once

#include <string>
#include <utility>

#include "ros/directory.h"

namespace weightlane::ros {

class Scheduler;

class Seeding {
 public:
  Seeding(Directory& directory, const Scheduler& scheduler, Nanos now);

  // The newest content above what `held` names (may be null) and not above `target`, of which a
  // whole copy is in the group's datacenter.
  ContentEntry* newest_here(const Group& group, const Publication* held,
                            const ContentEntry& target) const;
  // Nothing newer is here: whether this update may bring `target`. Notes since when it may not.
  bool may_seed(const Group& group, const Publication* held);

  // Whether `group` may read `content` from another datacenter. `reader`: null before its transfer.
  bool may_cross(const Group& group, const Publication* reader, const ContentEntry& content) const;
  // A source was chosen for shards of `reader`.
  void note_source(Publication& reader, const Publication& source);

  // Somebody in the datacenter brings, or has, what `content` names.
  bool arriving(const Group& group, const ContentEntry& content) const;

 private:
  bool newer_arrives(const Group& group, const Publication* held) const;
  bool lock_kept(const Group& group) const;
  bool keeps_last_copy(const Group& group, const Publication* held) const;
  bool better_seeder_here(const Group& group) const;

  Directory& directory_;
  const Scheduler& scheduler_;
  Nanos now_;
};

// A copy that a reader of `source` could have instead, without another slow link on the way.
bool another_copy(const Publication& source, const Group& reader);
// A replica whose shards are all open.
bool is_whole_group(const Group& group);
bool newer(const net::Content& content, const net::Content& than);

}  // namespace weightlane::ros
