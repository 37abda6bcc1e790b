// What must be true of a Directory after every request and every tick, as one function.
//
// Written against the promises (DESIGN section 3), not against the code: P4 (what is visible is
// whole), P7 (one reader replica per source, no cycle), no dangling pointer, and that a claim
// exists as long as a reader may read.
#pragma once

#include <algorithm>
#include <set>
#include <string>

#include "ros/directory.h"

namespace weightlane::ros::testing {

class Invariants {
 public:
  explicit Invariants(const Directory& directory) : directory_(directory) {}

  // Empty when all hold; else one line on the first that does not.
  std::string broken() {
    collect();
    for (const auto& [name, group] : directory_.groups()) check_group(group);
    for (const auto& [who, client] : directory_.all_clients()) check_client(who, client);
    for (const auto& [id, assignment] : directory_.all_assignments())
      check_assignment(id, assignment);
    if (directory_.contents() != contents_.size()) fail("a content without a publication");
    return trouble_;
  }

 private:
  void fail(std::string what) {
    if (trouble_.empty()) trouble_ = std::move(what);
  }
  void collect() {
    for (const auto& [name, group] : directory_.groups()) {
      for (const auto& [number, publication] : group.publications) {
        publications_.insert(publication.get());
        contents_.insert(publication->content);
      }
    }
  }

  void check_group(const Group& group) {
    if (group.members.size() != group.num_shards) fail(group.name() + ": members");
    for (const Client* member : group.members) {
      if (member == nullptr) continue;
      auto found = directory_.all_clients().find(member->incarnation.value);
      if (found == directory_.all_clients().end() || &found->second != member)
        fail(group.name() + ": a member that is no client");
    }
    for (const auto& [number, call] : group.calls) check_call(group, number, call);
    for (const auto& [number, publication] : group.publications)
      check_publication(group, number, *publication);
  }

  void check_call(const Group& group, uint64_t number, const GroupCall& call) {
    const std::string name = group.name() + " call " + std::to_string(number);
    if (call.number.value != number) fail(name + ": number");
    const auto made = std::count_if(call.shards.begin(), call.shards.end(),
                                    [](const ShardCall& shard) { return shard.made; });
    if (made != call.made || made == 0) fail(name + ": made");
    for (const ShardCall& shard : call.shards)
      if (shard.answered && !shard.made) fail(name + ": answered, not made");
    if (call.receiving != nullptr) {
      auto found = group.publications.find(number);
      if (found == group.publications.end() || found->second.get() != call.receiving)
        fail(name + ": receives into nothing");
    }
  }

  void check_publication(const Group& group, uint64_t number, const Publication& publication) {
    const std::string name = group.name() + " publication " + std::to_string(number);
    if (publication.group != &group || publication.number.value != number) fail(name + ": place");
    const auto& siblings = publication.content->publications;
    if (std::count(siblings.begin(), siblings.end(), &publication) != 1)
      fail(name + ": not in its content's list");
    if (publication.complete) {
      for (const ShardHolding& holding : publication.shards)
        if (!holding.present || !holding.complete) fail(name + ": P4: complete without a shard");
    }
    if (!publication.hidden) {
      for (uint32_t shard = 0; shard < group.num_shards; ++shard)
        if (publication.shards[shard].present && group.members[shard] == nullptr)
          fail(name + ": P4: shown though a member is lost");
    }
    if (publication.receiving && !publication.hidden && !publication.complete) {
      auto call = group.calls.find(number);
      if (call == group.calls.end() || call->second.decided ||
          call->second.receiving != &publication)
        fail(name + ": receives for no call");
    }
    for (uint32_t shard = 0; shard < publication.shards.size(); ++shard)
      check_holding(name, publication, shard);
    const Publication* reader = nullptr;
    for (const Assignment* taken : publication.outgoing) {
      const Group& by = *taken->reader->group;  // a copy within the processes does not count
      if (by.offload != 0 && by.beside == publication.group->id) continue;
      if (directory_.options().pipelining && reader != nullptr && taken->reader != reader)
        fail(name + ": P7: two reader replicas");
      reader = taken->reader;
    }
    if (on_a_cycle(publication)) fail(name + ": P7: reads from itself");
  }

  void check_holding(const std::string& name, const Publication& publication, uint32_t shard) {
    const ShardHolding& holding = publication.shards[shard];
    if (holding.drained && !publication.hidden) fail(name + ": drained while shown");
    if (holding.drained) {  // a lost shard's readers were told to stop, and nobody waits for them
      for (const Assignment* taken : publication.outgoing)
        if (taken->shard.value == shard && !taken->abandoned)
          fail(name + ": P2: drained under a reader");
    }
    if (holding.reading.value == 0) return;
    auto found = directory_.all_assignments().find(holding.reading.value);
    if (found == directory_.all_assignments().end()) fail(name + ": reads under no assignment");
    if (holding.needs_source) fail(name + ": reads and asks for a source");
    if (holding.complete) fail(name + ": reads what it has");
  }

  void check_client(uint64_t who, const Client& client) {
    const std::string name = "client " + std::to_string(who);
    if (client.incarnation.value != who) fail(name + ": number");
    auto group = directory_.groups().find({client.group->model, client.group->replica});
    if (group == directory_.groups().end() || &group->second != client.group)
      fail(name + ": of no group");
    else if (client.group->members[client.shard.value] != &client)
      fail(name + ": not in its place");
    if (!client.last_answered) {
      auto call = client.group->calls.find(client.last_call.value);
      if (call == client.group->calls.end() || call->second.decided ||
          !call->second.shards[client.shard.value].made ||
          call->second.shards[client.shard.value].answered)
        fail(name + ": waits for a call that is not under way");
    }
    uint64_t expected = client.next_event - client.mailbox.size();
    for (const net::Event& event : client.mailbox)
      if (event.number != expected++) fail(name + ": a gap in its mailbox");
  }

  void check_assignment(uint64_t id, const Assignment& assignment) {
    const std::string name = "assignment " + std::to_string(id);
    if (assignment.id.value != id) fail(name + ": number");
    if (publications_.count(assignment.reader) == 0 || publications_.count(assignment.source) == 0)
      return fail(name + ": dangles");
    if (assignment.reader->content != assignment.source->content)
      fail(name + ": two contents mixed");
    if (assignment.reader->group == assignment.source->group) fail(name + ": reads from itself");
    if (assignment.reader->shards[assignment.shard.value].reading.value != id)
      fail(name + ": its reader knows nothing of it");
    const auto& outgoing = assignment.source->outgoing;
    if (std::count(outgoing.begin(), outgoing.end(), &assignment) != 1)
      fail(name + ": its source knows nothing of it");
  }

  bool on_a_cycle(const Publication& start) const {
    std::vector<const Publication*> todo{&start};
    std::set<const Publication*> seen;
    while (!todo.empty()) {
      const Publication* at = todo.back();
      todo.pop_back();
      for (const ShardHolding& holding : at->shards) {
        auto found = directory_.all_assignments().find(holding.reading.value);
        if (found == directory_.all_assignments().end()) continue;
        const Publication* next = found->second.source;
        if (next == &start) return true;
        if (seen.insert(next).second) todo.push_back(next);
      }
    }
    return false;
  }

  const Directory& directory_;
  std::set<const Publication*> publications_;
  std::set<const ContentEntry*> contents_;
  std::string trouble_;
};

}  // namespace weightlane::ros::testing
