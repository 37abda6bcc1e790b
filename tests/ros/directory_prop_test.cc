// Goal: whatever clients do, in whatever order, twice, late or not at all, the Directory stays
// sound: the invariants of invariants.h hold after every request and tick, a repeated request
// changes nothing (P10), all shards of a group learn one decision per call (P3), every call of a
// living client ends (P6), and when all have gone the tables are empty.
// Method: RapidCheck draws a list of operations on a few groups. Most are what a shard handle would
// do, by a script that all shards of a group share; the rest are not (other calls, made-up
// assignments, silence, repeats). Then everybody behaves for a while, and leaves.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "flow/random.h"
#include "ros/probes.h"
#include "tests/ros/desk.h"
#include "tests/ros/invariants.h"

namespace weightlane::ros::testing {
namespace {

using Draw = std::tuple<int, int, int>;  // what, who, detail

// All of the state that a repeated request must leave alone: no times of hearing, no sessions.
std::string state_of(const Directory& directory) {
  std::ostringstream out;
  for (const auto& [name, group] : directory.groups()) {
    out << group.name() << " poisoned " << group.poisoned_upto << " members";
    for (const Client* member : group.members)
      out << ' ' << (member == nullptr ? 0 : member->incarnation.value);
    for (const auto& [number, call] : group.calls) {
      out << "\n call " << number << ' ' << call.made << call.decided << (call.receiving != nullptr)
          << ' ' << call.deadline.count << ' ' << call.gather_deadline.count;
      for (const ShardCall& shard : call.shards) out << ' ' << shard.made << shard.answered;
    }
    for (const auto& [number, publication] : group.publications) {
      out << "\n publication " << number << ' ' << publication->content->content.id.value
          << publication->complete << publication->hidden << ' ' << publication->outgoing.size();
      for (const ShardHolding& holding : publication->shards)
        out << ' ' << holding.present << holding.complete << holding.drained << holding.needs_source
            << holding.reading.value;
    }
    out << '\n';
  }
  for (const auto& [who, client] : directory.all_clients())
    out << who << ':' << client.last_call.value << client.last_answered << ' ' << client.next_event
        << ' ' << client.mailbox.size() << '\n';
  for (const auto& [id, assignment] : directory.all_assignments())
    out << id << (assignment.abandoned ? " abandoned\n" : "\n");
  return out.str();
}

struct Slot {
  int group = 0;
  uint32_t shard = 0;
  Member member;
  bool open = false;
  bool silent = false;
  std::map<uint64_t, net::CallKind> made;
  std::map<uint64_t, net::DecidedEvent> decided;
  std::set<uint64_t> drained;
  std::vector<AssignmentId> reading;  // given and not released
};

// Which of the server's probes were reached, by all runs together.
class Reached final : public ServerObserver {
 public:
  void on_probe(const flow::ProbePoint& point) override { ++hits_[point.name]; }
  uint64_t hits(const char* name) const {
    auto found = hits_.find(name);
    return found == hits_.end() ? 0 : found->second;
  }

 private:
  std::map<std::string, uint64_t> hits_;
};
Reached* reached() {
  static Reached all;
  return &all;
}

class World {
 public:
  World(int shards, bool pipelining, uint64_t script)
      : desk_(options(pipelining), reached()), script_(script) {
    for (int group = 0; group < kGroups; ++group) {
      // Sometimes one group has another number of shards.
      const int size = group == 3 && script % 4 == 0 ? shards + 1 : shards;
      sizes_.push_back(static_cast<uint32_t>(size));
      for (int shard = 0; shard < size; ++shard) {
        slots_.emplace_back();
        slots_.back().group = group;
        slots_.back().shard = static_cast<uint32_t>(shard);
      }
    }
  }

  void run(const std::vector<Draw>& draws) {
    for (const auto& [what, who, detail] : draws) {
      act(what, slots_[static_cast<size_t>(who) % slots_.size()], static_cast<uint64_t>(detail));
      check();
    }
  }

  // Everybody behaves: all that is open is heard, reads, releases. Then every call has ended.
  void settle() {
    for (int beat = 0; beat < 200; ++beat) {
      for (Slot& slot : slots_) {
        if (!slot.open) continue;
        poll(slot, true);
        while (slot.open && !slot.reading.empty()) finish_reading(slot, beat % 3 == 2);
      }
      step(seconds(1));
      check();
    }
    for (Slot& slot : slots_) {
      if (!slot.open) continue;
      poll(slot, true);
      for (const auto& [number, kind] : slot.made)
        RC_ASSERT(slot.decided.count(number) == 1u);  // P6
    }
    RC_ASSERT(desk_.directory.assignments() == 0u);
  }

