// Everything is looked up by name: offloads are few, and come and go.
#include "sim/retention_checker.h"

#include <algorithm>

#include "sim/checkers.h"
#include "sim/host.h"
#include "sim/memory.h"

namespace weightlane::sim {
namespace {

std::string in_words(net::Content content) {
  return "version " + std::to_string(content.version.value) + " of generation " +
         std::to_string(content.generation.value);
}

// The replica that an offload's name begins with; other names are their own.
std::string_view origin_of(std::string_view replica) {
  return replica.substr(0, replica.find('~'));
}

}  // namespace

class RetentionChecker::Watch final : public ros::HandleObserver {
 public:
  Watch(RetentionChecker& checker, HostId host) : checker_(checker), host_(host) {}
  void on_offload(ros::HandleName name, net::MemoryRange memory, uint64_t all) override {
    checker_.memory_changed(host_, name, memory, all);
  }
  void on_stamp(ros::HandleName name, Stamp stamp, net::Content content) override {
    checker_.stamp_changed(host_, name, stamp, content);
  }
  void on_proven(ros::HandleName name, Stamp, net::Content content, uint64_t bytes) override {
    checker_.proven(host_, name, content, bytes);
  }
  void on_call_ended(ros::HandleName name, CallNumber, net::CallKind, bool ok, ErrorCode code,
                     net::Content, Nanos) override {
    checker_.call_ended(host_, name, ok, code);
  }

