// What groups hold: contents and their layouts, publications from visible to hidden to drained, the
// claims of readers, and what is left of all that when a member is lost (P2, P4).
#include <algorithm>

#include "ros/directory.h"
#include "ros/planted_bugs.h"
#include "ros/probes.h"
#include "ros/seeding.h"

namespace weightlane::ros {

namespace {

std::string describe(const net::LayoutSummary& layout) {
  char digest[24];
  std::snprintf(digest, sizeof digest, "%016llx",
                static_cast<unsigned long long>(layout.digest_high));
  return std::to_string(layout.tensors) + " tensors, " + std::to_string(layout.bytes) +
         " bytes, digest " + digest;
}

// Ids from a counter would repeat under another boot of the server; two contents must never share
// one.
uint64_t mix(uint64_t value) {
  value ^= value >> 33;
  value *= 0xff51afd7ed558ccdull;
  value ^= value >> 33;
  value *= 0xc4ceb9fe1a85ec53ull;
  value ^= value >> 33;
  return value == 0 ? 1 : value;
}

}  // namespace

// A publisher joins a content only while somebody who published or completed it still shows it:
// after a gap the same number may stand for other bytes, and a reader's old prefix must not be
// mixed with them.
ContentEntry& Directory::content_for_publish(Group& group, VersionId version) {
  bool existed = false;
  const Generation generation = generation_of(group.model);
  for (auto& [key, entry] : contents_) {
    if (entry.model != group.model || entry.content.version != version) continue;
    if (entry.content.generation != generation) continue;
    existed = true;
    for (const Publication* publication : entry.publications) {
      if (publication->hidden || (publication->receiving && !publication->complete)) continue;
      observer_->on_probe(probes::kContentJoined);
      return entry;
    }
  }
  if (existed) observer_->on_probe(probes::kContentRenewed);
  const ContentId id{mix(boot_.value + next_content_)};
  return add_content(group, net::Content{generation, version, id});
}

ContentEntry& Directory::add_content(Group& group, net::Content content) {
  const uint64_t order = next_content_++;
  ContentEntry& entry =
      contents_[{group.model, content.generation.value, content.version.value, order}];
  entry.content = content;
  entry.model = group.model;
  entry.first_publisher = group.replica;
  entry.layouts.resize(group.num_shards);
  entry.layout_known.resize(group.num_shards);
  entry.no_copy_since = last_tick_;
  return entry;
}

Result<Done> Directory::check_layout(const ContentEntry& entry, const Group& group,
                                     ShardIndex shard, const net::LayoutSummary& layout) const {
  const std::string theirs = entry.model + "/" + entry.first_publisher;
  if (entry.layouts.size() != group.num_shards)
    return Error{ErrorCode::kLayoutMismatch,
                 group.name() + " has " + std::to_string(group.num_shards) + " shards, " + theirs +
                     ", which published version " + std::to_string(entry.content.version.value) +
                     ", has " + std::to_string(entry.layouts.size())};
  if (!entry.layout_known[shard.value] || entry.layouts[shard.value] == layout) return Done{};
  return Error{ErrorCode::kLayoutMismatch,
               "shard " + std::to_string(shard.value) + " of " + group.name() + " (" +
                   describe(layout) + ") differs from that of " + theirs + " (" +
                   describe(entry.layouts[shard.value]) +
                   "): name, dtype, shape and order of all tensors must agree"};
}

void Directory::commit_if_complete(Publication& publication, Nanos now) {
  if (publication.hidden || publication.complete) return;
  const bool first_will_do =
      publication.receiving ? WL_BUG(kSuccessUnsealed) : WL_BUG(kVisibleEarly);
  for (const ShardHolding& holding : publication.shards)
    if (!holding.complete && !first_will_do) return;
  Group& group = *publication.group;
  publication.complete = true;
  retention_due_ = true;
  observer_->on_visible(group.model, group.replica, publication.content->content);
  note_copies(*publication.content, now);
  seeds_put_off_.erase({group.model, group.datacenter});
  sources_changed_ = true;
  if (!publication.receiving) return;
  observer_->on_probe(probes::kCommitted);
  auto call = group.calls.find(publication.number.value);
  // An announced one may be whole before all have told, or made again, the call that it belongs to.
  if (call == group.calls.end() || call->second.decided ||
      call->second.made < call->second.shards.size())
    return;
  call->second.receiving = nullptr;
  net::DecidedEvent decision{
      publication.number, true, publication.content->content, ErrorCode::kInvalidArgument, {}};
  decision.rewound = call->second.rewound;
  decide(group, call->second, std::move(decision));
  forget_settled(group);
}

void Directory::note_copies(ContentEntry& entry, Nanos now) {
  for (const Publication* publication : entry.publications) {
    const bool half = publication->receiving && !publication->hidden;
    if (!publication->serves_whole() && !(WL_BUG(kPartialComplete) && half)) continue;
    if (entry.no_copy_since != kForever) ++copies_changed_;
    entry.no_copy_since = kForever;
    return;
  }
  if (entry.no_copy_since != kForever) return;
  entry.no_copy_since = now;
  ++copies_changed_;
  note_deadline(now + options_.lease);
}

// No new reader comes; those there are finish (drain), move to another copy if they have not begun,
// or are told to stop when what they wait for will never come.
void Directory::hide(Publication& publication, bool failed, const std::string& why, Nanos now) {
  if (publication.hidden) return;
  publication.hidden = true;
  sources_changed_ = true;
  retention_due_ = true;
  Group& group = *publication.group;
  if (publication.complete)
    observer_->on_hidden(group.model, group.replica, publication.content->content);
  for (ShardHolding& holding : publication.shards) holding.needs_source = false;
  if (auto call = group.calls.find(publication.number.value); call != group.calls.end())
    call->second.receiving = nullptr;
  note_copies(*publication.content, now);

  const bool cut_short = failed && publication.receiving && !publication.complete;
  if (WL_BUG(kSeedLockKept) && failed && !publication.complete && publication.seed_order != 0)
    seeds_put_off_[{group.model, group.datacenter}] = kForever;
  for (Assignment* assignment : publication.outgoing) {
    if (cut_short && !WL_BUG(kEvictionSilent)) {
      abandon(*assignment, why);
    } else if (another_copy(publication, *assignment->reader->group)) {
      observer_->on_probe(probes::kYielded);
      if (Client* reader = assignment->reader->group->members[assignment->shard.value])
        send(*reader, net::YieldEvent{assignment->id});
    }
  }
  if (!publication.outgoing.empty()) observer_->on_probe(probes::kDrainWaited);
  notice_drained(publication);
}

void Directory::hide_all(Group& group, bool failed, const std::string& why, Nanos now) {
  for (auto& [number, publication] : group.publications) hide(*publication, failed, why, now);
}

// Each shard gets its memory back as soon as its own readers have left, not at the group's end.
void Directory::notice_drained(Publication& publication) {
  if (!publication.hidden) return;
  for (uint32_t shard = 0; shard < publication.shards.size(); ++shard) {
    ShardHolding& holding = publication.shards[shard];
    if (!holding.present || holding.drained) continue;
    const bool read = std::any_of(publication.outgoing.begin(), publication.outgoing.end(),
                                  [shard](const Assignment* a) { return a->shard.value == shard; });
    if (read) continue;
    holding.drained = true;
    if (Client* member = publication.group->members[shard])
      send(*member, net::DrainedEvent{publication.number});
  }
}

// A hidden publication is kept while anyone reads from it, reads for it, or may still publish into
// it.
void Directory::forget_publication(Publication& publication) {
  if (!publication.hidden || !publication.outgoing.empty() || WL_BUG(kNeverForgotten)) return;
  Group& group = *publication.group;
  for (const ShardHolding& holding : publication.shards)
    if (holding.reading.value != 0 || (holding.present && !holding.drained)) return;
  if (!all_shards_beyond(group, publication.number)) return;
  ContentEntry& entry = *publication.content;
  std::erase(entry.publications, &publication);
  if (entry.publications.empty())
    std::erase_if(contents_, [&entry](const auto& item) { return &item.second == &entry; });
  group.publications.erase(publication.number.value);
}

void Directory::abandon(Assignment& assignment, const std::string& why) {
  if (assignment.abandoned) return;
  assignment.abandoned = true;
  observer_->on_probe(probes::kAbandoned);
  if (Client* reader = assignment.reader->group->members[assignment.shard.value])
    send(*reader, net::AbandonEvent{assignment.id, why});
}

void Directory::drop_assignment(Assignment& assignment, Nanos now) {
  (void)now;
  Publication& source = *assignment.source;
  assignment.reader->shards[assignment.shard.value].reading = {};
  std::erase(source.outgoing, &assignment);
  assignments_.erase(assignment.id.value);
  sources_changed_ = true;
  notice_drained(source);
  forget_publication(source);
}

// A member has left or is silent beyond its lease: the replica is not whole any more. What the
// others hold is hidden, what they do ends with ReplicaLost, and the numbering goes on behind it,
// so that whoever opens this shard again is in step.
void Directory::lose_member(Client& client, const std::string& why, Nanos now) {
  Group& group = *client.group;
  retention_due_ = true;
  const ShardIndex shard = client.shard;
  const std::string message =
      "shard " + std::to_string(shard.value) + " of " + group.name() + " left: " + why;
  if (client.last_call.value > group.poisoned_upto) group.poisoned_upto = client.last_call.value;
  group.members[shard.value] = nullptr;
  buried_[client.incarnation.value] = now + options_.lease * 2;
  woken_.push_back(client.incarnation);
  clients_.erase(client.incarnation.value);
  lose_shard(group, shard, message, now);
}

void Directory::lose_shard(Group& group, ShardIndex shard, const std::string& message, Nanos now) {
  std::vector<Publication*> all;
  for (auto& [number, publication] : group.publications) all.push_back(publication.get());
  for (Publication* publication : all) {
    hide(*publication, true, message, now);
    give_up_shard(*publication, shard, message, now);
  }
  const bool alone = std::all_of(group.members.begin(), group.members.end(),
                                 [](const Client* m) { return m == nullptr; });
  if (alone) {
    group.calls.clear();
    for (Publication* publication : all) forget_publication(*publication);
  } else {
    poison(group, ErrorCode::kReplicaLost, message, now);
  }
}

// What this shard has of a hidden publication is gone, and so are its readers' hopes and its own.
void Directory::give_up_shard(Publication& publication, ShardIndex shard,
                              const std::string& message, Nanos now) {
  ShardHolding& holding = publication.shards[shard.value];
  holding.drained = true;  // nobody is left to be told
  for (Assignment* assignment : publication.outgoing)
    if (assignment->shard == shard && !WL_BUG(kEvictionSilent)) abandon(*assignment, message);
  drop_reading(holding, now);
}

}  // namespace weightlane::ros
