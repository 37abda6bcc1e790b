// The table of choices: each name that the simulator draws under, and what an outcome other than 0
// means. A name that is missing here is shown as it is.
#include "sim/explain.h"

#include <cstdio>
#include <cstring>

namespace weightlane::sim {
namespace {

enum class Meaning : uint8_t {
  kTimes,  // log-uniform: so many times the least
  kMore,   // nanoseconds more than the least
  kWhich,  // the outcome's number
  kFact,   // it happens, or not
};

struct Words {
  const char* name;
  Meaning meaning;
  const char* text;  // HOST: the host of the stream; VALUE: the outcome
};

constexpr Words kWords[] = {
    {"ready", Meaning::kWhich,
     "not the first runnable task goes next, but that with VALUE before it"},
    {"pct.priority", Meaning::kWhich, "HOST has the priority VALUE"},
    {"pct.change_point", Meaning::kWhich, "the host that runs at step VALUE loses its priority"},
    {"starve.victim", Meaning::kWhich, "host VALUE is the one that starves"},
    {"starve.span", Meaning::kTimes, "the starved host is held up VALUE the least span"},
    {"starve.gap", Meaning::kTimes, "the next hold-up comes after VALUE the least span"},
    {"clock.offset", Meaning::kWhich, "the clock of HOST begins VALUE ms later"},
    {"clock.drift", Meaning::kWhich, "the clock of HOST drifts (outcome VALUE)"},
    {"message.delay", Meaning::kTimes, "a message from HOST takes VALUE the least delay"},
    {"message.lost", Meaning::kTimes,
     "a lost message of HOST breaks its connection after VALUE the least"},
    {"connection.notice", Meaning::kTimes, "HOST sees a dead connection after VALUE the least"},
    {"connection.close", Meaning::kTimes,
     "the close of a connection of HOST takes VALUE the least"},
    {"connect.there", Meaning::kTimes, "the connect request of HOST takes VALUE the least delay"},
    {"connect.back", Meaning::kTimes,
     "the answer to a connect, at HOST, takes VALUE the least delay"},
    {"connect.again", Meaning::kTimes, "HOST tries to connect again after VALUE the least"},
    {"close.notice", Meaning::kTimes, "HOST hears of the other end's close after VALUE the least"},
    {"read.latency", Meaning::kTimes, "a READ of HOST takes VALUE the least latency"},
    {"read.pieces", Meaning::kMore, "a READ of HOST is cut into pieces, VALUE more"},
    {"read.last", Meaning::kWhich, "of a READ of HOST another piece is the last (outcome VALUE)"},
    {"read.execute", Meaning::kWhich,
     "a piece of a READ of HOST is executed VALUE/256 of the way later"},
    {"read.land", Meaning::kWhich, "a piece of a READ of HOST lands later (outcome VALUE of 4)"},
    {"read.fault", Meaning::kWhich, "a READ of HOST suffers fault VALUE of the work faults"},
    {"fault.executed", Meaning::kWhich, "VALUE pieces of the failed READ were executed"},
    {"fault.landed", Meaning::kWhich, "VALUE pieces of the failed READ landed"},
    {"fault.status", Meaning::kWhich, "the failed READ of HOST shows status VALUE"},
    {"flush.later", Meaning::kFact, "HOST's flushed READs complete later"},
    {"flush.delay", Meaning::kTimes, "a flush at HOST takes VALUE the least"},
    {"fence.holds", Meaning::kTimes, "the fence of HOST holds after VALUE the least"},
    {"fence.outlived", Meaning::kFact, "a READ of HOST outlives the fence"},
    {"fence.answer", Meaning::kFact, "HOST's READ is answered before the fence holds"},
    {"pair.retry", Meaning::kWhich, "the NIC of HOST retries for longer (outcome VALUE)"},
    {"pair.slowdown", Meaning::kTimes, "a queue pair of HOST is VALUE slower"},
    {"goodput.nil", Meaning::kTimes,
     "a queue pair of HOST carries nothing for VALUE the least span"},
    {"late.landing", Meaning::kTimes,
     "bytes land at HOST after the completion, VALUE the least later"},
    {"duplicate.lands", Meaning::kFact, "the duplicate of HOST's READ lands"},
    {"checksum", Meaning::kTimes, "a checksum at HOST takes VALUE the least"},
    {"register", Meaning::kTimes, "registering at HOST takes VALUE the least"},
    {"deregister", Meaning::kTimes, "deregistering at HOST takes VALUE the least"},
    {"destroy", Meaning::kTimes, "destroying a queue pair of HOST takes VALUE the least"},
    {"tick", Meaning::kTimes, "the next chance for a fault comes after VALUE the least span"},
    {"world.fault", Meaning::kWhich, "a fault befalls the world (number VALUE)"},
    {"crash.host", Meaning::kWhich, "the host that crashes is number VALUE of those alive"},
    {"crash.restart_after", Meaning::kTimes, "it is started again after VALUE the least"},
    {"crash.never_restarts", Meaning::kFact, "it is never started again"},
    {"restart.reuse", Meaning::kFact, "the new life reuses the names of the old one"},
    {"pause.host", Meaning::kWhich, "the host that pauses is number VALUE of those alive"},
    {"pause.span", Meaning::kTimes, "it pauses for VALUE the least"},
    {"flap.host", Meaning::kWhich, "the host whose link flaps is number VALUE of those alive"},
    {"flap.span", Meaning::kTimes, "the link is gone for VALUE the least"},
    {"flap.both_planes", Meaning::kFact, "on both planes"},
    {"cut.span", Meaning::kTimes, "the cut lasts VALUE the least"},
    {"cut.shape", Meaning::kFact, "it cuts the hosts into two halves"},
    {"cut.host", Meaning::kWhich, "the host that is cut off is number VALUE"},
    {"cut.side_high", Meaning::kWhich, "who is on which side (high bits VALUE)"},
    {"cut.side_low", Meaning::kWhich, "who is on which side (low bits VALUE)"},
    {"cut.planes", Meaning::kWhich, "which planes it cuts (outcome VALUE)"},
    {"slow.host", Meaning::kWhich, "the host that slows down is number VALUE of those alive"},
    {"slow.span", Meaning::kTimes, "it is slow for VALUE the least"},
    {"slow.factor", Meaning::kTimes, "it is VALUE the least factor slower"},
    {"server.crash", Meaning::kTimes, "the reference server crashes after VALUE the least"},
    {"server.back", Meaning::kTimes, "the server comes back after VALUE the least"},
    {"core.lost", Meaning::kFact, "a host does not come back after the last fault"},
    {"core.frozen", Meaning::kFact, "the lost host is frozen, not dead"},
    {"work.think", Meaning::kMore, "the worker at HOST rests VALUE longer"},
    {"work.reopen", Meaning::kMore, "the worker at HOST opens again VALUE later"},
    {"work.register_again", Meaning::kMore, "the worker at HOST registers again VALUE later"},
    {"work.other_layout", Meaning::kFact, "the worker at HOST registers another layout"},
    {"work.silent", Meaning::kFact, "the worker at HOST stays away from a call for long"},
    {"work.mismatch", Meaning::kFact, "the worker at HOST makes another call than its group"},
    {"work.drop_call", Meaning::kFact, "the caller at HOST drops its call"},
    {"work.drop_after", Meaning::kMore, "after VALUE more"},
    {"work.list", Meaning::kFact, "the worker at HOST lists replicas"},
    {"work.wrong_state", Meaning::kFact, "the worker at HOST makes a call that its state forbids"},
    {"work.unregister", Meaning::kFact, "the worker at HOST unregisters its tensors"},
    {"work.close", Meaning::kFact, "the worker at HOST closes its handle"},
};

std::string times(uint32_t value) {
  const double factor = static_cast<double>(1ull << (value / 256 < 40 ? value / 256 : 40)) *
                        (1 + (value % 256) / 256.0);
  char text[32];
  std::snprintf(text, sizeof text, factor < 10 ? "%.1f times" : "%.0f times", factor);
  return text;
}

std::string span(uint64_t ns) {
  char text[32];
  if (ns < 100) {
    std::snprintf(text, sizeof text, "%u", static_cast<unsigned>(ns));
  } else {
    std::snprintf(text, sizeof text, "%.3f ms", static_cast<double>(ns) * 1e-6);
  }
  return text;
}

void replace(std::string& text, const char* what, const std::string& by) {
  const size_t at = text.find(what);
  if (at != std::string::npos) text.replace(at, std::strlen(what), by);
}

const char* plural(size_t count) { return count == 1 ? "" : "s"; }

std::string joined(const std::vector<std::string>& parts, const char* between) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : between) + part;
  return text;
}

}  // namespace

