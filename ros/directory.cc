// Clients and their requests: who is open, who is alive, what was asked. What the requests mean for
// calls and holdings is in directory_calls.cc and directory_holdings.cc.
#include "ros/directory.h"

#include <algorithm>

#include "ros/planted_bugs.h"
#include "ros/probes.h"
#include "ros/scheduler.h"

namespace weightlane::ros {

namespace {

constexpr size_t kNameLimit = 256;        // bytes of a model's or replica's name
constexpr size_t kTextLimit = 4096;       // bytes of an endpoint or node
constexpr uint32_t kShardsLimit = 65536;  // shards of a replica
constexpr size_t kRetainLimit = 1024;     // versions that one handle names
constexpr int64_t kGapHeartbeats = 3;     // a server that did not run for so long was paused itself
// Heartbeats of silence, from a partial replica that its reader gave up.
constexpr int64_t kSuspectHeartbeats = 2;
// Assignments of two servers must not share a number: a reader may tell either of its end.
constexpr unsigned kAssignmentBits = 24;

net::Failure failure(ErrorCode code, std::string message) {
  net::Failure f;
  f.code = code;
  f.message = std::move(message);
  return f;
}

net::Failure unknown_incarnation() {
  net::Failure f;
  f.kind = net::FailureKind::kUnknownIncarnation;
  f.code = ErrorCode::kClosed;
  f.message = "this server does not know that incarnation";
  return f;
}

Result<Done> check_open(const net::OpenRequest& open) {
  if (open.model.empty() || open.model.size() > kNameLimit)
    return Error{ErrorCode::kInvalidArgument, "a model's name has 1 to 256 bytes"};
  if (open.replica.empty() || open.replica.size() > kNameLimit)
    return Error{ErrorCode::kInvalidArgument, "a replica's name has 1 to 256 bytes"};
  if (open.num_shards == 0 || open.num_shards > kShardsLimit)
    return Error{ErrorCode::kInvalidArgument,
                 "num_shards is " + std::to_string(open.num_shards) + ", must be 1 to 65536"};
  if (open.shard.value >= open.num_shards)
    return Error{ErrorCode::kInvalidArgument, "shard " + std::to_string(open.shard.value) +
                                                  " is out of range: replica " + open.model + "/" +
                                                  open.replica + " has shards 0 to " +
                                                  std::to_string(open.num_shards - 1)};
  if (open.retain.versions.size() > kRetainLimit)
    return Error{ErrorCode::kInvalidArgument, "more than 1024 versions are to be retained"};
  if (open.endpoint.size() > kTextLimit || open.node.size() > kTextLimit)
    return Error{ErrorCode::kInvalidArgument, "endpoint or node text over 4096 bytes"};
  if (open.datacenter.size() > kNameLimit)
    return Error{ErrorCode::kInvalidArgument, "a datacenter's name has at most 256 bytes"};
  return Done{};
}

}  // namespace

Directory::Directory(ServerOptions options, BootId boot, Nanos now, ServerObserver* observer)
    : options_(options),
      boot_(boot),
      observer_(observer),
      last_tick_(now),
      knows_everyone_at_(now + options.lease),
      next_deadline_(kForever),
      next_assignment_(boot.value << kAssignmentBits | 1) {
  WL_ASSERT(observer_ != nullptr);
}

Directory::~Directory() = default;

net::Response Directory::apply(const net::Request& request, Nanos now) {
  expire_leases(now);
  net::Response response{boot_, net::AcceptedResponse{}};
  const uint64_t who = request.header.incarnation.value;
  if (const auto* list_request = std::get_if<net::ListRequest>(&request.body)) {
    response.body = list(*list_request);
  } else if (const auto* wait_request = std::get_if<net::WaitRequest>(&request.body)) {
    response.body = wait(*wait_request);
  } else if (const auto* rewind_request = std::get_if<net::RewindRequest>(&request.body)) {
    response.body = rewind(*rewind_request);
  } else if (std::holds_alternative<net::PingRequest>(request.body)) {
    // Accepted: somebody is here.
  } else if (const auto* open_request = std::get_if<net::OpenRequest>(&request.body)) {
    response.body = open(request, *open_request, now);
  } else if (auto found = clients_.find(who); found == clients_.end()) {
    observer_->on_probe(probes::kUnknownClient);
    response.body = unknown_incarnation();
  } else {
    response.body = dispatch(found->second, request, now);
  }
  settle(now);
  observer_->on_applied(*this, now);
  return response;
}

net::ResponseBody Directory::dispatch(Client& client, const net::Request& request, Nanos now) {
  if (request.header.session < client.session && !WL_BUG(kStaleSession)) {
    observer_->on_probe(probes::kStaleSession);
    net::Failure stale = failure(ErrorCode::kClosed, "a newer connection of this client exists");
    stale.kind = net::FailureKind::kStaleSession;
    return stale;
  }
  client.session = request.header.session;
  // Polls run beside the requests, which come in order: only these are counted.
  const bool polling = std::holds_alternative<net::PollRequest>(request.body);
  const bool repeated = !polling && request.header.sequence <= client.last_sequence;
  if (repeated)
    observer_->on_probe(probes::kRepeated);
  else if (!polling)
    client.last_sequence = request.header.sequence;
  observer_->on_request(request, repeated);
  client.last_heard = now;
  if (!repeated && std::exchange(client.suspected, false)) sources_changed_ = true;

  if (const auto* poll_request = std::get_if<net::PollRequest>(&request.body))
    return poll(client, *poll_request);
  if (const auto* call = std::get_if<net::GroupCallRequest>(&request.body))
    return group_call(client, *call, now);
  if (const auto* done = std::get_if<net::ReleaseRequest>(&request.body))
    return release(client, *done, now);
  if (const auto* given_up = std::get_if<net::AbortRequest>(&request.body))
    return abort(client, *given_up, now);
  if (std::holds_alternative<net::WithdrawRequest>(request.body)) return withdraw(client, request);
  if (const auto* no_room = std::get_if<net::OffloadFailedRequest>(&request.body))
    return offload_failed(*no_room);
  if (std::holds_alternative<net::CloseRequest>(request.body)) {
    observer_->on_probe(probes::kClosed);
    lose_member(client, "closed", now);
    return net::AcceptedResponse{};
  }
  return failure(ErrorCode::kInvalidArgument, "not a request that a client makes");
}

net::ResponseBody Directory::open(const net::Request& request, const net::OpenRequest& open,
                                  Nanos now) {
  const uint64_t who = request.header.incarnation.value;
  if (who == 0) return failure(ErrorCode::kInvalidArgument, "incarnation 0 is nobody");
  if (Result<Done> checked = check_open(open); !checked)
    return failure(checked.error().code, checked.error().message);
  if (buried_.count(who) != 0) {
    observer_->on_probe(probes::kOpenBuried);
    return unknown_incarnation();
  }
  if (auto known = clients_.find(who); known != clients_.end()) {  // its reply was lost (P10)
    observer_->on_probe(probes::kOpenRepeated);
    Client& client = known->second;
    if (request.header.session > client.session) client.session = request.header.session;
    client.last_heard = now;
    return opened(client);
  }

  adopt_offload(open, now);
  if (Result<Done> wanted = check_offload(open); !wanted)
    return failure(wanted.error().code, wanted.error().message);
  auto [place, fresh] = groups_.try_emplace({open.model, open.replica});
  Group& group = place->second;
  if (fresh) {
    group.id = next_group_++;
    group.model = open.model;
    group.replica = open.replica;
    group.num_shards = open.num_shards;
    group.members.resize(open.num_shards);
    group.layouts.resize(open.num_shards);
    group.offload = open.offload;
    if (open.offload != 0) group.beside = offloads_.at(open.offload).keeper;
    group.seen.resize(open.num_shards);
    group.lineage = boot_.value + group.id;
  }
  if (group.offload != open.offload)
    return failure(ErrorCode::kInvalidArgument,
                   "replica " + group.name() + " is a copy that this server has asked for");
  if (group.num_shards != open.num_shards)
    return failure(ErrorCode::kInvalidArgument,
                   "replica " + group.name() + " is open with " + std::to_string(group.num_shards) +
                       " shards, not " + std::to_string(open.num_shards));
  const bool empty = std::all_of(group.members.begin(), group.members.end(),
                                 [](const Client* member) { return member == nullptr; });
  if (empty) {
    group.datacenter = open.datacenter;
    group.spot = open.spot;
  }
  if (group.datacenter != open.datacenter)
    return failure(ErrorCode::kInvalidArgument, "replica " + group.name() +
                                                    " is open in datacenter '" + group.datacenter +
                                                    "', not '" + open.datacenter + "'");
  const Client* holder = group.members[open.shard.value];
  const bool same_handle = holder != nullptr && open.handle != 0 && holder->handle == open.handle;
  if (same_handle && open.opening <= holder->opening) return unknown_incarnation();  // late
  if (holder != nullptr && !same_handle) {
    observer_->on_probe(probes::kOpenOccupied);
    net::Failure occupied =
        failure(ErrorCode::kAlreadyOpen, "shard " + std::to_string(open.shard.value) + " of " +
                                             group.name() + " is open in another process, at " +
                                             holder->endpoint);
    occupied.heard_ago = now - holder->last_heard;
    occupied.holder = holder->incarnation;
    return occupied;
  }

  std::optional<Client> before;
  if (same_handle) {
    before = *holder;
    buried_[holder->incarnation.value] = now + options_.lease * 2;
    woken_.push_back(holder->incarnation);
    clients_.erase(holder->incarnation.value);
  }
  Client& client = clients_[who];
  client.incarnation = request.header.incarnation;
  client.group = &group;
  client.shard = open.shard;
  client.node = open.node;
  client.endpoint = open.endpoint;
  client.spot = open.spot;
  client.retain = open.retain;
  client.on_offload_failure = open.on_offload_failure;
  client.session = request.header.session;
  client.last_sequence = request.header.sequence;
  client.last_heard = now;
  group.spot = group.spot || open.spot;
  client.handle = open.handle;
  client.opening = open.opening;
  group.members[open.shard.value] = &client;
  join(client, std::move(before), open, now);
  note_deadline(now + options_.heartbeat);
  return opened(client);
}

net::ResponseBody Directory::poll(Client& client, const net::PollRequest& poll) {
  while (!client.mailbox.empty() && client.mailbox.front().number <= poll.acknowledged)
    client.mailbox.pop_front();
  client.sealed_bytes = poll.sealed_bytes;
  note_homesick(client, poll.homesick);
  net::EventsResponse response;
  response.events.assign(client.mailbox.begin(), client.mailbox.end());
  return response;
}

net::ResponseBody Directory::release(Client& client, const net::ReleaseRequest& release,
                                     Nanos now) {
  auto found = assignments_.find(release.assignment.value);
  if (found == assignments_.end()) {  // repeated, long gone, or of another server
    release_foreign(client, release, now);
    return net::AcceptedResponse{};
  }
  Assignment& assignment = found->second;
  if (assignment.reader->group != client.group || assignment.shard != client.shard)
    return failure(
        ErrorCode::kInvalidArgument,
        "assignment " + std::to_string(release.assignment.value) + " is not of this shard");
  Publication& reader = *assignment.reader;
  ShardHolding& holding = reader.shards[client.shard.value];
  client.sealed_bytes = release.sealed_bytes;
  if (release.kind == net::ReleaseKind::kFailed) {
    if (Client* failed = assignment.source->group->members[client.shard.value]) {
      failed->suspected = true;
      note_deadline(std::max(now + nanos(1), gone_at(*failed)));
    }
    holding.avoid = assignment.source->group->id;
    holding.retry_at = now + options_.retry_same_source;
    if (assignment.source->group->datacenter == client.group->datacenter) ++holding.failures_here;
  }
  drop_assignment(assignment, now);
  if (reader.hidden) {
    forget_publication(reader);
    return net::AcceptedResponse{};
  }
  if (release.kind == net::ReleaseKind::kComplete) {
    holding.complete = true;
    commit_if_complete(reader, now);
  } else if (release.kind == net::ReleaseKind::kPoisoned) {
    if (auto call = client.group->calls.find(reader.number.value);
        call != client.group->calls.end())
      fail_call(*client.group, call->second, ErrorCode::kReplicaLost,
                "shard " + std::to_string(client.shard.value) + " of " + client.group->name() +
                    ": " + release.reason,
                now);
  } else {
    holding.needs_source = true;
    enqueue(*client.group, reader.number, true);
  }
  return net::AcceptedResponse{};
}

net::ResponseBody Directory::abort(Client& client, const net::AbortRequest& abort, Nanos now) {
  Group& group = *client.group;
  if (abort.number > client.last_call)
    return failure(ErrorCode::kInvalidArgument, "aborts a call it never made");
  const std::string message =
      "shard " + std::to_string(client.shard.value) + " of " + group.name() + ": " + abort.reason;
  auto found = group.calls.find(abort.number.value);
  if (found != group.calls.end() && found->second.receives() && !found->second.decided) {
    fail_call(group, found->second, abort.code, message, now);
  } else if (auto held = group.publications.find(abort.number.value);
             held != group.publications.end() && !held->second->hidden) {
    // Decided meanwhile, and this side has thrown the data away: nobody may go on as if it had
    // (P3).
    observer_->on_probe(probes::kAbortedCommitted);
    poison(group, ErrorCode::kReplicaLost, message, now);
  }
  return net::AcceptedResponse{};
}

net::ResponseBody Directory::list(const net::ListRequest& list) const {
  net::ListResponse response;
  response.open_shards = clients_.size();
  for (auto entry = contents_.rbegin(); entry != contents_.rend(); ++entry) {
    const ContentEntry& content = entry->second;
    if (!list.model.empty() && content.model != list.model) continue;
    for (const Publication* publication : content.publications) {
      net::ListedReplica row;
      row.model = content.model;
      row.replica = publication->group->replica;
      row.content = content.content;
      row.num_shards = publication->group->num_shards;
      row.datacenter = publication->group->datacenter;
      row.state = publication->hidden      ? net::ReplicaState::kHidden
                  : publication->complete  ? net::ReplicaState::kComplete
                  : publication->receiving ? net::ReplicaState::kReceiving
                                           : net::ReplicaState::kPublishing;
      row.offload = publication->group->offload != 0;
      row.spot = publication->group->spot;
      row.retained = retained(content);
      for (const net::LayoutSummary& layout : content.layouts) row.bytes += layout.bytes;
      if (publication->receiving && !publication->complete) {
        for (const Client* member : publication->group->members)
          if (member != nullptr) row.sealed_bytes += member->sealed_bytes;
        for (const ShardHolding& holding : publication->shards) {
          auto reading = assignments_.find(holding.reading.value);
          if (reading != assignments_.end()) row.source = reading->second.source->group->replica;
        }
      } else {
        row.sealed_bytes = row.bytes;
      }
      response.replicas.push_back(std::move(row));
    }
  }
  for (const auto& [name, group] : groups_) {
    if (!list.model.empty() && group.model != list.model) continue;
    if (response.models.empty() || response.models.back().model != group.model)
      response.models.push_back({group.model, generation_of(group.model)});
  }
  return response;
}

void Directory::tick(Nanos now) {
  expire_leases(now);
  expire_calls(now);
  sources_changed_ =
      sources_changed_ || !queue_.empty();  // retries and negative answers come with time
  retention_due_ = true;
  settle(now);
  find_next_deadline(now);
  observer_->on_applied(*this, now);
}

Nanos Directory::patience(const Client& client) const {
  const Nanos suspect = options_.heartbeat * kSuspectHeartbeats;
  const Group& group = *client.group;
  if (!client.suspected || suspect >= options_.lease || group.offload != 0) return options_.lease;
  for (const auto& [number, publication] : group.publications)
    if (publication->complete || !publication->receiving) return options_.lease;
  return suspect;
}

Nanos Directory::gone_at(const Client& client) const {
  return std::max(client.last_heard, leases_since_) + patience(client) + nanos(1);
}

void Directory::expire_leases(Nanos now) {
  if (now - last_tick_ > options_.heartbeat * kGapHeartbeats && !clients_.empty()) {
    // This process was paused, so silence proves nothing about the clients.
    observer_->on_probe(probes::kTimeGap);
    leases_since_ = now;
    knows_everyone_at_ = now + options_.lease;
  }
  last_tick_ = now;
  bool found = true;
  while (found) {  // losing one member may change others, so look again from the start
    found = false;
    for (auto& [who, client] : clients_) {
      if (gone_at(client) > now || WL_BUG(kLeaseIgnored)) continue;
      observer_->on_probe(probes::kEvicted);
      observer_->on_evicted(client.group->model, client.group->replica, client.shard);
      lose_member(client,
                  "not heard for " + std::to_string(patience(client).count / 1'000'000) + " ms",
                  now);
      found = true;
      break;
    }
  }
  std::erase_if(buried_, [now](const auto& entry) { return entry.second <= now; });
  if (WL_BUG(kEvictionLate)) return;
  settle(now);  // what is asked next meets the state after the evictions
}

void Directory::settle(Nanos now) {
  while (sources_changed_ || retention_due_) {
    while (std::exchange(sources_changed_, false)) Scheduler(*this, now).run();
    if (std::exchange(retention_due_, false)) review_retention(now);
  }
  std::erase_if(groups_, [this](const auto& entry) {
    const Group& group = entry.second;
    for (const Client* member : group.members)
      if (member != nullptr) return false;
    if (!group.publications.empty()) return false;
    std::erase_if(queue_, [&group](const auto& item) { return item.second.group == &group; });
    return true;
  });
  std::erase_if(generations_, [this](const auto& entry) {  // (model, "") sorts before its groups
    const auto first = groups_.lower_bound({entry.first, std::string()});
    return first == groups_.end() || first->second.model != entry.first;
  });
  std::erase_if(seeds_put_off_, [this](const auto& entry) {
    return std::none_of(groups_.begin(), groups_.end(), [&entry](const auto& item) {
      return item.second.model == entry.first.first && item.second.datacenter == entry.first.second;
    });
  });
}

void Directory::find_next_deadline(Nanos now) {
  next_deadline_ = kForever;
  if (!clients_.empty() || !buried_.empty()) note_deadline(now + options_.heartbeat);
  for (const auto& [who, client] : clients_) {
    if (client.suspected && patience(client) < options_.lease)
      note_deadline(std::max(now + nanos(1), gone_at(client)));
  }
  for (const auto& [name, group] : groups_) {
    for (const auto& [number, call] : group.calls) {
      if (call.decided) continue;
      const bool spins = WL_BUG(kUnpublishTimer) && call.made < group.num_shards;
      if (call.gathers() || spins) note_deadline(call.gather_deadline);
      note_deadline(call.deadline);
    }
  }
  for (const auto& [token, offload] : offloads_)
    if (offload.deadline > now) note_deadline(offload.deadline);
  for (const auto& [place, waiting] : queue_) {
    auto found = waiting.group->publications.find(waiting.number.value);
    if (found == waiting.group->publications.end()) continue;
    for (const ShardHolding& holding : found->second->shards)
      if (holding.needs_source && holding.retry_at > now) note_deadline(holding.retry_at);
    const Nanos since = found->second->content->no_copy_since;
    if (since != kForever && since + options_.lease > now) note_deadline(since + options_.lease);
  }
}

bool Directory::has_events(Incarnation incarnation) const {
  auto found = clients_.find(incarnation.value);
  return found == clients_.end() || !found->second.mailbox.empty();
}

void Directory::send(Client& client, net::EventBody body) {
  client.mailbox.push_back({client.next_event++, std::move(body)});
  woken_.push_back(client.incarnation);
}

void Directory::enqueue(Group& group, CallNumber number, bool reroute) {
  sources_changed_ = true;
  for (const auto& [place, waiting] : queue_)
    if (waiting.group == &group && waiting.number == number && place.first == !reroute) return;
  const uint64_t place = next_queue_place_++;
  queue_.emplace(std::make_pair(!reroute, place), Waiting{&group, number});
}

}  // namespace weightlane::ros
