// Seeds to detection: for each bug and each of several ranges of seeds, a child switches the bug on
// and runs seed after seed until a checker fires, or an assertion kills it. The number it got to is
// in shared memory, so the child's death is a result like any other.
#include "sim/bugs.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>

#include "ros/planted_bugs.h"
#include "sim/pool.h"
#include "sim/schedule.h"

namespace weightlane::sim {
namespace {

using ros::PlantedBug;

struct Setting {
  const char* name = nullptr;  // null: none
  uint64_t value = 0;
};

struct Registered {
  PlantedBug bug;
  const char* name;
  const char* description;
  Scenario scenario;
  // Settings laid over every seed's plan, for a bug that the mix as it is shows too seldom.
  std::array<Setting, 4> rig{};
};

constexpr std::array kRegistry = {
    Registered{PlantedBug::kUnpublishTimer,
               "unpublish-timer",
               "the rest of an unpublish is a deadline, and the server's timer spins on it",
               Scenario::kDefault,
               {{{"server.missing_member_ns", 300'000'000}, {"silent", 300}}}},
    Registered{PlantedBug::kEvictionLate,
               "eviction-late",
               "what an eviction changed is settled after the request that found it",
               Scenario::kChurn,
               {{{"world.drop_first_replies", 1},
                 {"server.lease_ns", 1'500'000'000},
                 {"shards_per_host", kShardsMost},
                 {"servers", 1}}}},
    Registered{PlantedBug::kSkipSeal, "skip-seal",
               "data is accepted without reading the block again", Scenario::kDefault},
    Registered{PlantedBug::kIgnoreStamp, "ignore-stamp",
               "the block is read again, its stamp not compared", Scenario::kDefault},
    Registered{PlantedBug::kProvenEarly, "proven-early",
               "proven advances before the READs completed", Scenario::kDefault},
    Registered{PlantedBug::kStampKept, "stamp-kept",
               "memory is handed back with its stamp still valid", Scenario::kDefault},
    Registered{PlantedBug::kNoDrain, "no-drain", "unpublish neither drains nor fences",
               Scenario::kDefault},
    Registered{PlantedBug::kSuccessUnsealed, "success-unsealed",
               "success is decided when the first shard is sealed", Scenario::kDefault},
    Registered{PlantedBug::kPartialComplete, "partial-complete",
               "a replica that still receives counts as a copy", Scenario::kDefault},
    Registered{PlantedBug::kVisibleEarly, "visible-early",
               "a version shows when its first shard is published", Scenario::kDefault},
    Registered{PlantedBug::kReuseBeforeDestroy, "reuse-before-destroy",
               "a destination is read into again before the old queue pair is destroyed",
               Scenario::kDefault},
    Registered{PlantedBug::kResumeOther, "resume-other",
               "a re-routed reader keeps its prefix though the content is another",
               Scenario::kDefault},
    Registered{PlantedBug::kTwoReaders, "two-readers", "a source is given to two readers at once",
               Scenario::kDefault},
    Registered{PlantedBug::kCycle, "cycle", "a partial replica may be fed by what it feeds",
               Scenario::kDefault},
    Registered{PlantedBug::kRepeatedApplied, "repeated-applied",
               "a request that comes twice is applied twice", Scenario::kDefault},
    Registered{PlantedBug::kStaleSession, "stale-session",
               "a connection that a newer one replaced is still served", Scenario::kDefault},
    Registered{PlantedBug::kPerShardDecision, "per-shard-decision",
               "latest is resolved by each shard for itself", Scenario::kDefault},
    Registered{PlantedBug::kEvictionSilent, "eviction-silent",
               "readers of an evicted source are not re-routed", Scenario::kDefault},
    Registered{PlantedBug::kNoStall, "no-stall", "a stalled transfer is never noticed",
               Scenario::kDefault},
    Registered{PlantedBug::kNoOffload, "no-offload",
               "a retained version's last copy goes without an offload", Scenario::kDefault},
    Registered{PlantedBug::kSpotCounts, "spot-counts", "a spot replica counts as a copy",
               Scenario::kDefault},
    Registered{PlantedBug::kPartialKeeps, "partial-keeps",
               "an offload that is not whole yet counts as a copy", Scenario::kDefault},
    Registered{PlantedBug::kOffloadPerShard, "offload-per-shard",
               "one shard's offload lets the whole replica go", Scenario::kDefault},
    Registered{PlantedBug::kOffloadDropped, "offload-dropped",
               "an offload goes though it is the last copy", Scenario::kDefault},
    Registered{PlantedBug::kOffloadLeaks, "offload-leaks", "an offload that nobody needs stays",
               Scenario::kDefault},
    Registered{PlantedBug::kCloseUnasked, "close-unasked",
               "close does not ask whether the version is retained", Scenario::kDefault},
    Registered{PlantedBug::kFailureHides, "failure-hides",
               "an update that fails before it began gives up the last copy", Scenario::kDefault},
    Registered{PlantedBug::kGenerationIgnored, "generation-ignored",
               "after a rewind, versions of the old generation are the latest", Scenario::kDefault},
    Registered{PlantedBug::kSealAtCompletion, "seal-at-completion",
               "a look seals what has completed when it completes, not when it was posted",
               Scenario::kDefault},
    Registered{PlantedBug::kStampFromLook, "stamp-from-look",
               "the reader trusts the stamp that its first look shows, not the one it was told",
               Scenario::kDefault},
    Registered{PlantedBug::kReadBeyondProven, "read-beyond-proven",
               "data is read before the look that proves it (R4)", Scenario::kDefault},
    Registered{PlantedBug::kProvenKept, "proven-kept",
               "a new publication leaves the old progress in the block", Scenario::kDefault},
    Registered{PlantedBug::kStampReused, "stamp-reused",
               "a handle gives all its publications one stamp", Scenario::kDefault},
    Registered{PlantedBug::kConnectStale, "connect-stale",
               "a source lets readers in that want another content", Scenario::kDefault},
    Registered{PlantedBug::kDrainForever, "drain-forever",
               "a source waits for its readers without a deadline", Scenario::kDefault},
    Registered{PlantedBug::kPoisonIgnored, "poison-ignored",
               "a queue pair that cannot be destroyed is forgotten (R6)", Scenario::kDefault},
    Registered{PlantedBug::kDigestIgnored, "digest-ignored", "checksums are read and not compared",
               Scenario::kDefault},
    Registered{PlantedBug::kLossUntold, "loss-untold",
               "after an eviction the next call does not hear of what was lost",
               Scenario::kDefault},
    Registered{PlantedBug::kEvictedKeeps, "evicted-keeps",
               "an evicted shard goes on with the memory it served", Scenario::kDefault},
    Registered{PlantedBug::kNumberingRestarts, "numbering-restarts",
               "who opens again begins with call 1", Scenario::kDefault},
    Registered{PlantedBug::kMismatchAllowed, "mismatch-allowed",
               "shards that ask for different versions get the one of the first",
               Scenario::kDefault},
    Registered{PlantedBug::kMissingForever, "missing-forever",
               "a group waits for its missing shard without a deadline", Scenario::kDefault},
    Registered{PlantedBug::kLeaseIgnored, "lease-ignored", "silent clients are never let go",
               Scenario::kDefault},
    Registered{PlantedBug::kUnpublishShown, "unpublish-shown",
               "an unpublished version is not hidden", Scenario::kDefault},
    Registered{PlantedBug::kNextCallSpared, "next-call-spared",
               "a failure that some shards did not see does not poison their next call",
               Scenario::kDefault},
    Registered{PlantedBug::kNeverForgotten, "never-forgotten", "the server keeps every publication",
               Scenario::kDefault},
    Registered{PlantedBug::kRegionLeaked, "region-leaked",
               "unregister leaves one region registered", Scenario::kDefault},
    Registered{PlantedBug::kTwoSeeders, "two-seeders",
               "a version is carried into a datacenter by several at once", Scenario::kDefault},
    Registered{PlantedBug::kLocalReaderGoesFar, "local-reader-goes-far",
               "a reader goes to another datacenter though a copy is near", Scenario::kDefault},
    Registered{PlantedBug::kNewestDropped, "newest-dropped",
               "the last copy of a datacenter's newest version goes for a seed",
               Scenario::kDefault},
    Registered{PlantedBug::kSeedLockKept, "seed-lock-kept", "a seeder that failed keeps its place",
               Scenario::kDefault},
    Registered{PlantedBug::kReplicateSkips, "replicate-skips",
               "replicate answers nothing while a version is arriving", Scenario::kDefault},
    Registered{PlantedBug::kNegativeAtOnce, "negative-at-once",
               "a server that has just started says what nobody holds", Scenario::kDefault},
    Registered{PlantedBug::kPartialAnnounced, "partial-announced",
               "what a shard announces is taken for whole", Scenario::kDefault},
    Registered{PlantedBug::kNumbersReset, "numbers-reset",
               "call numbers begin again at another server", Scenario::kDefault},
    Registered{PlantedBug::kFitsAlways, "fits-always",
               "an announcement is adopted whatever the others have been through",
               Scenario::kDefault},
    Registered{PlantedBug::kOutcomeIgnored, "outcome-ignored",
               "how a call ended under another server is not passed on", Scenario::kDefault},
    Registered{PlantedBug::kBegunForgotten, "begun-forgotten",
               "an update that has given up its old version is told \"nothing newer\"",
               Scenario::kDefault},
    Registered{PlantedBug::kEarlierRead, "earlier-read",
               "who reads an earlier publication of a shard is left to meet the new one",
               Scenario::kDefault},
    Registered{PlantedBug::kFailedAdopted, "failed-adopted",
               "a transfer is adopted though its call has failed here", Scenario::kDefault},
    Registered{PlantedBug::kNeverBack, "never-back",
               "nobody goes back to a server before the present one", Scenario::kDefault},
    Registered{PlantedBug::kDrainedStale, "drained-stale",
               "what another server said of its readers counts at this one", Scenario::kDefault},
    Registered{PlantedBug::kCallWhileAnnouncing, "call-while-announcing",
               "a call begins while an announcement that lacks it is on its way",
               Scenario::kDefault},
};

constexpr size_t kRangesMost = 32;
constexpr uint64_t kRangeApart = 1'000'000;  // between the first seeds of two ranges

Plan plan_for(const Registered& entry, uint64_t seed) {
  Plan plan = draw_plan(entry.scenario, seed);
  for (const Setting& setting : entry.rig) {
    if (setting.name != nullptr) WL_ASSERT(set_plan(plan, setting.name, setting.value));
  }
  plan.shards_per_host = std::min(plan.shards_per_host, plan.shards);
  return plan;
}

// Written by the child before each seed, and at the end.
struct Hunt {
  uint64_t tried = 0;
  bool done = false;  // it ended by itself
  bool found = false;
  char checker[16] = {};
};
struct Board {
  std::array<std::array<Hunt, kRangesMost>, kRegistry.size()> hunts{};
  std::atomic<uint64_t> next{0};
  std::array<std::atomic<uint64_t>, 64> at{};  // hunt + 1 of each job; 0: none
};

void hunt(const Registered& entry, uint64_t first, uint64_t seeds, Hunt& hunt) {
  ros::planted_bug = entry.bug;
  for (uint64_t i = 0; i < seeds && !hunt.found; ++i) {
    hunt.tried = i + 1;
    const Outcome outcome = run_plan(plan_for(entry, first + i));
    if (!outcome.violation) continue;
    hunt.found = true;
    std::strncpy(hunt.checker, outcome.violation->promise.c_str(), sizeof hunt.checker - 1);
  }
  ros::planted_bug = PlantedBug::kNone;
  hunt.done = true;
}

BugFinding sum_up(const Registered& entry, const std::array<Hunt, kRangesMost>& hunts,
                  size_t ranges, uint64_t first) {
  BugFinding finding;
  finding.name = entry.name;
  finding.description = entry.description;
  finding.found = true;
  std::vector<uint64_t> tried;
  std::vector<std::string> checkers;
  for (size_t r = 0; r < ranges; ++r) {
    const Hunt& hunt = hunts[r];
    if (!hunt.found) {
      finding.found = false;
      continue;
    }
    if (tried.empty()) finding.seed = first + r * kRangeApart + hunt.tried - 1;
    tried.push_back(hunt.tried);
    checkers.emplace_back(hunt.checker);
  }
  if (tried.empty()) return finding;
  std::sort(tried.begin(), tried.end());
  finding.median_seeds = tried[tried.size() / 2];
  finding.p95_seeds = tried[(tried.size() * 95 + 99) / 100 - 1];
  std::sort(checkers.begin(), checkers.end());
  long most = 0;
  for (const std::string& checker : checkers) {
    const long count = std::count(checkers.begin(), checkers.end(), checker);
    if (count > most) finding.checker = checker;
    most = std::max(most, count);
  }
  return finding;
}

}  // namespace

Result<std::vector<BugFinding>> find_bugs(const BugOptions& options) {
  std::vector<size_t> wanted;
  std::string names;
  for (size_t i = 0; i < kRegistry.size(); ++i) {
    names += std::string(names.empty() ? "" : ", ") + kRegistry[i].name;
    if (options.only.empty() || options.only == kRegistry[i].name) wanted.push_back(i);
  }
  if (wanted.empty())
    return Error{ErrorCode::kInvalidArgument, "no bug '" + options.only + "'; there are: " + names};

  const size_t ranges = std::min<size_t>(options.ranges, kRangesMost);
  Shared<Board> board;
  PoolOptions pool;
  pool.jobs = std::clamp(options.jobs, 1, 64);
  pool.work = [&](int job) {
    // The checkers' findings are the result; what assertions print on the way is not.
    if (std::freopen("/dev/null", "w", stderr) == nullptr) return 1;
    for (uint64_t at = board->next.fetch_add(1); at < wanted.size() * ranges;
         at = board->next.fetch_add(1)) {
      board->at[static_cast<size_t>(job)] = at + 1;
      const size_t bug = wanted[at / ranges];
      const size_t range = at % ranges;
      hunt(kRegistry[bug], options.first + range * kRangeApart, options.seeds,
           board->hunts[bug][range]);
      board->at[static_cast<size_t>(job)] = 0;
    }
    return 0;
  };
  pool.on_end = [&](const ChildEnd& end) {
    const uint64_t at = board->at[static_cast<size_t>(end.job)].exchange(0);
    if (!end.crashed || at == 0) return false;
    Hunt& dead = board->hunts[wanted[(at - 1) / ranges]][(at - 1) % ranges];
    dead.found = true;
    std::strncpy(dead.checker, "assertion", sizeof dead.checker - 1);
    return true;
  };
  run_pool(pool);

  std::vector<BugFinding> findings;
  for (const size_t bug : wanted)
    findings.push_back(sum_up(kRegistry[bug], board->hunts[bug], ranges, options.first));
  return findings;
}

Plan bug_plan(const std::string& name, uint64_t seed) {
  for (const Registered& entry : kRegistry) {
    if (name == entry.name) return plan_for(entry, seed);
  }
  return draw_plan(Scenario::kDefault, seed);
}

bool plant_bug(const std::string& name) {
  ros::planted_bug = PlantedBug::kNone;
  for (const Registered& entry : kRegistry) {
    if (name == entry.name) ros::planted_bug = entry.bug;
  }
  return name.empty() || ros::planted_bug != PlantedBug::kNone;
}

std::string format_findings(const std::vector<BugFinding>& findings, bool json) {
  std::string text;
  char line[320];
  if (!json) {
    std::snprintf(line, sizeof line, "%-21s %-5s %12s %9s  %-9s %6s  %s\n", "bug", "found",
                  "median seeds", "p95", "checker", "shrunk", "what it does");
    text += line;
  }
  for (const BugFinding& finding : findings) {
    const auto median = static_cast<unsigned long long>(finding.median_seeds);
    const auto p95 = static_cast<unsigned long long>(finding.p95_seeds);
    const bool shrunk = finding.shrunk_deviations.has_value();
    const std::string left = shrunk ? std::to_string(*finding.shrunk_deviations) : "";
    if (json) {
      std::snprintf(line, sizeof line,
                    "{\"bug\":\"%s\",\"found\":%s,\"median_seeds\":%llu,\"p95_seeds\":%llu,"
                    "\"checker\":\"%s\",\"shrunk_deviations\":%s}\n",
                    finding.name.c_str(), finding.found ? "true" : "false", median, p95,
                    finding.checker.c_str(), shrunk ? left.c_str() : "null");
    } else {
      std::snprintf(line, sizeof line, "%-21s %-5s %12llu %9llu  %-9s %6s  %s\n",
                    finding.name.c_str(), finding.found ? "yes" : "no", median, p95,
                    finding.checker.empty() ? "-" : finding.checker.c_str(),
                    shrunk ? left.c_str() : "-", finding.description.c_str());
    }
    text += line;
  }
  return text;
}

}  // namespace weightlane::sim