  void leave(bool by_closing) {
    for (Slot& slot : slots_) {
      if (by_closing && slot.open) request(slot, net::CloseRequest{});
      slot.open = false;
      check();
    }
    for (int beat = 0; beat < 60; ++beat) step(seconds(1));
    RC_ASSERT(desk_.directory.clients() == 0u);
    RC_ASSERT(desk_.directory.contents() == 0u);
    RC_ASSERT(desk_.directory.assignments() == 0u);
    RC_ASSERT(desk_.directory.groups().empty());
    RC_ASSERT(desk_.directory.next_deadline() == kForever);
  }

 private:
  static constexpr int kGroups = 4;

  static ServerOptions options(bool pipelining) {
    ServerOptions made;
    made.pipelining = pipelining;
    return made;
  }

  void act(int what, Slot& slot, uint64_t detail) {
    if (!slot.open && what < 60) return open(slot);
    if (what < 22) return scripted_call(slot);
    if (what < 40) return poll(slot, detail % 8 != 0);
    if (what < 58) return finish_reading(slot, detail % 2 == 0);
    if (what < 62) return repeat(detail);
    if (what < 64) return any_call(slot, detail);
    if (what < 66) return made_up_release(slot, detail);
    if (what < 69) return abort(slot, detail);
    if (what < 71) return close(slot);
    if (what < 73) return steal(slot);
    if (what < 75) slot.silent = !slot.silent;
    if (what < 77) return reconnect(slot);
    if (what < 80) return step(seconds(static_cast<int64_t>(detail % 70)));
    if (what < 83) return two_at_once(slot, detail);
    beat(millis(static_cast<int64_t>(1 + detail % 1000)));
  }

  // ---------------------------------------------------------------- what a client does

  // Two datacenters, so that seeds, skips and handovers come up as well; every third group is spot.
  net::OpenRequest open_request(const Slot& slot) const {
    net::OpenRequest request;
    request.model = "m";
    request.replica = "g" + std::to_string(slot.group);
    request.shard = {slot.shard};
    request.num_shards = sizes_[static_cast<size_t>(slot.group)];
    request.node = "node-x";
    request.endpoint = "e";
    request.datacenter = slot.group / 2 % 2 == 0 ? "east" : "west";
    request.spot = slot.group % 3 == 2;
    return request;
  }

  void open(Slot& slot) {
    slot = Slot{slot.group, slot.shard, {}, false, false, {}, {}, {}, {}};
    net::OpenRequest request = open_request(slot);
    request.node = "node-" + std::to_string(slot.group % 2);
    net::ResponseBody answer = desk_.try_open(slot.member, std::move(request));
    if (const auto* opened = std::get_if<net::OpenedResponse>(&answer)) {
      slot.open = true;
      slot.member.next_call = opened->next_call.value;
      remember(slot);
    }
  }

  // The n-th call of a group, the same for all of its shards: mostly sensible.
  net::GroupCallRequest script(const Slot& slot, uint64_t number) {
    flow::SplitMix64 chance(script_ * 31 + static_cast<uint64_t>(slot.group) * 1'000'003 +
                            number * 7919);
    const uint64_t pick = chance.next();
    const bool holds = number % 2 == 0;
    net::GroupCallRequest call{CallNumber{number}, net::CallKind::kPublish,
                               exact(1 + pick % 8 % 5 % 3),
                               seconds(static_cast<int64_t>(1 + pick / 64 % 30)),
                               layout_of(pick / 8192 % 32 == 0 ? 2 : 1)};
    if (holds) {
      call.kind = pick / 8 % 2 == 0 ? net::CallKind::kUnpublish : net::CallKind::kUpdate;
      if (call.kind == net::CallKind::kUpdate) call.version = latest();
    } else if (pick / 8 % 3 != 0) {
      call.kind = net::CallKind::kReplicate;
      if (pick / 32 % 4 != 0) call.version = latest(static_cast<uint32_t>(pick / 32 % 4 / 3));
    }
    return call;
  }

  void scripted_call(Slot& slot) {
    if (!slot.made.empty() && slot.decided.count(slot.made.rbegin()->first) == 0)
      return poll(slot, true);  // one at a time
    make(slot, script(slot, slot.member.next_call));
  }

  void any_call(Slot& slot, uint64_t detail) {
    if (!slot.open) return;
    net::GroupCallRequest call = script(slot, slot.member.next_call);
    call.kind = static_cast<net::CallKind>(detail % 4);
    call.version = detail / 4 % 2 == 0 ? latest() : exact(1 + detail / 8 % 3);
    if (detail / 32 % 4 == 0) call.number.value += detail / 128 % 3;  // out of turn
    make(slot, std::move(call));
  }

