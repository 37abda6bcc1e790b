// Retention (P5): a version that an open handle retains is not lost because its last holder wants
// its memory back. Also rewinding, which ends a generation, and what a Wait asks.
//
// Whoever is about to give up a copy on purpose (unpublish, update, close) asks may_withdraw()
// first. If the copy is the last that counts, all shards of one group, mostly the asking one, are
// told to offload: each process opens its shard of a new replica in host memory and replicates the
// content, one decision for all (P3). Only when that replica is whole, and so a copy like any
// other, the asker is answered. Nothing is answered and nothing hidden before; so whatever fails on
// the way leaves the version where it was, and the asker is refused, or, if it chose so, let go.
//
// What counts: whole and visible replicas, and those on spot machines only for one that is itself
// on a spot machine. An offload goes when an ordinary whole replica that nobody is about to give up
// has the version, or when nobody retains it; then it is hidden, drained and closed like any
// replica.
#include <algorithm>

#include "ros/directory.h"
#include "ros/planted_bugs.h"
#include "ros/probes.h"

namespace weightlane::ros {

namespace {

constexpr uint64_t kFirstGeneration = 1;
constexpr size_t kOffloadNameOf = 200;  // bytes of a replica's name that its offload's name repeats

// Tokens are no secret, but another boot of the server must not give out the same.
uint64_t token_of(uint64_t boot, uint64_t count) {
  uint64_t value = boot + count * 0x9e3779b97f4a7c15ull;
  value ^= value >> 31;
  value *= 0x94d049bb133111ebull;
  value ^= value >> 29;
  return value == 0 ? 1 : value;
}

std::string offload_name(const std::string& replica, VersionId version, uint64_t token) {
  char text[24];
  std::snprintf(text, sizeof text, "%08llx", static_cast<unsigned long long>(token >> 32));
  return replica.substr(0, kOffloadNameOf) + "~v" + std::to_string(version.value) + "~" + text;
}

uint64_t bytes_of(const ContentEntry& entry) {
  uint64_t bytes = 0;
  for (const net::LayoutSummary& layout : entry.layouts) bytes += layout.bytes;
  return bytes;
}

}  // namespace

// ---------------------------------------------------------------- what is retained

Generation Directory::generation_of(const std::string& model) const {
  uint64_t generation = kFirstGeneration;
  if (auto rewound = generations_.find(model); rewound != generations_.end())
    generation = rewound->second.generation.value;
  // After a failover, what is held tells it.
  auto newest = contents_.upper_bound({model, UINT64_MAX, UINT64_MAX, UINT64_MAX});
  if (newest != contents_.begin() && (--newest)->second.model == model)
    generation = std::max(generation, newest->second.content.generation.value);
  return {generation};
}

ContentEntry* Directory::resolve(const std::string& model, const net::VersionSpec& version) {
  uint32_t skip = version.kind == net::VersionKind::kLatest ? version.back : 0;
  const Generation generation = generation_of(model);
  const VersionId* passed = nullptr;
  auto at = contents_.upper_bound({model, UINT64_MAX, UINT64_MAX, UINT64_MAX});
  while (at != contents_.begin()) {
    --at;
    ContentEntry& entry = at->second;
    if (entry.model != model) break;
    if (entry.no_copy_since != kForever) continue;
    if (version.kind == net::VersionKind::kExact) {
      if (entry.content.version == version.exact) return &entry;
      continue;
    }
    if (entry.content.generation != generation && !WL_BUG(kGenerationIgnored)) break;
    if (passed != nullptr && *passed == entry.content.version)
      continue;  // same number, older content
    if (skip == 0) return &entry;
    --skip;
    passed = &entry.content.version;
  }
  return nullptr;
}

// How many versions of the entry's generation are newer and whole somewhere.
uint32_t Directory::newer_versions(const ContentEntry& entry) const {
  uint32_t newer = 0;
  const VersionId* counted = nullptr;
  const uint64_t generation = entry.content.generation.value;
  auto at = contents_.upper_bound({entry.model, generation, UINT64_MAX, UINT64_MAX});
  while (at != contents_.begin()) {
    --at;
    const ContentEntry& other = at->second;
    if (&other == &entry) break;
    if (other.no_copy_since != kForever) continue;
    if (other.content.version == entry.content.version) return UINT32_MAX;  // it was replaced
    if (counted != nullptr && *counted == other.content.version) continue;
    counted = &other.content.version;
    ++newer;
  }
  return newer;
}

bool Directory::retained(const ContentEntry& entry) const {
  if (entry.let_go) return false;
  bool asked = false;  // for the costly part only when somebody could retain it
  uint32_t latest = 0;
  for (const auto& [who, client] : clients_) {
    if (client.leaving.value != 0 || client.gone || client.group->model != entry.model) continue;
    latest = std::max(latest, client.retain.latest);
    const auto& named = client.retain.versions;
    asked = asked || std::find(named.begin(), named.end(), entry.content.version) != named.end();
  }
  if (asked) {
    auto newest = contents_.upper_bound({entry.model, UINT64_MAX, UINT64_MAX, UINT64_MAX});
    while (newest != contents_.begin()) {  // of two with one number, the newer one
      --newest;
      const ContentEntry& other = newest->second;
      if (&other == &entry) return true;
      if (other.model != entry.model) break;
      if (other.content.version == entry.content.version && other.no_copy_since == kForever) break;
    }
  }
  if (latest == 0 || entry.content.generation != generation_of(entry.model)) return false;
  return newer_versions(entry) < latest;
}

// Whether giving this copy up would lose a retained version.
bool Directory::needs_keeping(const Publication& publication) const {
  if (!publication.serves_whole() || WL_BUG(kNoOffload)) return false;
  if (!retained(*publication.content)) return false;
  for (const Publication* other : publication.content->publications) {
    if (other == &publication || other->hidden) continue;
    const bool offload = other->group->offload != 0;
    const bool one_shard = std::any_of(other->shards.begin(), other->shards.end(),
                                       [](const ShardHolding& s) { return s.complete; });
    if (WL_BUG(kPartialKeeps) && offload) return false;
    if (WL_BUG(kOffloadPerShard) && offload && one_shard) return false;
    if (!other->serves_whole()) continue;
    if (publication.group->spot || !other->group->spot || WL_BUG(kSpotCounts)) return false;
  }
  return true;
}

// ---------------------------------------------------------------- giving up a copy

bool Directory::withdrawing(const Group& group) const {
  for (const Client* member : group.members)
    if (member != nullptr && member->leaving.value != 0) return true;
  for (const auto& [number, call] : group.calls) {
    if (call.decided) continue;
    if (call.kind == net::CallKind::kUnpublish && call.made > 0 && !call.granted) return true;
    if (call.waits_for_offload) return true;
  }
  return false;
}

Directory::Permission Directory::may_withdraw(Group& group, std::string& why, Nanos now) {
  for (auto& [number, publication] : group.publications) {
    if (!needs_keeping(*publication)) continue;
    ContentEntry& entry = *publication->content;
    if (publication->offload == 0 && publication->offload_failure.empty())
      direct_offload(*publication, now);
    if (publication->offload_failure.empty()) return Permission::kWait;
    why = "version " + std::to_string(entry.content.version.value) + " of model " + group.model +
          " (" + std::to_string(bytes_of(entry)) +
          " bytes) is retained, and its last copy could not be offloaded: " +
          std::exchange(publication->offload_failure, {});
    const bool drops =
        std::all_of(group.members.begin(), group.members.end(), [](const Client* member) {
          return member == nullptr || member->on_offload_failure == net::OffloadFailure::kDrop;
        });
    if (!drops) {
      observer_->on_probe(probes::kWithdrawRefused);
      return Permission::kRefused;
    }
    observer_->on_probe(probes::kRetentionDropped);
    observer_->on_retention_dropped(group.model, entry.content, why);
    entry.let_go = true;
  }
  return Permission::kGo;
}

// The version that a failing update or unpublish must not give up: nothing was withdrawn yet, and
// nobody else has it.
Publication* Directory::kept_through_failure(Group& group, const GroupCall& call) const {
  const bool withdraws =
      call.kind == net::CallKind::kUnpublish || call.kind == net::CallKind::kUpdate;
  if (!withdraws || call.granted || call.receiving != nullptr || WL_BUG(kFailureHides))
    return nullptr;
  for (auto& [number, publication] : group.publications)
    if (needs_keeping(*publication)) return publication.get();
  return nullptr;
}

void Directory::observe_withdrawal(const Publication& publication) {
  if (publication.serves_whole())
    observer_->on_withdrawing(publication.group->model, publication.group->replica,
                              publication.content->content);
}

void Directory::grant_unpublish(Group& group, GroupCall& call, Nanos now) {
  call.granted = true;
  for (Client* member : group.members) {
    if (member == nullptr) continue;
    const ShardCall& shard = call.shards[member->shard.value];
    if (shard.made && !shard.answered) answer_unpublish(*member, call, now);
  }
}

// True when something was answered.
bool Directory::review_withdrawals(Group& group, Nanos now) {
  GroupCall* call = nullptr;
  for (auto& [number, pending] : group.calls) {
    const bool waits = pending.kind == net::CallKind::kUnpublish && pending.made > 0;
    if (call == nullptr && waits && !pending.decided && !pending.granted) call = &pending;
  }
  std::vector<Client*> leaving;
  for (Client* member : group.members)
    if (member != nullptr && member->leaving.value != 0) leaving.push_back(member);
  if (call == nullptr && leaving.empty()) return false;
  std::string why;
  const Permission permission = may_withdraw(group, why, now);
  if (permission == Permission::kWait) return false;
  const bool granted = permission == Permission::kGo;
  if (call != nullptr && granted) {
    grant_unpublish(group, *call, now);
  } else if (call != nullptr) {
    net::DecidedEvent decision{call->number, false, {}, ErrorCode::kRetained, why};
    decision.kept = true;
    decide(group, *call, std::move(decision));
  }
  for (Client* client : leaving) {
    const CallNumber number = std::exchange(client->leaving, CallNumber{});
    client->gone = granted;
    if (granted) {
      for (auto& [held, publication] : group.publications) observe_withdrawal(*publication);
      poison(
          group, ErrorCode::kReplicaLost,
          "shard " + std::to_string(client->shard.value) + " of " + group.name() + " left: closed",
          now);
    }
    send(*client, net::WithdrawnEvent{number, granted, why});
  }
  return true;
}

net::ResponseBody Directory::withdraw(Client& client, const net::Request& request) {
  const CallNumber number = std::get<net::WithdrawRequest>(request.body).number;
  if (request.header.sequence == client.withdraw_sequence) return net::AcceptedResponse{};
  client.withdraw_sequence = request.header.sequence;
  auto held = client.group->publications.find(number.value);
  if (held == client.group->publications.end() || held->second->hidden) {
    client.gone = true;
    send(client, net::WithdrawnEvent{number, true, {}});
  } else {
    client.leaving = number;
    retention_due_ = true;
  }
  return net::AcceptedResponse{};
}

// ---------------------------------------------------------------- offloads

// Spot machines and processes that end are poor keepers, and the memory of the asking group is the
// nearest.
Group* Directory::choose_keeper(const Publication& publication) {
  Group& own = *publication.group;
  if (own.offload == 0 && !own.spot) return &own;
  for (auto& [name, group] : groups_) {
    if (&group == &own || !could_keep(group, publication)) continue;
    observer_->on_probe(probes::kHeirChosen);
    return &group;
  }
  return own.offload == 0 ? &own : nullptr;
}

bool Directory::could_keep(const Group& group, const Publication& publication) const {
  const ContentEntry& entry = *publication.content;
  if (group.model != entry.model || group.offload != 0 || group.spot) return false;
  if (group.num_shards != publication.group->num_shards) return false;
  for (uint32_t shard = 0; shard < group.num_shards; ++shard) {
    const Client* member = group.members[shard];
    if (member == nullptr || member->leaving.value != 0 || member->gone) return false;
    if (group.layouts[shard] != entry.layouts[shard]) return false;
  }
  return true;
}

void Directory::direct_offload(Publication& publication, Nanos now) {
  Group* keeper = choose_keeper(publication);
  if (keeper == nullptr) {
    publication.offload_failure = "no other process can take it";
    return;
  }
  Offload offload;
  offload.token = token_of(boot_.value, next_offload_++);
  offload.model = keeper->model;
  offload.content = publication.content->content;
  offload.replica = offload_name(keeper->replica, offload.content.version, offload.token);
  offload.num_shards = keeper->num_shards;
  offload.keeper = keeper->id;
  offload.deadline = deadline_after(now, options_.offload);
  note_deadline(offload.deadline);
  publication.offload = offload.token;
  observer_->on_probe(probes::kOffloadDirected);
  observer_->on_offload_directed(offload.model, offload.replica, offload.content);
  for (Client* member : keeper->members)
    if (member != nullptr)
      send(*member, net::OffloadEvent{offload.token, offload.replica, offload.content});
  offloads_[offload.token] = std::move(offload);
}

Result<Done> Directory::check_offload(const net::OpenRequest& open) const {
  if (open.offload == 0) return Done{};
  auto found = offloads_.find(open.offload);
  if (found != offloads_.end()) {
    const Offload& offload = found->second;
    if (offload.model == open.model && offload.replica == open.replica &&
        offload.num_shards == open.num_shards) {
      observer_->on_probe(probes::kOffloadJoined);
      return Done{};
    }
  }
  observer_->on_probe(probes::kOffloadStale);
  return Error{
      ErrorCode::kInvalidArgument,
      open.model + "/" + open.replica + ": this copy in host memory is not wanted any more"};
}

Group* Directory::group_of_offload(const Offload& offload) {
  auto found = groups_.find({offload.model, offload.replica});
  return found == groups_.end() ? nullptr : &found->second;
}

ContentEntry* Directory::offload_content(const Group& group) {
  auto offload = offloads_.find(group.offload);
  if (offload == offloads_.end()) return nullptr;
  for (auto& [key, entry] : contents_)
    if (entry.model == group.model && entry.content == offload->second.content) return &entry;
  return nullptr;
}

const Publication* Directory::whole_of(const Group* group) const {
  if (group == nullptr) return nullptr;
  for (const auto& [number, publication] : group->publications)
    if (publication->serves_whole()) return publication.get();
  return nullptr;
}

// It will not get whole, or is not any more.
bool Directory::offload_broken(const Group& group) const {
  if (group.poisoned_upto > 0) return true;
  for (const auto& [number, call] : group.calls)
    if (call.decided && !call.decision.ok) return true;
  for (const auto& [number, publication] : group.publications)
    if (publication->hidden) return true;
  return false;
}

bool Directory::offload_needed(const Offload& offload, const Group* group) const {
  if (const Publication* whole = whole_of(group)) {
    if (WL_BUG(kOffloadLeaks)) return true;
    if (WL_BUG(kOffloadDropped) || !retained(*whole->content)) return false;
    for (const Publication* other : whole->content->publications) {
      if (other == whole || !other->serves_whole() || other->group->spot) continue;
      if (withdrawing(*other->group)) continue;
      if (other->group->offload == 0 || other->group->offload < offload.token) return false;
    }
    return true;
  }
  for (const auto& [name, asking] : groups_) {
    for (const auto& [number, publication] : asking.publications)
      if (publication->offload == offload.token && withdrawing(asking) &&
          needs_keeping(*publication))
        return true;
  }
  return false;
}

net::ResponseBody Directory::offload_failed(const net::OffloadFailedRequest& failed) {
  fail_offload(failed.token, failed.reason);
  return net::AcceptedResponse{};
}

void Directory::fail_offload(uint64_t token, const std::string& why) {
  if (offloads_.find(token) == offloads_.end()) return;
  for (auto& [name, group] : groups_) {
    for (auto& [number, publication] : group.publications) {
      if (publication->offload != token) continue;
      publication->offload_failure = why.empty() ? "for no reason given" : why;
    }
  }
  drop_offload(token, why);
}

// Its shards are told to close. Readers of a whole one are let finish, as at any hand-back.
void Directory::drop_offload(uint64_t token, const std::string& why) {
  auto found = offloads_.find(token);
  const Offload offload = found->second;
  offloads_.erase(found);
  sources_changed_ = true;  // an update may have waited for it
  retention_due_ = true;
  for (auto& [name, group] : groups_)
    for (auto& [number, publication] : group.publications)
      if (publication->offload == token) publication->offload = 0;
  Group* group = group_of_offload(offload);
  if (group == nullptr) return;
  if (whole_of(group) != nullptr) {
    observer_->on_probe(probes::kOffloadReleased);
    for (auto& [number, publication] : group->publications) observe_withdrawal(*publication);
    hide_all(*group, false, why, last_tick_);
  } else {
    poison(*group, ErrorCode::kClosed, why, last_tick_);
  }
  for (Client* member : group->members)
    if (member != nullptr) send(*member, net::DropEvent{why});
}

void Directory::review_offloads(Nanos now) {
  std::vector<uint64_t> tokens;
  for (const auto& [token, offload] : offloads_) tokens.push_back(token);
  for (uint64_t token : tokens) {
    auto found = offloads_.find(token);
    if (found == offloads_.end()) continue;
    const Offload& offload = found->second;
    const Group* group = group_of_offload(offload);
    const bool whole = whole_of(group) != nullptr;
    if (offload.adopted && !knows_everyone(now)) {
      note_deadline(knows_everyone_at_);
      continue;
    }
    if (!whole && group != nullptr && offload_broken(*group)) {
      observer_->on_probe(probes::kOffloadBroken);
      fail_offload(token, "a process that was to keep it was lost");
    } else if (!whole && offload.deadline <= now) {
      observer_->on_probe(probes::kOffloadLate);
      fail_offload(token, "it was not whole in host memory within " +
                              std::to_string(options_.offload.count / 1'000'000) + " ms");
    } else if (!offload_needed(offload, group)) {
      if (!whole) observer_->on_probe(probes::kOffloadUnwanted);
      drop_offload(token, "version " + std::to_string(offload.content.version.value) +
                              " need not be kept in host memory any more");
    }
  }
}

void Directory::review_retention(Nanos now) {
  for (auto& [name, group] : groups_)
    if (review_withdrawals(group, now)) forget_settled(group);
  if (!offloads_.empty()) review_offloads(now);
}

// ---------------------------------------------------------------- rewind and wait

net::ResponseBody Directory::rewind(const net::RewindRequest& rewind) {
  const Generation present = generation_of(rewind.model);
  auto rewound = generations_.find(rewind.model);
  if (rewound != generations_.end() && rewind.ticket != 0 &&
      rewound->second.ticket == rewind.ticket)
    return net::RewoundResponse{rewound->second.generation};  // its answer was lost (P10)
  const auto first = groups_.lower_bound({rewind.model, std::string()});
  net::Failure refused;
  refused.code = ErrorCode::kInvalidArgument;
  if (first == groups_.end() || first->second.model != rewind.model)
    refused.message = "nobody has model " + rewind.model + " open";
  else if (rewind.expected != present)
    refused.message = "model " + rewind.model + " is at generation " +
                      std::to_string(present.value) + ", not " +
                      std::to_string(rewind.expected.value);
  if (!refused.message.empty()) {
    observer_->on_probe(probes::kRewindRefused);
    return refused;
  }
  const Generation next{present.value + 1};
  generations_[rewind.model] = {next, rewind.ticket};
  observer_->on_probe(probes::kRewound);
  observer_->on_rewound(rewind.model, next);
  sources_changed_ = true;
  retention_due_ = true;
  ++copies_changed_;
  return net::RewoundResponse{next};
}

net::ResponseBody Directory::wait(const net::WaitRequest& wait) {
  const auto first = groups_.lower_bound({wait.model, std::string()});
  const bool open = first != groups_.end() && first->second.model == wait.model;
  net::WaitedResponse waited;
  waited.generation = open ? generation_of(wait.model) : Generation{};
  if (const ContentEntry* entry = resolve(wait.model, wait.version)) {
    waited.there = true;
    waited.content = entry->content;
  }
  return waited;
}

}  // namespace weightlane::ros
