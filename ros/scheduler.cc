// run() passes once over the queue of those who wait; a reader that was given a source is itself a
// source from then on, so the Directory calls it again until nothing changes.
#include "ros/scheduler.h"

#include <algorithm>
#include <tuple>

#include "ros/planted_bugs.h"
#include "ros/probes.h"
#include "ros/seeding.h"

namespace weightlane::ros {

namespace {

constexpr uint32_t kUnrooted = UINT32_MAX;
constexpr uint32_t kChainLimit =
    1u << 20;  // no chain is longer; guards against a cycle that must not exist

}  // namespace

void Scheduler::run() {
  would_cross_ = false;
  pass(false);
  if (would_cross_) pass(true);
}

void Scheduler::pass(bool new_calls_cross) {
  new_calls_cross_ = new_calls_cross;
  std::vector<std::pair<bool, uint64_t>> places;
  places.reserve(directory_.queue_.size());
  for (const auto& [place, waiting] : directory_.queue_) places.push_back(place);
  for (const auto& place : places) {
    auto entry = directory_.queue_.find(place);
    if (entry == directory_.queue_.end()) continue;
    const Directory::Waiting waiting = entry->second;
    bool leaves = true;
    if (place.first) {
      auto call = waiting.group->calls.find(waiting.number.value);
      if (call != waiting.group->calls.end() && !call->second.decided)
        leaves = serve_call(*waiting.group, call->second);
    } else {
      auto reader = waiting.group->publications.find(waiting.number.value);
      if (reader != waiting.group->publications.end() && !reader->second->hidden)
        leaves = serve_reroute(*reader->second);
    }
    if (leaves) directory_.queue_.erase(place);
  }
}

bool Scheduler::serve_call(Group& group, GroupCall& call) {
  if (auto begun = group.publications.find(call.number.value); begun != group.publications.end()) {
    resume_transfer(group, call, *begun->second);
    return true;
  }
  ContentEntry* entry = group.offload != 0 ? directory_.offload_content(group)
                                           : directory_.resolve(group.model, call.version);
  if (group.offload != 0 && entry == nullptr) {
    directory_.fail_call(group, call, ErrorCode::kVersionUnavailable,
                         "what was to be offloaded is gone", now_);
    return true;
  }
  if (call.kind == net::CallKind::kUpdate) {
    entry = serve_update(group, call, entry);
    if (call.decided) {
      directory_.forget_settled(group);
      return true;
    }
  }
  if (entry == nullptr) return false;
  if (WL_BUG(kReplicateSkips) && Seeding(directory_, *this, now_).arriving(group, *entry)) {
    directory_.decide(group, call,
                      net::DecidedEvent{call.number, true, {}, ErrorCode::kInvalidArgument, {}});
    return true;
  }
  if (!layouts_agree(group, call, *entry)) return true;
  std::vector<uint32_t> shards(group.num_shards);
  for (uint32_t shard = 0; shard < group.num_shards; ++shard) shards[shard] = shard;
  Publication* source = choose(group, nullptr, *entry, shards);
  if (source == nullptr) {
    directory_.observer_->on_probe(probes::kQueued);
    return false;
  }
  if (call.kind == net::CallKind::kUpdate) {
    const Directory::Permission permission = may_update(group, call);
    if (permission != Directory::Permission::kGo)
      return permission == Directory::Permission::kRefused;
  }
  begin_transfer(group, call, *entry, *source);
  return true;
}

// Before the old version goes: is it the last copy of a retained one? A refusal ends the call,
// which is then gone.
Directory::Permission Scheduler::may_update(Group& group, GroupCall& call) {
  std::string why;
  const Directory::Permission permission = directory_.may_withdraw(group, why, now_);
  call.waits_for_offload = permission == Directory::Permission::kWait;
  if (permission == Directory::Permission::kRefused) {
    net::DecidedEvent decision{call.number, false, {}, ErrorCode::kRetained, why};
    decision.kept = true;
    directory_.decide(group, call, std::move(decision));
    directory_.forget_settled(group);
  }
  return permission;
}

ContentEntry* Scheduler::serve_update(Group& group, GroupCall& call, ContentEntry* target) {
  const Publication* held = nullptr;
  for (const auto& [number, publication] : group.publications)
    if (!publication->hidden) held = publication.get();
  Seeding seeding(directory_, *this, now_);
  const bool wanted =
      target != nullptr && (held == nullptr || newer(target->content, held->content->content));
  if (wanted) {
    if (ContentEntry* here = seeding.newest_here(group, held, *target)) return here;
    const bool may_seed = seeding.may_seed(group, held);
    if (may_seed && !new_calls_cross_) would_cross_ = true;
    if (may_seed) return new_calls_cross_ ? target : nullptr;
    directory_.observer_->on_seed_skipped(group, target->content);
  }
  // A shard that has given up its old version for this call (P9) can't be told "nothing newer".
  if (call.number.value <= group.gone_below && !WL_BUG(kBegunForgotten)) return target;
  directory_.observer_->on_probe(probes::kUpdateNothing);
  directory_.decide(group, call,
                    net::DecidedEvent{call.number, true, {}, ErrorCode::kInvalidArgument, {}});
  return nullptr;
}

bool Scheduler::layouts_agree(Group& group, GroupCall& call, const ContentEntry& entry) {
  for (uint32_t shard = 0; shard < group.num_shards; ++shard) {
    Result<Done> same = directory_.check_layout(entry, group, {shard}, call.shards[shard].layout);
    if (same) continue;
    directory_.observer_->on_probe(probes::kLayoutMismatch);
    directory_.fail_call(group, call, same.error().code, same.error().message, now_);
    return false;
  }
  return true;
}

void Scheduler::begin_transfer(Group& group, GroupCall& call, ContentEntry& entry,
                               Publication& source) {
  if (call.kind == net::CallKind::kUpdate) {
    directory_.observer_->on_probe(probes::kUpdateDecided);
    for (auto& [number, held] : group.publications) {
      if (held->hidden) continue;
      call.rewound = call.rewound || held->content->content.generation != entry.content.generation;
      directory_.observe_withdrawal(*held);
    }
    directory_.hide_all(group, false, "updated", now_);
  }
  auto owned = std::make_unique<Publication>();
  Publication& reader = *owned;
  reader.group = &group;
  reader.number = call.number;
  reader.content = &entry;
  reader.receiving = true;
  reader.shards.resize(group.num_shards);
  for (ShardHolding& holding : reader.shards) holding.present = true;
  group.publications[call.number.value] = std::move(owned);
  entry.publications.push_back(&reader);
  call.receiving = &reader;
  for (uint32_t shard = 0; shard < group.num_shards; ++shard) {
    Publication* own = &source;
    if (WL_BUG(kPerShardDecision) && shard > 0) {
      for (auto& [name, other] : directory_.groups_)
        for (auto& [number, held] : other.publications)
          if (held->serves_whole() && held->content != &entry && held->outgoing.empty())
            own = held.get();
    }
    assign(reader, {shard}, *own);
  }
}

void Scheduler::resume_transfer(Group& group, GroupCall& call, Publication& reader) {
  directory_.observer_->on_probe(probes::kTransferResumed);
  ContentEntry& entry = *reader.content;
  if (reader.hidden || !reader.receiving) {
    directory_.fail_call(group, call, ErrorCode::kReplicaLost,
                         group.name() + " has lost what its shards had received", now_);
    return;
  }
  for (auto& [number, publication] : group.publications)
    if (publication.get() != &reader) directory_.hide(*publication, false, "updated", now_);
  for (ShardHolding& holding : reader.shards) holding.present = true;
  call.receiving = &reader;
  if (reader.complete) {
    call.receiving = nullptr;
    directory_.decide(
        group, call,
        net::DecidedEvent{call.number, true, entry.content, ErrorCode::kInvalidArgument, {}});
    directory_.forget_settled(group);
    return;
  }
  if (!layouts_agree(group, call, entry)) return;
  for (ShardHolding& holding : reader.shards)
    holding.needs_source = !holding.complete && holding.reading.value == 0;
  directory_.enqueue(group, call.number, true);
  directory_.commit_if_complete(reader, now_);
}

void Scheduler::assign(Publication& reader, ShardIndex shard, Publication& source) {
  Client* client = reader.group->members[shard.value];
  const Client* from = source.group->members[shard.value];
  WL_ASSERT(client != nullptr && from != nullptr);
  const AssignmentId id{directory_.next_assignment_++};
  Assignment& assignment = directory_.assignments_[id.value];
  assignment.id = id;
  assignment.reader = &reader;
  assignment.source = &source;
  assignment.shard = shard;
  source.outgoing.push_back(&assignment);
  ShardHolding& holding = reader.shards[shard.value];
  holding.reading = id;
  holding.needs_source = false;
  Seeding(directory_, *this, now_).note_source(reader, source);
  if (!source.complete) directory_.observer_->on_probe(probes::kFromPartial);
  if (holding.avoid == source.group->id) directory_.observer_->on_probe(probes::kRetriedSame);
  directory_.observer_->on_assigned(reader.group->replica, source.group->replica, shard,
                                    reader.content->content);
  const bool any_content = WL_BUG(kPerShardDecision) || WL_BUG(kResumeOther);
  const ContentEntry& content = any_content ? *source.content : *reader.content;
  directory_.send(*client, net::AssignedEvent{reader.number,
                                              id,
                                              content.content,
                                              {source.group->replica, from->incarnation,
                                               from->endpoint, from->node, source.complete}});
  directory_.sources_changed_ = true;  // the reader is a partial source now
}

bool Scheduler::serve_reroute(Publication& reader) {
  bool waiting = false;
  for (uint32_t shard = 0; shard < reader.shards.size(); ++shard) {
    if (!reader.shards[shard].needs_source) continue;
    if (Publication* source = choose(*reader.group, &reader, *reader.content, {shard})) {
      directory_.observer_->on_probe(probes::kRerouted);
      assign(reader, {shard}, *source);
      const bool mixed =
          std::any_of(reader.shards.begin(), reader.shards.end(), [&](const ShardHolding& other) {
            auto found = directory_.assignments_.find(other.reading.value);
            return found != directory_.assignments_.end() && found->second.source != source;
          });
      if (mixed) directory_.observer_->on_probe(probes::kMixedSources);
      continue;
    }
    if (WL_BUG(kResumeOther)) {
      Publication* other = nullptr;
      for (auto& [key, entry] : directory_.contents_)
        if (entry.content.version == reader.content->content.version && other == nullptr)
          other = choose(*reader.group, &reader, entry, {shard});
      if (other != nullptr) assign(reader, {shard}, *other);
      if (other != nullptr) continue;
    }
    waiting = true;
    if (reader.shards[shard].retry_at > now_)
      directory_.note_deadline(reader.shards[shard].retry_at);
  }
  if (!waiting) return true;
  // Whoever has the rest, or will have it, is busy: wait for it. Nobody: one lease of grace, since
  // the holder may be on its way back.
  const Nanos since = reader.content->no_copy_since;
  if (since == kForever) return false;
  ++directory_.choices_;
  for (const Publication* other : reader.content->publications) {
    if (other == &reader || other->hidden || chain_length(*other) == kUnrooted) continue;
    if (!reads_from(*other, reader)) return false;
  }
  const Nanos grace = since + directory_.options_.lease;
  if (now_ < grace) {
    directory_.note_deadline(grace);
    return false;
  }
  Group& group = *reader.group;
  auto call = group.calls.find(reader.number.value);
  WL_ASSERT(call != group.calls.end());
  directory_.observer_->on_probe(probes::kUnavailable);
  directory_.fail_call(group, call->second, ErrorCode::kVersionUnavailable,
                       "version " + std::to_string(reader.content->content.version.value) +
                           " of model " + group.model + ": its last holder is gone and " +
                           group.name() + " has only a part",
                       now_);
  return true;
}

Publication* Scheduler::choose(const Group& group, const Publication* reader,
                               const ContentEntry& content,
                               const std::vector<uint32_t>& shards) const {
  ++directory_.choices_;
  Publication* best = nullptr;
  std::tuple<bool, bool, bool, bool, bool, uint32_t, size_t> best_rank;
  const bool may_cross = Seeding(directory_, *this, now_).may_cross(group, reader, content);
  for (Publication* candidate : content.publications) {
    if (!eligible(*candidate, group, reader, shards)) continue;
    const bool crosses = candidate->group->datacenter != group.datacenter;
    if (crosses && !may_cross) continue;
    if (crosses && reader == nullptr && !new_calls_cross_) {
      would_cross_ = true;
      continue;
    }
    const uint32_t chain = chain_length(*candidate);
    const uint32_t shard = shards.front();
    const bool avoided = reader != nullptr && reader->shards[shard].avoid == candidate->group->id;
    const bool far = group.members[shard] == nullptr ||
                     group.members[shard]->node != candidate->group->members[shard]->node;
    const std::tuple rank{avoided,
                          !within_process(group, *candidate->group),
                          crosses,
                          far,
                          !candidate->complete,
                          chain,
                          candidate->outgoing.size()};
    if (best == nullptr || rank < best_rank) {
      best = candidate;
      best_rank = rank;
    }
  }
  return best;
}

bool Scheduler::eligible(const Publication& candidate, const Group& group,
                         const Publication* reader, const std::vector<uint32_t>& shards) const {
  if (candidate.hidden || candidate.group == &group) return false;
  for (uint32_t shard : shards) {
    if (candidate.group->members[shard] == nullptr) return false;
    if (reader == nullptr) continue;
    const ShardHolding& holding = reader->shards[shard];
    if (holding.avoid == candidate.group->id && now_ < holding.retry_at) return false;
  }
  const bool pipelining = directory_.options_.pipelining;
  // A copy within the processes takes nothing of their NICs, so it neither waits nor is waited for.
  if (pipelining && !WL_BUG(kTwoReaders) && !within_process(group, *candidate.group)) {
    for (const Assignment* taken : candidate.outgoing)
      if (taken->reader != reader && !within_process(*taken->reader->group, *candidate.group))
        return false;
  }
  if (candidate.complete) return true;
  if (!pipelining || !candidate.receiving) return false;
  for (uint32_t shard : shards)
    if (candidate.group->members[shard]->suspected) return false;
  if (chain_length(candidate) == kUnrooted && !WL_BUG(kCycle)) return false;
  return reader == nullptr || WL_BUG(kCycle) || !reads_from(candidate, *reader);
}

bool Scheduler::within_process(const Group& reader, const Group& source) {
  return reader.offload != 0 && reader.beside == source.id;
}

bool Scheduler::rooted(const Publication& publication) const {
  return chain_length(publication) != kUnrooted;
}

bool Scheduler::reads_from(const Publication& publication, const Publication& other) const {
  std::vector<const Publication*> todo{&publication};
  std::vector<const Publication*> seen;
  while (!todo.empty()) {
    const Publication* at = todo.back();
    todo.pop_back();
    if (at == &other) return true;
    if (std::find(seen.begin(), seen.end(), at) != seen.end()) continue;
    seen.push_back(at);
    for (const ShardHolding& holding : at->shards) {
      auto found = directory_.assignments_.find(holding.reading.value);
      if (found != directory_.assignments_.end()) todo.push_back(found->second.source);
    }
  }
  return false;
}

// Within one choice nothing changes, so every publication is measured once.
uint32_t Scheduler::chain_length(const Publication& publication, uint32_t depth) const {
  if (publication.chain_choice != directory_.choices_) {
    publication.chain = measure_chain(publication, depth);
    publication.chain_choice = directory_.choices_;
  }
  return publication.chain;
}

uint32_t Scheduler::measure_chain(const Publication& publication, uint32_t depth) const {
  if (publication.complete || WL_BUG(kPartialComplete)) return 0;
  if (!publication.receiving || publication.hidden || depth > kChainLimit) return kUnrooted;
  uint32_t longest = 0;
  for (uint32_t shard = 0; shard < publication.shards.size(); ++shard) {
    const ShardHolding& holding = publication.shards[shard];
    if (holding.complete) continue;
    auto found = directory_.assignments_.find(holding.reading.value);
    if (found == directory_.assignments_.end() || found->second.abandoned) return kUnrooted;
    const Publication* source = found->second.source;
    if (source->group->members[shard] == nullptr) return kUnrooted;
    const uint32_t rest = chain_length(*source, depth + 1);
    if (rest == kUnrooted) return kUnrooted;
    longest = std::max(longest, rest + 1);
  }
  return longest;
}

}  // namespace weightlane::ros
