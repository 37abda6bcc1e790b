// The n-th call of a group: gathering its shards, its one decision, and what a loss does to the
// calls after it (P3).
//
// publish and unpublish are answered shard by shard, at once; when they turn out to be wrong
// afterwards (another shard made a different n-th call, or never came), the shards that were
// already answered learn it from their next call: the group is poisoned up to there. replicate and
// update have one decision for all.
#include "ros/directory.h"
#include "ros/planted_bugs.h"
#include "ros/probes.h"

namespace weightlane::ros {

namespace {

std::string describe(net::CallKind kind, const net::VersionSpec& version) {
  std::string text = net::call_kind_name(kind);
  if (kind != net::CallKind::kUnpublish) text += "(" + net::to_string(version) + ")";
  return text;
}

}  // namespace

// Whoever begins to publish or receive has its memory back: what still reads an earlier publication
// of this shard would meet the new one there, which may itself read from the reader (P7).
void Directory::leave_earlier(Client& client, const net::GroupCallRequest& request) {
  if (request.kind == net::CallKind::kUnpublish || WL_BUG(kEarlierRead)) return;
  for (auto& [number, publication] : client.group->publications) {
    if (number >= request.number.value || !publication->hidden) continue;
    for (Assignment* reading : publication->outgoing)
      if (reading->shard == client.shard && !reading->abandoned)
        abandon(*reading, "its source has its memory back");
  }
}

net::ResponseBody Directory::group_call(Client& client, const net::GroupCallRequest& request,
                                        Nanos now) {
  Group& group = *client.group;
  if (request.number <= client.last_call) {  // repeated: its decision is on its way
    if (WL_BUG(kRepeatedApplied)) {
      auto again = group.calls.find(request.number.value);
      if (again != group.calls.end()) ++again->second.made;
    }
    return net::AcceptedResponse{};
  }
  if (request.number.value != client.last_call.value + 1) {
    net::Failure wrong;
    wrong.code = ErrorCode::kInvalidArgument;
    wrong.message = "call " + std::to_string(request.number.value) + " after call " +
                    std::to_string(client.last_call.value);
    return wrong;
  }
  if (!client.last_answered) {
    net::Failure early;
    early.code = ErrorCode::kInvalidArgument;
    early.message = "call " + std::to_string(request.number.value) + " before call " +
                    std::to_string(client.last_call.value) + " was decided";
    return early;
  }
  client.last_call = request.number;
  client.last_answered = false;
  leave_earlier(client, request);

  auto found = group.calls.find(request.number.value);
  if (request.number.value <= group.poisoned_upto && found == group.calls.end()) {
    observer_->on_probe(probes::kCallPoisoned);
    client.last_answered = true;
    send(client,
         net::DecidedEvent{request.number, false, {}, group.poison.code, group.poison.message});
    forget_settled(group);
    return net::AcceptedResponse{};
  }
  GroupCall& call = found != group.calls.end() ? found->second : group.calls[request.number.value];
  if (call.made == 0) {
    call.number = request.number;
    call.kind = request.kind;
    call.version = request.version;
    call.shards.resize(group.num_shards);
    call.gather_deadline =
        WL_BUG(kMissingForever) ? kForever : deadline_after(now, options_.missing_member);
    note_deadline(call.gather_deadline);
  }
  ShardCall& mine = call.shards[client.shard.value];
  WL_ASSERT(!mine.made);
  mine = {true, false, request.kind, request.version, request.layout};
  ++call.made;
  if (request.kind != net::CallKind::kUnpublish) group.layouts[client.shard.value] = request.layout;

  if (call.decided) {
    answer(client, call);
  } else if (!matches_first(client, call, request)) {
    observer_->on_probe(probes::kCallMismatch);
  } else if (request.kind == net::CallKind::kPublish) {
    make_publish(client, call, request, now);
  } else if (request.kind == net::CallKind::kUnpublish) {
    make_unpublish(client, call, now);
  } else {
    make_receive(client, call, request, now);
  }
  forget_settled(group);
  return net::AcceptedResponse{};
}

// The n-th calls of all shards must be one call. If not: an error to all that names both.
bool Directory::matches_first(Client& client, GroupCall& call,
                              const net::GroupCallRequest& request) {
  if (request.kind == call.kind && (request.kind == net::CallKind::kUnpublish ||
                                    request.version == call.version || WL_BUG(kMismatchAllowed)))
    return true;
  uint32_t first = 0;
  while (first == client.shard.value || !call.shards[first].made) ++first;
  fail_call(*client.group, call, ErrorCode::kCallMismatch,
            "call " + std::to_string(call.number.value) + " of " + client.group->name() +
                ": shard " + std::to_string(first) + " made " + describe(call.kind, call.version) +
                ", shard " + std::to_string(client.shard.value) + " made " +
                describe(request.kind, request.version),
            last_tick_);
  return false;
}

void Directory::make_publish(Client& client, GroupCall& call, const net::GroupCallRequest& request,
                             Nanos now) {
  Group& group = *client.group;
  std::unique_ptr<Publication>& slot = group.publications[call.number.value];
  ContentEntry& entry =
      slot != nullptr ? *slot->content : content_for_publish(group, request.version.exact);
  if (slot == nullptr) {
    slot = std::make_unique<Publication>();
    slot->group = &group;
    slot->number = call.number;
    slot->content = &entry;
    slot->shards.resize(group.num_shards);
    entry.publications.push_back(slot.get());
  }
  Publication& publication = *slot;
  if (Result<Done> same = check_layout(entry, group, client.shard, request.layout); !same) {
    observer_->on_probe(probes::kLayoutMismatch);
    fail_call(group, call, same.error().code, same.error().message, now);
    return;
  }
  entry.layouts[client.shard.value] = request.layout;
  entry.layout_known[client.shard.value] = true;
  ShardHolding& holding = publication.shards[client.shard.value];
  holding.present = true;
  holding.complete = true;
  call.decision =
      net::DecidedEvent{call.number, true, entry.content, ErrorCode::kInvalidArgument, {}};
  answer(client, call);
  commit_if_complete(publication, now);
  notice_drained(publication);  // another shard may have withdrawn it before this one came
}

// The first shard's call begins it for all: what is retained is offloaded before anyone is answered
// (P5). Those who call later find it granted, or refused.
void Directory::make_unpublish(Client& client, GroupCall& call, Nanos now) {
  Group& group = *client.group;
  if (call.granted) return answer_unpublish(client, call, now);
  review_withdrawals(group, now);
}

void Directory::answer_unpublish(Client& client, GroupCall& call, Nanos now) {
  call.decision = net::DecidedEvent{call.number, true, {}, ErrorCode::kInvalidArgument, {}};
  answer(client, call);
  if (WL_BUG(kUnpublishShown)) return;
  for (auto& [number, publication] : client.group->publications) {
    if (!publication->shards[client.shard.value].present || publication->hidden) continue;
    observe_withdrawal(*publication);
    hide(*publication, false, "unpublished", now);
  }
}

void Directory::make_receive(Client& client, GroupCall& call, const net::GroupCallRequest& request,
                             Nanos now) {
  const Nanos deadline = deadline_after(now, request.timeout);
  if (deadline < call.deadline) call.deadline = deadline;
  note_deadline(call.deadline);
  if (call.made == client.group->num_shards) enqueue(*client.group, call.number, false);
}

void Directory::answer(Client& client, GroupCall& call) {
  client.last_answered = true;
  call.shards[client.shard.value].answered = true;
  send(client, call.decision);
}

void Directory::decide(Group& group, GroupCall& call, net::DecidedEvent decision) {
  WL_ASSERT(!call.decided);
  call.decided = true;
  call.decision = std::move(decision);
  observer_->on_decided(group.model, group.replica, call.number, call.kind, call.decision.ok,
                        call.decision.code, call.decision.content);
  for (Client* member : group.members)
    if (member != nullptr && call.shards[member->shard.value].made &&
        !call.shards[member->shard.value].answered)
      answer(*member, call);
}

void Directory::fail_call(Group& group, GroupCall& call, ErrorCode code, const std::string& message,
                          Nanos now) {
  bool answered_ok = false;
  for (const ShardCall& shard : call.shards)
    answered_ok = answered_ok || (shard.made && shard.answered);
  if (const Publication* kept = kept_through_failure(group, call)) {
    observer_->on_probe(probes::kKeptOnFailure);
    net::DecidedEvent decision{call.number, false, {}, ErrorCode::kRetained, message};
    decision.message += "; version " + std::to_string(kept->content->content.version.value) +
                        " is retained and has no other copy, so it stays published";
    decision.kept = true;
    retention_due_ = true;  // an offload that it waited for is not needed now
    return decide(group, call, std::move(decision));
  }
  decide(group, call, net::DecidedEvent{call.number, false, {}, code, message});
  hide_all(group, true, message, now);
  if (answered_ok && !WL_BUG(kNextCallSpared)) poison(group, code, message, now);
}

// All that the group's shards have under way ends with this error, and so does each one's next
// call.
void Directory::poison(Group& group, ErrorCode code, const std::string& message, Nanos now) {
  for (const Client* member : group.members) {
    if (member == nullptr) continue;
    const uint64_t upto = member->last_call.value + (member->last_answered ? 1 : 0);
    if (upto > group.poisoned_upto) group.poisoned_upto = upto;
  }
  group.poison = Error{code, message};
  for (auto& [number, call] : group.calls)
    if (number <= group.poisoned_upto && !call.decided)
      decide(group, call, net::DecidedEvent{call.number, false, {}, code, message});
  hide_all(group, true, message, now);
  forget_settled(group);
}

std::string Directory::missing_shards(const Group& group, const GroupCall& call) const {
  std::string text;
  uint32_t named = 0;
  for (uint32_t shard = 0; shard < group.num_shards; ++shard) {
    if (call.shards[shard].made) continue;
    if (named == 8) return text + ", ...";
    text += (named++ == 0 ? "shard " : ", shard ") + std::to_string(shard);
    if (group.members[shard] == nullptr) text += " (not open)";
  }
  return text;
}

void Directory::expire_calls(Nanos now) {
  for (auto& [name, group] : groups_) {
    std::vector<uint64_t> due;  // failing one may decide or forget others
    for (const auto& [number, call] : group.calls) {
      const bool late = call.gathers() && call.gather_deadline <= now;
      if (!call.decided && (late || call.deadline <= now)) due.push_back(number);
    }
    for (uint64_t number : due) {
      auto found = group.calls.find(number);
      if (found == group.calls.end() || found->second.decided) continue;
      const Error why = explain_timeout(group, found->second);
      fail_call(group, found->second, why.code, why.message, now);
    }
    forget_settled(group);
  }
}

// Whom the call waited for.
Error Directory::explain_timeout(const Group& group, const GroupCall& call) const {
  const std::string what = describe(call.kind, call.version) + " of " + group.name() + ", call " +
                           std::to_string(call.number.value) + ": ";
  if (call.made < group.num_shards) {
    observer_->on_probe(probes::kMissingMember);
    return {ErrorCode::kTimeout, what + "waited for " + missing_shards(group, call)};
  }
  observer_->on_probe(probes::kCallTimeout);
  if (call.receiving != nullptr) {
    std::string waiting;
    for (uint32_t shard = 0; shard < group.num_shards; ++shard) {
      const ShardHolding& holding = call.receiving->shards[shard];
      if (holding.complete) continue;
      auto reading = assignments_.find(holding.reading.value);
      waiting += (waiting.empty() ? "shard " : ", shard ") + std::to_string(shard) +
                 (reading == assignments_.end()
                      ? " waits for a source"
                      : " still reads from " + reading->second.source->group->replica);
    }
    return {ErrorCode::kTimeout, what + waiting};
  }
  bool exists = false;
  std::string held;
  for (const auto& [key, entry] : contents_) {
    if (entry.model != group.model || entry.no_copy_since != kForever) continue;
    exists = exists || call.version.kind == net::VersionKind::kLatest ||
             entry.content.version == call.version.exact;
    held += (held.empty() ? "" : ", ") + std::to_string(entry.content.version.value);
  }
  if (exists)
    return {ErrorCode::kTimeout,
            what +
                "every holder was busy with another reader, or is in another datacenter "
                "and the version was on its way into this one"};
  if (!knows_everyone(last_tick_) && !WL_BUG(kNegativeAtOnce)) {
    observer_->on_probe(probes::kTooYoungToKnow);
    return {ErrorCode::kTimeout, what + "nobody has announced it to this server, which is new"};
  }
  return {ErrorCode::kVersionUnavailable,
          what + "nobody holds it; versions held: " + (held.empty() ? "none" : held)};
}

// True when no shard can make call `number` any more.
bool Directory::all_shards_beyond(const Group& group, CallNumber number) const {
  for (const Client* member : group.members) {
    if (member == nullptr ? number.value > group.poisoned_upto
                          : (member->last_call < number ||
                             (member->last_call == number && !member->last_answered)))
      return false;
  }
  return true;
}

void Directory::forget_settled(Group& group) {
  uint64_t lowest = UINT64_MAX;
  uint64_t highest = 0;
  for (const Client* member : group.members) {
    const uint64_t at = member == nullptr ? group.poisoned_upto : member->last_call.value;
    if (at < lowest) lowest = at;
    if (at > highest) highest = at;
  }
  std::erase_if(group.calls, [this, &group](const auto& entry) {
    const GroupCall& call = entry.second;
    if (call.receives() && !call.decided) return false;
    return all_shards_beyond(group, call.number);
  });
  std::vector<Publication*> hidden;
  for (auto& [number, publication] : group.publications)
    if (publication->hidden) hidden.push_back(publication.get());
  for (Publication* publication : hidden) forget_publication(*publication);
  if (highest > lowest + options_.calls_ahead_most && highest > group.poisoned_upto) {
    observer_->on_probe(probes::kFallenBehind);
    poison(group, ErrorCode::kTimeout,
           "a shard of " + group.name() + " is more than " +
               std::to_string(options_.calls_ahead_most) + " calls behind another",
           last_tick_);
  }
}

}  // namespace weightlane::ros