std::string choice_words(const Deviation& choice, const std::vector<std::string>& hosts) {
  const uint32_t host = choice.stream.value / kSubsystems;
  const std::string who = host < hosts.size() ? hosts[host] : "host " + std::to_string(host);
  const char* name = choice.name != nullptr ? choice.name : "?";
  for (const Words& words : kWords) {
    if (std::strcmp(words.name, name) != 0) continue;
    std::string text = words.text;
    replace(text, "HOST", who);
    const std::string value = words.meaning == Meaning::kTimes  ? times(choice.value)
                              : words.meaning == Meaning::kMore ? span(choice.value)
                                                                : std::to_string(choice.value);
    replace(text, "VALUE", value);
    return text;
  }
  // Draws of faults are named as the fault is.
  return "at " + who + ": " + name +
         (choice.n > 2 ? " (outcome " + std::to_string(choice.value) + " of " +
                             std::to_string(choice.n) + ")"
                       : "");
}

std::string plan_words(const Plan& plan) {
  std::string text = std::to_string(plan.shards) + " shard" + plural(plan.shards) + " x (" +
                     std::to_string(plan.trainers) + " trainer" + plural(plan.trainers) + " + " +
                     std::to_string(plan.rollouts) + " rollout" + plural(plan.rollouts) + "), " +
                     std::to_string(plan.habits.rounds) + " version" + plural(plan.habits.rounds) +
                     " a trainer, " + std::to_string(plan.tensors) + " tensor" +
                     plural(plan.tensors);
  std::vector<std::string> odd;
  const PlanText standard = plan_text(Plan{});
  for (const auto& [name, value] : plan_text(plan)) {
    if (name == "shards" || name == "trainers" || name == "rollouts" || name == "rounds" ||
        name == "tensors" || name == "step_limit_k" || name.rfind("granules_", 0) == 0 ||
        name.rfind("fault.", 0) == 0)
      continue;
    for (const auto& [known, usual] : standard) {
      if (known == name && usual != value) odd.push_back(name + " " + value);
    }
  }
  if (!odd.empty()) text += "; " + joined(odd, ", ");
  return text;
}