  void two_at_once(Slot& slot, uint64_t detail) {
    if (!slot.open) return;
    make(slot, script(slot, slot.member.next_call));
    if (slot.open) any_call(slot, detail);
  }

  void make(Slot& slot, net::GroupCallRequest call) {
    const net::CallKind kind = call.kind;
    const CallNumber number = call.number;
    net::ResponseBody answer = request(slot, std::move(call));
    if (!std::holds_alternative<net::AcceptedResponse>(answer) ||
        number.value < slot.member.next_call)
      return;
    slot.member.next_call = number.value + 1;
    slot.made[number.value] = kind;
  }

  void finish_reading(Slot& slot, bool complete) {
    if (!slot.open || slot.reading.empty()) return;
    const AssignmentId id = slot.reading.back();
    slot.reading.pop_back();
    const auto kind =
        complete ? net::ReleaseKind::kComplete : static_cast<net::ReleaseKind>(1 + id.value % 4);
    request(slot, net::ReleaseRequest{id, kind, 0, "drawn"});
  }

  // Of somebody else's, or of one that is long gone; not of one to come, which nobody can guess.
  void made_up_release(Slot& slot, uint64_t detail) {
    const AssignmentId id{detail % 40};
    if (!slot.open || id.value > last_assignment_) return;
    request(slot,
            net::ReleaseRequest{id, static_cast<net::ReleaseKind>(detail / 40 % 5), 7, "made up"});
  }

  void abort(Slot& slot, uint64_t detail) {
    if (!slot.open) return;
    const uint64_t number = slot.member.next_call - std::min(detail % 4, slot.member.next_call);
    request(slot, net::AbortRequest{CallNumber{number}, ErrorCode::kTimeout, "gave up"});
  }

  void close(Slot& slot) {
    if (!slot.open) return;
    request(slot, net::CloseRequest{});
    slot.open = false;
  }

  // Another process wants the shard.
  void steal(Slot& slot) {
    Member other;
    net::ResponseBody answer = desk_.try_open(other, open_request(slot));
    if (const auto* opened = std::get_if<net::OpenedResponse>(&answer)) {
      slot = Slot{slot.group, slot.shard, other, true, false, {}, {}, {}, {}};
      slot.member.next_call = opened->next_call.value;
    }
  }

  void reconnect(Slot& slot) { ++slot.member.session; }

  // ---------------------------------------------------------------- messages

  net::ResponseBody request(Slot& slot, net::RequestBody body) {
    net::ResponseBody answer = slot.member.ask(std::move(body));
    const auto* failed = std::get_if<net::Failure>(&answer);
    if (failed == nullptr) remember(slot);
    if (failed != nullptr && failed->kind == net::FailureKind::kUnknownIncarnation)
      slot.open = false;  // evicted
    return answer;
  }

  void remember(const Slot& slot) { history_.push_back(slot.member.last); }

  // An old request of anybody, alive or not, again. It changes nothing.
  void repeat(uint64_t detail) {
    if (history_.empty()) return;
    const net::Request& old = history_[detail % history_.size()];
    const auto& clients = desk_.directory.all_clients();
    const bool alive = clients.count(old.header.incarnation.value) != 0;
    if (!alive && std::holds_alternative<net::OpenRequest>(old.body)) return;
    desk_.directory.tick(desk_.now);
    const std::string before = state_of(desk_.directory);
    desk_.directory.apply(old, desk_.now);
    RC_ASSERT(state_of(desk_.directory) == before);
  }

  void poll(Slot& slot, bool acknowledge) {
    if (!slot.open) return;
    net::ResponseBody answer =
        slot.member.ask(net::PollRequest{slot.member.acknowledged, 0, kZeroNanos});
    const auto* response = std::get_if<net::EventsResponse>(&answer);
    if (response == nullptr) {
      slot.open = false;
      return;
    }
    for (const net::Event& event : response->events) {
      if (!acknowledge || event.number <= slot.member.acknowledged) continue;
      RC_ASSERT(event.number == slot.member.acknowledged + 1);
      slot.member.acknowledged = event.number;
      take(slot, event.body);
    }
  }

  void take(Slot& slot, const net::EventBody& body) {
    if (const auto* assigned = std::get_if<net::AssignedEvent>(&body))
      slot.reading.push_back(assigned->assignment);
    if (const auto* drained = std::get_if<net::DrainedEvent>(&body))
      take_drained(slot, drained->number);
    if (const auto* decided = std::get_if<net::DecidedEvent>(&body)) {
      RC_ASSERT(slot.made.count(decided->number.value) == 1u);
      RC_ASSERT(slot.decided.emplace(decided->number.value, *decided).second);
      agree(slot, *decided);
    }
  }

