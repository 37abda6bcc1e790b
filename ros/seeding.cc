// Everything is read off the directory's groups and publications, of which there are few; the one
// thing noted down is since when a seed has been put off.
#include "ros/seeding.h"

#include <algorithm>
#include <tuple>

#include "ros/planted_bugs.h"
#include "ros/probes.h"
#include "ros/scheduler.h"

namespace weightlane::ros {

namespace {

// After so many failures of sources in its own datacenter, one after the other, a shard may read
// from another one although a copy is near.
constexpr uint32_t kFailuresHere = 2;

bool whole_in(const ContentEntry& content, const std::string& datacenter) {
  for (const Publication* publication : content.publications)
    if (publication->serves_whole() && publication->group->datacenter == datacenter) return true;
  return false;
}

}  // namespace

Seeding::Seeding(Directory& directory, const Scheduler& scheduler, Nanos now)
    : directory_(directory), scheduler_(scheduler), now_(now) {
  ++directory_.choices_;  // what was measured before may have changed
}

bool another_copy(const Publication& source, const Group& reader) {
  const ContentEntry& content = *source.content;
  const bool far = source.group->datacenter != reader.datacenter;
  return far ? content.no_copy_since == kForever : whole_in(content, reader.datacenter);
}

bool is_whole_group(const Group& group) {
  return std::none_of(group.members.begin(), group.members.end(),
                      [](const Client* member) { return member == nullptr; });
}

bool newer(const net::Content& content, const net::Content& than) {
  return std::tie(content.generation, content.version) > std::tie(than.generation, than.version);
}

ContentEntry* Seeding::newest_here(const Group& group, const Publication* held,
                                   const ContentEntry& target) const {
  const VersionId* passed = nullptr;
  auto& contents = directory_.contents_;
  auto at = contents.upper_bound({group.model, UINT64_MAX, UINT64_MAX, UINT64_MAX});
  while (at != contents.begin()) {
    --at;
    ContentEntry& entry = at->second;
    if (entry.model != group.model) break;
    if (held != nullptr && !newer(entry.content, held->content->content)) break;
    if (entry.content.generation != target.content.generation) break;
    if (newer(entry.content, target.content) || entry.no_copy_since != kForever) continue;
    if (passed != nullptr && *passed == entry.content.version) continue;  // renumbered since
    passed = &entry.content.version;
    if (whole_in(entry, group.datacenter)) return &entry;
  }
  return nullptr;
}

bool Seeding::may_seed(const Group& group, const Publication* held) {
  if (WL_BUG(kTwoSeeders)) return true;
  if (newer_arrives(group, held) || (WL_BUG(kSeedLockKept) && lock_kept(group))) {
    directory_.observer_->on_probe(probes::kSeedSkipped);
    return false;
  }
  const auto place = std::make_pair(group.model, group.datacenter);
  const bool keeps = keeps_last_copy(group, held);
  if (keeps || better_seeder_here(group)) {
    const Nanos since = directory_.seeds_put_off_.try_emplace(place, now_).first->second;
    if (now_ - since < directory_.options_.seed_patience) {
      directory_.observer_->on_probe(keeps ? probes::kSeedKept : probes::kSeedLeftToOthers);
      return false;
    }
    directory_.observer_->on_probe(probes::kSeedOverdue);
  }
  return true;
}

// For the planted bug alone: a seeder has failed here, and its place was never given back.
bool Seeding::lock_kept(const Group& group) const {
  auto found = directory_.seeds_put_off_.find({group.model, group.datacenter});
  return found != directory_.seeds_put_off_.end() && found->second == kForever;
}

// A newer version than the one held is on its way into the datacenter.
bool Seeding::newer_arrives(const Group& group, const Publication* held) const {
  for (const auto& [name, other] : directory_.groups_) {
    if (&other == &group || other.model != group.model || other.datacenter != group.datacenter)
      continue;
    for (const auto& [number, publication] : other.publications) {
      if (!publication->receiving || publication->complete || publication->hidden) continue;
      if (held != nullptr && !newer(publication->content->content, held->content->content))
        continue;
      if (publication->seed_order != 0 || scheduler_.rooted(*publication)) return true;
    }
  }
  return false;
}

bool Seeding::arriving(const Group& group, const ContentEntry& content) const {
  for (const Publication* publication : content.publications)
    if (publication->seed_order != 0 && !publication->hidden && !publication->complete &&
        publication->group->datacenter == group.datacenter)
      return true;
  return false;
}

bool Seeding::keeps_last_copy(const Group& group, const Publication* held) const {
  if (held == nullptr || !held->serves_whole() || WL_BUG(kNewestDropped)) return false;
  bool wanted = false;
  for (const auto& [name, other] : directory_.groups_) {
    if (&other == &group || other.model != group.model || other.datacenter != group.datacenter)
      continue;
    bool has = false;
    for (const auto& [number, publication] : other.publications)
      has = has || (publication->serves_whole() &&
                    !newer(held->content->content, publication->content->content));
    if (has) return false;  // this version, or a newer one, is whole elsewhere here
    wanted = wanted || (other.offload == 0 && is_whole_group(other));
  }
  return wanted;
}

bool Seeding::better_seeder_here(const Group& group) const {
  if (!group.spot) return false;
  for (const auto& [name, other] : directory_.groups_) {
    if (other.model != group.model || other.datacenter != group.datacenter) continue;
    if (!other.spot && other.offload == 0 && is_whole_group(other)) return true;
  }
  return false;
}

bool Seeding::may_cross(const Group& group, const Publication* reader,
                        const ContentEntry& content) const {
  if (WL_BUG(kLocalReaderGoesFar)) return true;
  if (WL_BUG(kSeedLockKept) && lock_kept(group)) return false;
  bool failing = false;
  if (reader != nullptr) {
    for (const ShardHolding& holding : reader->shards)
      failing = failing || holding.failures_here >= kFailuresHere;
  }
  for (const Publication* other : content.publications) {
    if (other == reader || other->hidden || other->group == &group) continue;
    if (other->group->datacenter != group.datacenter) continue;
    if (other->complete) {
      if (!failing) return false;
      continue;
    }
    if (!other->receiving || WL_BUG(kTwoSeeders)) continue;
    // Of two seeders that both need a source the older one goes on, and the other waits for it.
    const bool first = other->seed_order != 0 && (reader == nullptr || reader->seed_order == 0 ||
                                                  other->seed_order < reader->seed_order);
    if (!first && !scheduler_.rooted(*other)) continue;
    if (reader == nullptr || !scheduler_.reads_from(*other, *reader)) return false;
  }
  return true;
}

void Seeding::note_source(Publication& reader, const Publication& source) {
  const std::string& datacenter = reader.group->datacenter;
  if (source.group->datacenter != datacenter) {
    if (reader.seed_order != 0) return;
    reader.seed_order = directory_.next_seed_++;
    directory_.seeds_put_off_.erase({reader.group->model, datacenter});
    directory_.observer_->on_probe(probes::kSeedBegun);
    directory_.observer_->on_seed_begun(*reader.group, reader.content->content);
    return;
  }
  if (reader.seed_order == 0) return;
  // It found all it needs nearby after all: no seeder any more.
  for (const ShardHolding& holding : reader.shards) {
    if (holding.complete) continue;
    auto reading = directory_.assignments_.find(holding.reading.value);
    if (reading == directory_.assignments_.end() ||
        reading->second.source->group->datacenter != datacenter)
      return;
  }
  reader.seed_order = 0;
}

}  // namespace weightlane::ros