std::string schedule_words(Schedule& schedule, const ChoiceClock* clock) {
  std::vector<std::string> hosts;
  for (uint32_t h = 0; h < schedule.world().host_count(); ++h)
    hosts.push_back(schedule.world().host({h}).place().name);
  const std::vector<Deviation>& choices = schedule.deviations();
  const ReadyOrder order = schedule.plan().world.order;
  // With every choice at 0 a drawn order is FIFO too.
  const bool fifo = order == ReadyOrder::kFifo || order == ReadyOrder::kRandom;
  std::string text = "plan: " + plan_words(schedule.plan()) + "\n";
  text += fifo ? "FIFO" : std::string(ready_order_name(order)) + " order";
  if (choices.empty()) {
    text += ", every choice is the dull one";
  } else {
    text += " except " + std::string(choices.size() == 1 ? "this choice" : "these ") +
            (choices.size() == 1 ? "" : std::to_string(choices.size()) + " choices") + ":";
  }
  constexpr size_t kShown = 40;
  for (size_t i = 0; i < choices.size() && i < kShown; ++i) {
    char at[40] = "";
    if (clock != nullptr && clock->at(i) != kForever)
      std::snprintf(at, sizeof at, "at %.6f s ", to_seconds(clock->at(i)));
    text += "\n  " + std::to_string(i + 1) + ". " + at + choice_words(choices[i], hosts);
  }
  if (choices.size() > kShown)
    text += "\n  and " + std::to_string(choices.size() - kShown) + " more; shrink makes them few";
  std::vector<std::string> faults;
  for (const std::string& fault : schedule.faults()) {
    if (fault.find("healed") == std::string::npos) faults.push_back(fault);
  }
  text += std::string(choices.empty() ? "; " : "\n") +
          "faults: " + (faults.empty() ? "none" : joined(faults, "; ")) + "\n";
  return text;
}

}  // namespace weightlane::sim