 private:
  RetentionChecker& checker_;
  HostId host_;
};

RetentionChecker::RetentionChecker(Checkers& checkers, World& world, const Plan& plan)
    : checkers_(checkers), world_(world), plan_(plan) {}
RetentionChecker::~RetentionChecker() = default;

ros::HandleObserver* RetentionChecker::watch(HostId host) {
  std::unique_ptr<Watch>& watch = watches_[host.value];
  if (watch == nullptr) watch = std::make_unique<Watch>(*this, host);
  return watch.get();
}

void RetentionChecker::server_started() {
  generation_ = {1};
  aborting_ = {};
  leaving_.clear();
}

void RetentionChecker::crashed(HostId host) {
  std::erase_if(shards_, [host](const Shard& shard) { return shard.host == host; });
  gauges_.erase(host.value);
}

uint64_t RetentionChecker::bytes(HostId host) const {
  const auto found = gauges_.find(host.value);
  return found == gauges_.end() ? 0 : found->second;
}

bool RetentionChecker::poisoned(HostId host) const {
  return std::any_of(shards_.begin(), shards_.end(),
                     [host](const Shard& shard) { return shard.host == host && shard.poisoned; });
}

uint64_t RetentionChecker::granules(uint32_t shard) const { return plan_.shard_granules(shard); }

// ---------------------------------------------------------------- what processes keep

RetentionChecker::Shard* RetentionChecker::find(HostId host, ros::HandleName name) {
  for (Shard& shard : shards_)
    if (shard.host == host && shard.replica == name.replica && shard.shard == name.shard.value)
      return &shard;
  return nullptr;
}

void RetentionChecker::memory_changed(HostId host, ros::HandleName name, net::MemoryRange memory,
                                      uint64_t all) {
  if (memory.length > 0) {
    Shard shard;
    shard.replica = name.replica;
    shard.shard = name.shard.value;
    shard.host = host;
    shard.memory = memory;
    shards_.push_back(std::move(shard));
  } else if (Shard* gone = find(host, name)) {
    if (gone->stamp.value != 0)
      checkers_.violate("P2", gone->replica + ": its memory goes with its stamp still valid");
    std::erase_if(shards_, [gone](const Shard& shard) { return &shard == gone; });
  }
  uint64_t sum = 0;
  for (const Shard& shard : shards_)
    if (shard.host == host) sum += shard.memory.length;
  if (sum != all)
    checkers_.violate("P11", "the gauge of offloads says " + std::to_string(all) + " bytes, but " +
                                 std::to_string(sum) + " are taken");
  gauges_[host.value] = all;
}

void RetentionChecker::stamp_changed(HostId host, ros::HandleName name, Stamp stamp,
                                     net::Content content) {
  Shard* shard = find(host, name);
  if (shard == nullptr) return;
  shard->stamp = stamp;
  shard->content = content;
  shard->proven = 0;
}

void RetentionChecker::proven(HostId host, ros::HandleName name, net::Content content,
                              uint64_t bytes) {
  Shard* shard = find(host, name);
  if (shard == nullptr) return;
  const Memory& memory = world_.host(host).memory();
  const uint64_t granule = memory.granule_bytes();
  const uint64_t until = bytes / granule;
  for (uint64_t at = shard->proven; at < until && !checkers_.reads_lie(); ++at) {
    const uint64_t tag = memory.read(shard->memory.address + at * granule);
    if (checkers_.tag_is_of(shard->shard, content, tag, at)) continue;
    checkers_.violate("P1", shard->replica + "/" + std::to_string(shard->shard) + ": granule " +
                                std::to_string(at) + " of " + in_words(content) +
                                " in host memory carries something else");
    return;
  }
  shard->content = content;
  shard->proven = until;
}

void RetentionChecker::call_ended(HostId host, ros::HandleName name, bool ok, ErrorCode code) {
  Shard* shard = find(host, name);
  if (shard == nullptr) return;
  if (!ok && code == ErrorCode::kDestinationPoisoned) shard->poisoned = true;
}

// ---------------------------------------------------------------- what counts

Generation RetentionChecker::generation() const {
  // With several servers, or after one began anew, each has its own idea of it.
  if (!checkers_.one_server() && checkers_.directory() != nullptr)
    return checkers_.directory()->generation_of(kModel);
  uint64_t generation = generation_.value;
  if (const ros::Directory* directory = checkers_.directory()) {
    for (const auto& [name, group] : directory->groups())
      for (const auto& [number, held] : group.publications)
        generation = std::max(generation, held->content->content.generation.value);
  }
  return {generation};
}

void RetentionChecker::rewound(Generation generation) { generation_ = generation; }

bool RetentionChecker::spot(std::string_view replica) const {
  const std::string_view origin = origin_of(replica);
  for (uint32_t i = 0; i < plan_.replicas(); ++i)
    if (checkers_.replica_name(i) == origin) return (plan_.spot >> i & 1) != 0;
  return false;
}

bool RetentionChecker::other_copy(std::string_view replica, net::Content content) const {
  for (const auto& [name, group] : checkers_.directory()->groups()) {
    if (group.replica == replica || (spot(group.replica) && !spot(replica))) continue;
    for (const auto& [number, held] : group.publications)
      if (held->content->content == content && held->serves_whole()) return true;
  }
  return false;
}

// By whoever has a handle open at the server and is not closing it.
bool RetentionChecker::retained(net::Content content) const {
  const ros::Directory* directory = checkers_.directory();
  if (directory == nullptr) return false;
  if (std::find(dropped_.begin(), dropped_.end(), content.id) != dropped_.end()) return false;
  uint32_t latest = 0;
  bool named = false;
  for (const auto& [who, client] : directory->all_clients()) {
    if (client.gone || client.leaving.value != 0 || client.group->offload != 0) continue;
    const std::string& replica = client.group->replica;
    if (replica.front() == 't') latest = std::max(latest, plan_.retain_latest);
    if (replica == "r0") named = named || plan_.retain_exact == content.version.value;
  }
  if (content.generation != generation()) latest = 0;
  uint32_t newer = 0;
  std::vector<VersionId> counted;
  for (const auto& [name, group] : directory->groups()) {
    for (const auto& [number, held] : group.publications) {
      const net::Content other = held->content->content;
      if (!held->serves_whole() || other == content) continue;
      if (other.version == content.version) return false;  // which one counts depends on the order
      const bool known = std::find(counted.begin(), counted.end(), other.version) != counted.end();
      if (other.generation != content.generation || other.version < content.version || known)
        continue;
      counted.push_back(other.version);
      ++newer;
    }
  }
  return named || newer < latest;
}

// ---------------------------------------------------------------- what the server does

void RetentionChecker::request_begins(const net::Request& request) {
  aborting_ = std::holds_alternative<net::AbortRequest>(request.body) ? request.header.incarnation
                                                                      : Incarnation{};
}

void RetentionChecker::withdrawing(std::string_view replica, net::Content content) {
  leaving_ = replica;
  leaving_what_ = content;
  if (!checkers_.one_server() || !retained(content) || other_copy(replica, content)) return;
  checkers_.violate("P5",
                    std::string(replica) + " gives up " + in_words(content) +
                        ", which is retained and of which there is no other copy that counts");
}

void RetentionChecker::hidden(std::string_view replica, net::Content content) {
  const bool announced = leaving_ == replica && leaving_what_ == content;
  leaving_.clear();
  if (announced || !checkers_.one_server() || checkers_.directory() == nullptr) return;
  const auto& groups = checkers_.directory()->groups();
  const auto found = groups.find({kModel, std::string(replica)});
  if (found == groups.end()) return;
  CallNumber lowest{UINT64_MAX};
  CallNumber highest;
  for (const ros::Client* member : found->second.members) {
    if (member == nullptr) return;  // lost
    lowest = std::min(lowest, member->last_call);
    highest = std::max(highest, member->last_call);
  }
  // A shard that has fallen too far behind the others is as good as lost.
  if (highest.value > lowest.value + plan_.server.calls_ahead_most) return;
  if (!retained(content) || other_copy(replica, content)) return;
  if (aborting_.value != 0) {
    // A shard has lost what it had, or its machine's notice is over: as good as a crash.
    const auto& clients = checkers_.directory()->all_clients();
    const auto who = clients.find(aborting_.value);
    if (who == clients.end() || !checkers_.closes_at_leisure(replica, who->second.shard.value))
      return;
  }
  checkers_.violate("P5", in_words(content) +
                              " is retained, and its last copy that counts was given up by " +
                              std::string(replica) + " though none of its processes was lost");
}

void RetentionChecker::visible(std::string_view replica, net::Content content) {
  if (origin_of(replica) == replica) return;
  ++offloads_;
  for (uint32_t shard = 0; shard < plan_.shards; ++shard) {
    const bool whole = std::any_of(shards_.begin(), shards_.end(), [&](const Shard& kept) {
      return kept.replica == replica && kept.shard == shard && kept.content == content &&
             kept.proven == granules(shard);
    });
    if (whole) continue;
    // One whose process was lost meanwhile was whole before: the server has not missed it yet.
    const bool lost = std::none_of(shards_.begin(), shards_.end(), [&](const Shard& kept) {
      return kept.replica == replica && kept.shard == shard;
    });
    if (lost) continue;
    checkers_.violate("P4", std::string(replica) + "/" + std::to_string(shard) + ": " +
                                in_words(content) +
                                " became visible, but this shard has not sealed it");
    return;
  }
}

}  // namespace weightlane::sim
