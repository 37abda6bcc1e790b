// Handles that come from another server, or from before an eviction, and say what they hold (P9).
//
// The server's state is soft: what every handle announces, together, is the truth. An announcement
// either fits what the other shards of its replica have been through, and is taken in as a whole,
// or it is refused as a whole: then the shard hands its memory back, the replica's next call tells
// all of the loss (P3), and the numbers go on in step behind it. Nothing in between: half a truth
// is how two shards come to hold two versions.
//
// Fits means: the calls that one shard has behind it and another has not are told by one of them;
// where both tell of a call they tell the same; what is held is of one content and one layout.
#include <algorithm>

#include "ros/directory.h"
#include "ros/planted_bugs.h"
#include "ros/probes.h"
#include "ros/scheduler.h"
#include "ros/seeding.h"

namespace weightlane::ros {

namespace {

bool receives(net::CallKind kind) {
  return kind == net::CallKind::kReplicate || kind == net::CallKind::kUpdate;
}

const net::DoneCall* find_done(const net::Announcement& announced, uint64_t number) {
  for (const net::DoneCall& done : announced.done)
    if (done.number.value == number) return &done;
  return nullptr;
}

// Whatever a client sends is data.
bool well_formed(const net::Announcement& announced) {
  uint64_t expected = announced.last_call.value;
  for (size_t i = announced.done.size(); i-- > 0; --expected)
    if (expected == 0 || announced.done[i].number.value != expected) return false;
  const uint64_t next = announced.last_call.value + 1;
  const uint64_t pending = announced.pending.number.value;
  if (pending != 0 && pending != next) return false;
  const net::Holding& held = announced.held;
  if (held.number.value == 0) return true;
  if (held.content.id.value == 0 || held.number.value > next) return false;
  if (held.number.value < next) return held.whole;
  return held.receiving && pending == next && receives(announced.pending.kind);
}

// Nobody but the one that opens has been here.
bool untouched(const Group& group, ShardIndex shard) {
  for (const Client* other : group.members)
    if (other != nullptr && other->shard != shard) return false;
  return group.poisoned_upto == 0 && group.calls.empty() && group.publications.empty();
}

// What began before this call is held no more once it has ended like this.
uint64_t gone_below(const net::DoneCall& done) {
  if (!done.ok) return done.kept ? 0 : done.number.value + 1;
  const bool nothing_new = done.kind == net::CallKind::kUpdate && done.content.id.value == 0;
  return nothing_new ? 0 : done.number.value;
}

}  // namespace

net::OpenedResponse Directory::opened(const Client& client) const {
  return {{client.last_call.value + 1},
          options_.heartbeat,
          options_.lease,
          options_.drain,
          client.refused,
          client.group->lineage};
}

void Directory::join(Client& client, std::optional<Client> before, const net::OpenRequest& open,
                     Nanos now) {
  Group& group = *client.group;
  const ShardIndex shard = client.shard;
  if (before.has_value()) client.last_call = before->last_call;
  if (open.announced.resumed) {
    client.fresh = before.has_value() && before->fresh;
    if (fits(group, before.has_value() ? &*before : nullptr, open) || WL_BUG(kFitsAlways)) {
      observer_->on_probe(before.has_value() ? probes::kAnnouncedInPlace : probes::kAnnounced);
      adopt(client, open.announced, now);
    } else {
      refuse(client, open.announced, now);
    }
  } else if (!before.has_value()) {
    // A new process in a replica whose numbers began elsewhere: nobody here can know what it has
    // lost, so the others learn that one of them was restarted.
    const bool unknown = group.adopted && !group.seen[shard.value];
    group.members[shard.value] = nullptr;
    if (unknown) {
      poison(group, ErrorCode::kReplicaLost,
             "shard " + std::to_string(shard.value) + " of " + group.name() + " was opened anew",
             now);
    }
    group.members[shard.value] = &client;
    client.last_call = {WL_BUG(kNumberingRestarts) ? 0 : group.poisoned_upto};
  }
  group.seen[shard.value] = true;
}

// ---------------------------------------------------------------- does it fit

bool Directory::fits(const Group& group, const Client* before, const net::OpenRequest& open) {
  const net::Announcement& announced = open.announced;
  if (!well_formed(announced)) return false;
  const bool nothing_done = announced.last_call.value == 0 && announced.held.number.value == 0;
  if (!nothing_done && announced.lineage != group.lineage && !untouched(group, open.shard))
    return false;
  // Further behind a loss than one call: it is told at once instead of call by call.
  if (group.poisoned_upto > announced.last_call.value + 1) return false;
  if (before == nullptr) {
    // Behind a loss that this shard has not been told of, it must not go on.
    const net::DoneCall* lost = find_done(announced, group.poisoned_upto);
    if (group.poisoned_upto > 0 && (lost == nullptr || lost->ok)) return false;
    for (const Client* other : group.members) {
      if (other == nullptr || other->shard == open.shard) continue;
      if (other->fresh && announced.last_call.value > 0) return false;  // its numbers are its own
    }
  }
  return fits_calls(group, before, open.shard, announced) &&
         fits_holding(group, open.shard, announced);
}

bool Directory::fits_calls(const Group& group, const Client* before, ShardIndex shard,
                           const net::Announcement& announced) const {
  const uint64_t last = announced.last_call.value;
  for (const Client* other : group.members) {
    if (other == nullptr || other->shard == shard) continue;
    const uint64_t ended = other->last_call.value - (other->last_answered ? 0 : 1);
    for (uint64_t number = ended + 1; number <= last; ++number) {
      const net::DoneCall* done = find_done(announced, number);
      if (done == nullptr) return false;
      // The other is in this call: success is only for who has sealed all of it.
      const bool waits = number == other->last_call.value;
      if (!waits || !receives(done->kind) || !done->ok || done->content.id.value == 0) continue;
      auto held = group.publications.find(number);
      if (held == group.publications.end() || held->second->hidden ||
          !held->second->shards[other->shard.value].complete)
        return false;
    }
    for (uint64_t number = last + 1; number <= ended; ++number)
      if (group.calls.find(number) == group.calls.end() && number > group.poisoned_upto)
        return false;
  }
  for (const net::DoneCall& done : announced.done) {
    auto found = group.calls.find(done.number.value);
    if (found == group.calls.end()) {
      const bool told = before != nullptr && done.number <= before->last_call;
      if (done.ok && !told && done.number.value <= group.poisoned_upto) return false;
      continue;
    }
    const GroupCall& call = found->second;
    if (call.made == 0) continue;
    if (call.kind != done.kind) return false;
    if (done.kind != net::CallKind::kUnpublish && call.version != done.version) return false;
    if (!call.decided) continue;
    if (call.decision.ok != done.ok) return false;
    if (receives(done.kind) && done.ok && call.decision.content != done.content) return false;
  }
  return true;
}

bool Directory::fits_holding(const Group& group, ShardIndex shard,
                             const net::Announcement& announced) {
  const net::Holding& held = announced.held;
  // Decided meanwhile, but not held by who waits for it.
  auto decided = group.calls.find(announced.pending.number.value);
  if (decided != group.calls.end() && decided->second.decided && decided->second.decision.ok &&
      receives(decided->second.kind) && decided->second.decision.content.id.value != 0) {
    const bool has_it = held.number == announced.pending.number && held.whole &&
                        held.content == decided->second.decision.content;
    if (!has_it) return false;
  }
  if (held.number.value == 0) return true;
  if (held.number.value <= group.poisoned_upto) return false;
  if (const ContentEntry* entry = find_content(group.model, held.content))
    if (!check_layout(*entry, group, shard, held.layout)) return false;
  auto found = group.publications.find(held.number.value);
  if (found == group.publications.end()) return true;
  const Publication& publication = *found->second;
  if (publication.content->content != held.content) return false;
  return held.whole || !publication.complete;
}

ContentEntry* Directory::find_content(const std::string& model, net::Content content) {
  const uint64_t generation = content.generation.value;
  const uint64_t version = content.version.value;
  auto at = contents_.lower_bound({model, generation, version, 0});
  for (; at != contents_.end() && at->second.model == model &&
         at->second.content.generation == content.generation &&
         at->second.content.version == content.version;
       ++at) {
    if (at->second.content == content) return &at->second;
  }
  return nullptr;
}

// A copy in host memory that another server asked for: it is kept for as long as this one may still
// hear of who retains it.
void Directory::adopt_offload(const net::OpenRequest& open, Nanos now) {
  const net::Holding& held = open.announced.held;
  if (open.offload == 0 || !open.announced.resumed || !held.whole) return;
  Offload& offload = offloads_[open.offload];
  if (offload.token != 0) return;
  observer_->on_probe(probes::kOffloadAnnounced);
  offload.token = open.offload;
  offload.model = open.model;
  offload.replica = open.replica;
  offload.num_shards = open.num_shards;
  offload.content = held.content;
  offload.adopted = true;
  offload.deadline = deadline_after(now, options_.offload);
  note_deadline(offload.deadline);
}

// ---------------------------------------------------------------- refused

// As if the shard had been lost and opened anew, only that it keeps its place.
void Directory::refuse(Client& client, const net::Announcement& announced, Nanos now) {
  observer_->on_probe(probes::kAnnounceRefused);
  Group& group = *client.group;
  const ShardIndex shard = client.shard;
  const std::string message = "shard " + std::to_string(shard.value) + " of " + group.name() +
                              " comes back with what does not fit the others";
  const uint64_t last =
      std::max({announced.last_call.value, announced.pending.number.value, client.last_call.value});
  group.members[shard.value] = nullptr;
  if (last > group.poisoned_upto) {
    group.poisoned_upto = last;
    lose_shard(group, shard, message, now);
  } else {  // the others have been told of a loss as late as this
    std::vector<Publication*> all;
    for (auto& [number, publication] : group.publications)
      if (publication->shards[shard.value].present) all.push_back(publication.get());
    for (Publication* publication : all) {
      hide(*publication, true, message, now);
      give_up_shard(*publication, shard, message, now);
    }
  }
  group.members[shard.value] = &client;
  client.last_call = {group.poisoned_upto};
  client.last_answered = true;
  client.refused = true;
  client.fresh = false;
}

// ---------------------------------------------------------------- adopted

void Directory::adopt(Client& client, const net::Announcement& announced, Nanos now) {
  Group& group = *client.group;
  if (announced.last_call.value > 0 && !client.fresh) group.adopted = true;
  if (announced.lineage != group.lineage && untouched(group, client.shard))
    group.lineage = announced.lineage;
  drop_unannounced(client, announced, now);
  client.last_call = announced.last_call;
  client.last_answered = true;
  adopt_calls(client, announced, now);
  adopt_holding(client, announced, now);
  const bool told_now = announced.pending.number.value == client.last_call.value + 1;
  if (told_now && announced.pending.number.value > 0) group_call(client, announced.pending, now);
  forget_settled(group);
}

// Of an opening of the same handle before this one, what is true no more.
void Directory::drop_unannounced(Client& client, const net::Announcement& announced, Nanos now) {
  Group& group = *client.group;
  const uint32_t shard = client.shard.value;
  for (auto& [number, call] : group.calls) {
    if (number <= announced.last_call.value || call.made == 0 || !call.shards[shard].made) continue;
    call.shards[shard] = {};
    --call.made;
  }
  std::vector<Publication*> all;
  for (auto& [number, publication] : group.publications) all.push_back(publication.get());
  for (Publication* publication : all) {
    ShardHolding& holding = publication->shards[shard];
    const bool same = publication->number == announced.held.number;
    if (!holding.present || same) continue;
    drop_reading(holding, now);
    if (publication->number == announced.pending.number) continue;  // begins again
    const char* why = "given up under another server";
    hide(*publication, true, why, now);
    give_up_shard(*publication, client.shard, why, now);
  }
}

void Directory::adopt_calls(Client& client, const net::Announcement& announced, Nanos now) {
  Group& group = *client.group;
  if (announced.begun && announced.pending.number.value > group.gone_below)
    group.gone_below = announced.pending.number.value;
  for (const net::DoneCall& done : announced.done) {
    group.gone_below = std::max(group.gone_below, gone_below(done));
    if (done.number.value <= group.poisoned_upto) continue;
    GroupCall& call = group.calls[done.number.value];
    if (call.made == 0) {
      call.number = done.number;
      call.kind = done.kind;
      call.version = done.version;
      call.shards.resize(group.num_shards);
      call.gather_deadline = deadline_after(now, options_.missing_member);
      note_deadline(call.gather_deadline);
    }
    ShardCall& mine = call.shards[client.shard.value];
    if (!mine.made) ++call.made;
    mine = {true, true, done.kind, done.version, {}};
    if (done.ok && done.kind == net::CallKind::kUnpublish && !call.granted)
      grant_unpublish(group, call, now);
    if (call.decided || (done.ok && !receives(done.kind)) || WL_BUG(kOutcomeIgnored)) continue;
    observer_->on_probe(probes::kAnnouncedOutcome);
    call.receiving = nullptr;
    net::DecidedEvent end{done.number, done.ok, done.content, done.code, done.message};
    end.kept = done.kept;
    // Not this server's decision: it only passes it on.
    call.decided = true;
    call.decision = std::move(end);
    for (Client* member : group.members) {
      if (member == nullptr) continue;
      const ShardCall& waiting = call.shards[member->shard.value];
      if (waiting.made && !waiting.answered) answer(*member, call);
    }
  }
  std::vector<Publication*> gone;
  for (auto& [number, publication] : group.publications)
    if (number < group.gone_below) gone.push_back(publication.get());
  for (Publication* publication : gone) hide(*publication, false, "given up", now);
}

void Directory::adopt_holding(Client& client, const net::Announcement& announced, Nanos now) {
  const net::Holding& held = announced.held;
  if (held.number.value == 0) return;
  Group& group = *client.group;
  // A transfer whose call has failed here meanwhile: the answer is on its way, and nobody may be
  // sent to read, or be read, for it (seed 711183).
  auto failed = group.calls.find(held.number.value);
  if (held.receiving && failed != group.calls.end() && failed->second.decided &&
      !failed->second.decision.ok && !WL_BUG(kFailedAdopted))
    return;
  ContentEntry* known = find_content(group.model, held.content);
  ContentEntry& entry = known != nullptr ? *known : add_content(group, held.content);
  entry.layouts[client.shard.value] = held.layout;
  entry.layout_known[client.shard.value] = true;
  group.layouts[client.shard.value] = held.layout;
  std::unique_ptr<Publication>& slot = group.publications[held.number.value];
  if (slot == nullptr) {
    slot = std::make_unique<Publication>();
    slot->group = &group;
    slot->number = held.number;
    slot->content = &entry;
    slot->shards.resize(group.num_shards);
    slot->receiving = held.receiving;
    entry.publications.push_back(slot.get());
  }
  Publication& publication = *slot;
  ShardHolding& holding = publication.shards[client.shard.value];
  holding.present = true;
  holding.complete = held.whole || WL_BUG(kPartialAnnounced);
  holding.drained = false;  // told again, if it was
  if (holding.reading != held.reading) {
    drop_reading(holding, now);
    holding.reading = held.whole ? AssignmentId{} : held.reading;
    holding.upstream = held.upstream;
  }
  if (!held.whole) observer_->on_probe(probes::kAnnouncedPartial);
  if (holding.reading.value != 0) {
    auto reading = assignments_.find(holding.reading.value);
    if (reading == assignments_.end()) {
      adopt_reading(publication, client.shard);
    } else if (std::exchange(reading->second.abandoned, false)) {
      abandon(reading->second, "its source has failed");
    }
  }
  sources_changed_ = true;
  if (held.number.value < group.gone_below) hide(publication, false, "given up", now);
  notice_drained(publication);
  commit_if_complete(publication, now);
  // Readers that told of this source before it came.
  for (Publication* reader : entry.publications) {
    ShardHolding& theirs = reader->shards[client.shard.value];
    const bool foreign = theirs.reading.value != 0 && theirs.upstream == group.replica &&
                         assignments_.count(theirs.reading.value) == 0;
    if (foreign) adopt_reading(*reader, client.shard);
  }
}

// READs that another server began: when their source is known here, free, and no cycle comes of it,
// they are an assignment like any other.
void Directory::adopt_reading(Publication& reader, ShardIndex shard) {
  ShardHolding& holding = reader.shards[shard.value];
  for (Publication* source : reader.content->publications) {
    if (source->group->replica != holding.upstream || source->group == reader.group) continue;
    if (source->hidden || !source->shards[shard.value].present) continue;
    if (source->group->members[shard.value] == nullptr) continue;
    const bool taken =
        options_.pipelining &&
        std::any_of(source->outgoing.begin(), source->outgoing.end(),
                    [&reader](const Assignment* other) { return other->reader != &reader; });
    const Scheduler scheduler(*this, last_tick_);
    if (taken || scheduler.reads_from(*source, reader)) continue;
    Seeding(*this, scheduler, last_tick_).note_source(reader, *source);
    observer_->on_probe(probes::kAnnouncedReading);
    Assignment& assignment = assignments_[holding.reading.value];
    assignment.id = holding.reading;
    assignment.reader = &reader;
    assignment.source = source;
    assignment.shard = shard;
    source->outgoing.push_back(&assignment);
    observer_->on_assigned(reader.group->replica, source->group->replica, shard,
                           reader.content->content);
    return;
  }
}

void Directory::drop_reading(ShardHolding& holding, Nanos now) {
  if (auto reading = assignments_.find(holding.reading.value); reading != assignments_.end())
    drop_assignment(reading->second, now);
  holding.reading = {};
}

// done(assignment, sealed) of READs that another server began.
void Directory::release_foreign(Client& client, const net::ReleaseRequest& release, Nanos now) {
  Group& group = *client.group;
  for (auto& [number, publication] : group.publications) {
    ShardHolding& holding = publication->shards[client.shard.value];
    if (release.assignment.value == 0 || holding.reading != release.assignment) continue;
    observer_->on_probe(probes::kForeignDone);
    holding.reading = {};
    client.sealed_bytes = release.sealed_bytes;
    if (publication->hidden) {
      forget_publication(*publication);
    } else if (release.kind == net::ReleaseKind::kComplete) {
      holding.complete = true;
      commit_if_complete(*publication, now);
    } else {
      auto call = group.calls.find(number);
      if (call == group.calls.end() || call->second.receiving != publication.get()) return;
      holding.needs_source = true;
      enqueue(group, publication->number, true);
    }
    return;
  }
}

// ---------------------------------------------------------------- going back

// The replica goes as a whole, when each of its shards reaches a server before this one.
void Directory::note_homesick(Client& client, bool homesick) {
  client.homesick = homesick;
  if (!homesick) client.sent_back = false;
  if (!homesick) return;
  for (const Client* member : client.group->members)
    if (member != nullptr && !member->homesick) return;
  for (Client* member : client.group->members) {
    if (member == nullptr || member->sent_back) continue;
    member->sent_back = true;
    send(*member, net::MoveEvent{});
  }
}

}  // namespace weightlane::ros
