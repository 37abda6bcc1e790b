// Smaller and plainer plans. Replicas and shards are taken away, and the choices of the others'
// processes are told their new numbers; every other setting is tried at its plainest value, by its
// name, so that a setting which a later build adds is tried as well (at 0 and at its default).
#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>

#include "sim/schedule.h"
#include "sim/shrink.h"

namespace weightlane::sim {
namespace {

struct Plain {
  const char* name;
  std::array<uint64_t, 4> values;  // in this order; repeated values are tried once
};

// Settings whose plainest value is neither 0 nor the default.
constexpr Plain kPlain[] = {
    {"tensors", {1, 1, 2, 3}},           {"rounds", {1, 1, 2, 3}},
    {"core_all", {1, 1, 1, 1}},          {"own_tags", {1, 1, 1, 1}},
    {"world.pieces_most", {1, 1, 2, 3}}, {"world.fences", {1, 1, 1, 1}},
    {"server.pipelining", {1, 1, 1, 1}},
};
// Spans of time that have no plain value: they only become round.
constexpr const char* kRound[] = {"train_ns", "hold_ns",     "think_ns",
                                  "limit_ns", "patience_ns", "server.drain_ns"};
constexpr const char* kShape[] = {"trainers",        "rollouts", "shards",
                                  "shards_per_host", "servers",  "step_limit_k"};

bool listed(const char* const* begin, size_t count, const std::string& name) {
  return std::any_of(begin, begin + count, [&name](const char* known) { return name == known; });
}

// To one digit that is not 0.
uint64_t rounded(uint64_t value) {
  uint64_t unit = 1;
  while (value / unit >= 10) unit *= 10;
  return std::max<uint64_t>(1, value / unit) * unit;
}

// "r2-1" is "r1-1" when r0 or r1 has gone; empty when it was the one that went.
std::string renamed(const std::string& name, char role, uint32_t gone) {
  if (name.empty() || name[0] != role) return name;
  const size_t dash = name.find('-');
  if (dash == std::string::npos) return name;
  const auto number = static_cast<uint32_t>(std::strtoul(name.c_str() + 1, nullptr, 10));
  if (number == gone) return {};
  return number < gone ? name : role + std::to_string(number - 1) + name.substr(dash);
}

// The choices of `from`, for the hosts of `plan`, in which replica `gone` of this role is no more
// (role 0: none went).
Candidate recast(const Candidate& from, const Plan& plan, char role, uint32_t gone) {
  const std::vector<std::string> before = cast_of(from.plan);
  const std::vector<std::string> after = cast_of(plan);
  Candidate made{plan, {}, from.mode};
  for (Deviation choice : from.choices) {
    const uint32_t host = choice.stream.value / kSubsystems;
    uint32_t now = 0;
    if (host >= before.size()) {
      now = host - static_cast<uint32_t>(before.size()) + static_cast<uint32_t>(after.size());
    } else {
      const std::string name = role == 0 ? before[host] : renamed(before[host], role, gone);
      const auto found = std::find(after.begin(), after.end(), name);
      if (found == after.end()) continue;
      now = static_cast<uint32_t>(found - after.begin());
    }
    choice.stream.value = now * kSubsystems + choice.stream.value % kSubsystems;
    made.choices.push_back(choice);
  }
  return made;
}

void fewer_replicas(const Candidate& from, std::vector<Candidate>& made) {
  for (uint32_t gone = from.plan.rollouts; gone-- > 0;) {
    Plan plan = from.plan;
    --plan.rollouts;
    made.push_back(recast(from, plan, 'r', gone));
  }
  for (uint32_t gone = from.plan.trainers; from.plan.trainers > 1 && gone-- > 0;) {
    Plan plan = from.plan;
    --plan.trainers;
    made.push_back(recast(from, plan, 't', gone));
  }
}

// And of servers, and of shards in one process.
void fewer_shards(const Candidate& from, std::vector<Candidate>& made) {
  for (uint32_t shards = 1; shards < from.plan.shards; ++shards) {
    Plan plan = from.plan;
    plan.shards = shards;
    plan.shards_per_host = std::min(plan.shards_per_host, shards);
    made.push_back(recast(from, plan, 0, 0));
  }
  if (from.plan.servers > 1) {
    Plan plan = from.plan;
    plan.servers = 1;
    made.push_back(recast(from, plan, 0, 0));
  }
  if (from.plan.shards_per_host == 1) return;
  Plan plan = from.plan;
  plan.shards_per_host = 1;
  made.push_back(recast(from, plan, 0, 0));
}

void try_value(const Candidate& from, const std::string& name, uint64_t value,
               std::vector<Candidate>& made) {
  Candidate candidate = from;
  if (set_plan(candidate.plan, name, value)) made.push_back(std::move(candidate));
}

void plainer(const Candidate& from, std::vector<Candidate>& made) {
  const PlanText text = plan_text(from.plan);
  const PlanText defaults = plan_text(Plan{});
  for (const auto& [name, written] : text) {
    const uint64_t value = std::strtoull(written.c_str(), nullptr, 10);
    if (value == 0 || listed(std::begin(kShape), std::size(kShape), name)) continue;
    if (name.rfind("fault.", 0) == 0) continue;  // all together, below
    if (listed(std::begin(kRound), std::size(kRound), name)) {
      if (rounded(value) != value) try_value(from, name, rounded(value), made);
      continue;
    }
    const auto plain = std::find_if(std::begin(kPlain), std::end(kPlain),
                                    [&name](const Plain& known) { return name == known.name; });
    if (plain != std::end(kPlain)) {
      for (size_t i = 0; i < plain->values.size() && plain->values[i] < value; ++i) {
        if (i == 0 || plain->values[i] != plain->values[i - 1])
          try_value(from, name, plain->values[i], made);
      }
      continue;
    }
    if (name.rfind("granules_", 0) == 0) {
      for (uint64_t fewer = 1; fewer < value; fewer *= 4) try_value(from, name, fewer, made);
      continue;
    }
    for (const auto& [known, standard] : defaults) {
      if (known != name || standard == written) continue;
      try_value(from, name, std::strtoull(standard.c_str(), nullptr, 10), made);
    }
  }
  if (from.plan.core_all == 0) try_value(from, "core_all", 1, made);
  if (from.plan.habits.own_tags == 0) try_value(from, "own_tags", 1, made);
  if (!from.plan.world.data.fences) try_value(from, "world.fences", 1, made);
  if (!from.plan.server.pipelining) try_value(from, "server.pipelining", 1, made);
}

}  // namespace

std::vector<Candidate> smaller_plans(const Candidate& from) {
  std::vector<Candidate> made;
  fewer_shards(from, made);
  fewer_replicas(from, made);
  if (from.plan.world.faults != FaultRates{}) {
    // Choices that are faults stand, whatever the rates.
    made.push_back(from);
    made.back().plan.world.faults = FaultRates{};
  }
  plainer(from, made);
  if (from.plan.step_limit_k > 200) try_value(from, "step_limit_k", 200, made);
  return made;
}

}  // namespace weightlane::sim