  // P2: told once, and nobody reads that shard any more.
  void take_drained(Slot& slot, CallNumber number) {
    RC_ASSERT(slot.drained.insert(number.value).second);
    auto self = desk_.directory.all_clients().find(slot.member.who.value);
    if (self == desk_.directory.all_clients().end()) return;
    for (const auto& [id, assignment] : desk_.directory.all_assignments())
      RC_ASSERT(assignment.source->group != self->second.group ||
                assignment.source->number != number || assignment.shard != slot.member.shard);
  }

  // P3: success of a receiving call, and what it resolved to, is the same for all shards.
  void agree(const Slot& slot, const net::DecidedEvent& decided) {
    const net::CallKind kind = slot.made.at(decided.number.value);
    if (kind != net::CallKind::kReplicate && kind != net::CallKind::kUpdate) return;
    auto client = desk_.directory.all_clients().find(slot.member.who.value);
    if (client == desk_.directory.all_clients().end()) return;
    const auto key = std::make_pair(client->second.group->id, decided.number.value);
    const auto [known, fresh] = decisions_.emplace(key, decided);
    if (fresh) return;
    RC_ASSERT(known->second.ok == decided.ok);
    RC_ASSERT(known->second.content == decided.content);
  }

  // ---------------------------------------------------------------- time

  void step(Nanos span) {
    desk_.now = desk_.now + span;
    desk_.directory.tick(desk_.now);
    RC_ASSERT(desk_.directory.next_deadline() > desk_.now);
  }
  void beat(Nanos span) {
    step(span);
    for (Slot& slot : slots_)
      if (!slot.silent) poll(slot, false);
  }

  void check() {
    Invariants invariants(desk_.directory);
    const std::string broken = invariants.broken();
    if (!broken.empty()) RC_FAIL(broken);
    desk_.directory.take_woken();
    const auto& assignments = desk_.directory.all_assignments();
    if (!assignments.empty())
      last_assignment_ = std::max(last_assignment_, assignments.rbegin()->first);
  }

  Desk desk_;
  uint64_t script_;
  uint64_t last_assignment_ = 0;  // of those seen
  std::vector<uint32_t> sizes_;
  std::vector<Slot> slots_;
  std::vector<net::Request> history_;
  std::map<std::pair<uint64_t, uint64_t>, net::DecidedEvent> decisions_;
};

RC_GTEST_PROP(DirectoryModel, StaysSoundWhateverClientsDo, ()) {
  const int shards = *rc::gen::inRange(1, 4);
  const bool pipelining = *rc::gen::inRange(0, 5) != 0;
  const auto script = *rc::gen::inRange<uint64_t>(0, 1000);
  const auto draws = *rc::gen::scale(
      4.0, rc::gen::container<std::vector<Draw>>(rc::gen::tuple(
               rc::gen::inRange(0, 100), rc::gen::inRange(0, 100), rc::gen::inRange(0, 10'000))));
  for (uint64_t variant = 0; variant < 8; ++variant) {  // the same draws, other calls
    World world(shards, pipelining, script * 8 + variant);
    world.run(draws);
    world.settle();
    world.leave(variant % 2 == 0);
  }
}

// The property above says little if its draws never come to the hard places.
TEST(DirectoryModel, TheDrawsReachTheRarePlaces) {
  const flow::ProbePoint expected[] = {
      probes::kOpenRepeated,   probes::kOpenOccupied,     probes::kStaleSession,
      probes::kUnknownClient,  probes::kRepeated,         probes::kEvicted,
      probes::kClosed,         probes::kTimeGap,          probes::kCallMismatch,
      probes::kCallPoisoned,   probes::kMissingMember,    probes::kCallTimeout,
      probes::kLayoutMismatch, probes::kContentJoined,    probes::kContentRenewed,
      probes::kUpdateNothing,  probes::kUpdateDecided,    probes::kQueued,
      probes::kFromPartial,    probes::kRerouted,         probes::kRetriedSame,
      probes::kYielded,        probes::kAbandoned,        probes::kUnavailable,
      probes::kCommitted,      probes::kAbortedCommitted, probes::kDrainWaited};
  for (const flow::ProbePoint& point : expected)
    EXPECT_GT(reached()->hits(point.name), 0u) << point.name;
}

}  // namespace
}  // namespace weightlane::ros::testing
