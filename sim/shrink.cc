// The passes, in the order of shrink.h. Each asks the judge for the first candidate of a list that
// still fails in the same way, takes it, and goes on behind it; so with one job or many the result
// is the same, as long as the time suffices.
#include "sim/shrink.h"

#include <algorithm>
#include <cstdio>
#include <map>

#include "flow/random.h"
#include "sim/campaign.h"
#include "sim/hash.h"
#include "sim/schedule.h"

namespace weightlane::sim {
namespace {

constexpr size_t kBatch = 512;  // candidates of the search, from one census
constexpr size_t kBatchesMost = 200;
constexpr size_t kBatchesWhenFew = 8;
constexpr size_t kFew = 3;
constexpr size_t kMany = 40;

class Shrinker {
 public:
  Shrinker(const Candidate& begin, const ShrinkOptions& options)
      : options_(options),
        judge_({options.jobs, 10'000, options.plant}),
        begin_ms_(monotonic_ms()),
        deadline_ms_(begin_ms_ + options.budget_ms),
        best_(begin),
        faults_(begin.plan.world.faults) {}

  Result<Shrunk> run();

 private:
  // Takes the first of these that still fails; its index.
  std::optional<size_t> take(size_t count, const Judge::Make& make);
  bool start();
  void drop_kinds();
  void other_seeds();
  Plan plan_of(uint64_t seed) const {
    return options_.plan_of ? options_.plan_of(seed) : draw_plan(best_.plan.scenario, seed);
  }
  bool smaller_plan();
  void drop_ranges();
  void lower_outcomes();
  bool search();
  std::vector<Draw> census();
  Candidate sample(const std::vector<Draw>& draws, uint64_t number) const;

  ShrinkOptions options_;
  Judge judge_;
  int64_t begin_ms_;
  int64_t deadline_ms_;
  Candidate best_;
  FaultRates faults_;  // of the plan that it began with: what the search may use
  Verdict wanted_;
  Verdict verdict_;  // of best_
};

bool Shrinker::start() {
  wanted_ = judge_.run(best_);
  if (!wanted_.fired) return false;
  verdict_ = wanted_;
  if (best_.mode == ChoiceMode::kReplay && !options_.plant) {
    best_.choices = wanted_.choices;
    return true;
  }
  // A run without end is cut short first: every candidate that fails costs as much.
  if (wanted_.text.rfind("livelock", 0) == 0) {
    for (const uint32_t thousands : {50u, 200u}) {
      Candidate shorter = best_;
      shorter.plan.step_limit_k = thousands;
      if (take(1, [&shorter](size_t) { return shorter; })) return true;
    }
  }
  Candidate written = best_;
  written.mode = ChoiceMode::kReplay;
  written.choices = wanted_.choices;
  return take(1, [&written](size_t) { return written; }).has_value();
}

std::optional<size_t> Shrinker::take(size_t count, const Judge::Make& make) {
  Verdict verdict;
  const auto index = judge_.first_same(count, make, wanted_, deadline_ms_, verdict);
  if (!index) return index;
  best_ = make(*index);
  best_.mode = ChoiceMode::kReplay;
  best_.choices = verdict.choices;
  verdict_ = std::move(verdict);
  if (options_.on_progress) options_.on_progress(judge_.judged(), best_.choices.size());
  return index;
}

// All of one name, then all of one host, at once; none at all is tried first.
void Shrinker::drop_kinds() {
  Candidate dull = best_;
  dull.choices.clear();
  if (take(1, [&dull](size_t) { return dull; })) return;
  std::map<std::string, size_t> counts;
  for (const Deviation& choice : best_.choices) ++counts[choice.name];
  std::vector<std::pair<size_t, std::string>> names;
  for (const auto& [name, count] : counts) names.emplace_back(count, name);
  std::sort(names.rbegin(), names.rend());
  for (size_t at = 0; at < names.size();) {
    const auto found = take(names.size() - at, [&](size_t i) {
      Candidate candidate = best_;
      std::erase_if(candidate.choices,
                    [&](const Deviation& choice) { return names[at + i].second == choice.name; });
      return candidate;
    });
    if (!found) break;
    at += *found + 1;
  }
  std::vector<uint32_t> hosts;
  for (const Deviation& choice : best_.choices) hosts.push_back(choice.stream.value / kSubsystems);
  std::sort(hosts.begin(), hosts.end());
  hosts.erase(std::unique(hosts.begin(), hosts.end()), hosts.end());
  for (size_t at = 0; at < hosts.size();) {
    const auto found = take(hosts.size() - at, [&](size_t i) {
      Candidate candidate = best_;
      std::erase_if(candidate.choices, [&](const Deviation& choice) {
        return choice.stream.value / kSubsystems == hosts[at + i];
      });
      return candidate;
    });
    if (!found) break;
    at += *found + 1;
  }
}

// Where the choices of this seed hang together too much, another seed that fails in the same way
// may need fewer kinds of them. Takes a quarter of the time at most.
void Shrinker::other_seeds() {
  const int64_t until = begin_ms_ + (deadline_ms_ - begin_ms_) / 4;
  uint64_t seed = best_.plan.seed;
  while (best_.choices.size() > kMany && monotonic_ms() < until) {
    const Candidate known = best_;
    const Verdict known_verdict = verdict_;
    Verdict verdict;
    const auto found = judge_.first_same(
        kBatch, [&](size_t i) { return Candidate{plan_of(seed + 1 + i), {}, ChoiceMode::kSeed}; },
        wanted_, until, verdict);
    seed += found ? *found + 1 : kBatch;
    if (!found) continue;
    const Candidate other{plan_of(seed), verdict.choices, ChoiceMode::kReplay};
    if (!take(1, [&other](size_t) { return other; })) continue;
    drop_kinds();
    if (best_.choices.size() < known.choices.size()) continue;
    best_ = known;
    verdict_ = known_verdict;
  }
}

// Round and round through the list, until a whole round helps no more.
bool Shrinker::smaller_plan() {
  bool any = false;
  size_t begin = 0;
  for (;;) {
    const std::vector<Candidate> candidates = smaller_plans(best_);
    const size_t count = candidates.size();
    const auto found = take(count, [&](size_t i) { return candidates[(begin + i) % count]; });
    if (!found) return any;
    any = true;
    begin = (begin + *found) % count;
  }
}

void Shrinker::drop_ranges() {
  size_t size = std::max<size_t>(1, best_.choices.size() / 2);
  for (bool again = true; again && !best_.choices.empty();) {
    size_t at = 0;
    const size_t before = best_.choices.size();
    while (at < best_.choices.size()) {
      const size_t chunks = (best_.choices.size() - at + size - 1) / size;
      const auto found = take(chunks, [&](size_t i) {
        Candidate candidate = best_;
        const size_t from = at + i * size;
        const size_t to = std::min(from + size, candidate.choices.size());
        candidate.choices.erase(candidate.choices.begin() + static_cast<ptrdiff_t>(from),
                                candidate.choices.begin() + static_cast<ptrdiff_t>(to));
        return candidate;
      });
      if (!found) break;
      at += *found * size;
    }
    again = size > 1 || best_.choices.size() < before;
    size = std::max<size_t>(1, size / 2);
    if (monotonic_ms() > deadline_ms_) return;
  }
}

void Shrinker::lower_outcomes() {
  for (size_t at = 0; at < best_.choices.size(); ++at) {
    const uint32_t value = best_.choices[at].value;
    std::vector<uint32_t> lower;
    for (uint32_t less = 1; less < value; less = less < 4 ? less + 1 : less * 2)
      lower.push_back(less);
    take(lower.size(), [&](size_t i) {
      Candidate candidate = best_;
      candidate.choices[at].value = lower[i];
      return candidate;
    });
  }
}

// Every draw of the best candidate's run, or, where that would kill this process, of the same
// without the bug.
std::vector<Draw> Shrinker::census() {
  std::vector<Draw> draws;
  const bool dies = wanted_.promise == "assertion" || wanted_.promise == "hang";
  if (dies && !options_.plant) return draws;
  if (dies) options_.plant(false);
  Plan plan = best_.plan;
  plan.world.faults = faults_;
  Schedule::Options options;
  options.mode = ChoiceMode::kReplay;
  options.overrides = best_.choices;
  options.census = &draws;
  {
    Schedule schedule(plan, options);
    schedule.run();
  }
  if (dies) options_.plant(true);
  return draws;
}

// Times and sizes of another seed's plan, in the cluster of this one.
void borrow(Plan& plan, const Plan& other, uint64_t what) {
  switch (what) {
    case 0:
      plan.habits.train = other.habits.train;
      plan.habits.hold = other.habits.hold;
      plan.habits.think = other.habits.think;
      break;
    case 1:
      plan.server = other.server;
      plan.handle = other.handle;
      plan.world.data.retry_nominal = other.world.data.retry_nominal;
      [[fallthrough]];
    case 2:
      plan.tensors = other.tensors;
      plan.granules = other.granules;
      plan.world.data = other.world.data;
      plan.world.bandwidth = other.world.bandwidth;
      plan.handle.slice_bytes = other.handle.slice_bytes;
      plan.handle.window_bytes = other.handle.window_bytes;
      break;
    default:
      plan.server.drain = other.server.drain;
      break;
  }
}

Candidate Shrinker::sample(const std::vector<Draw>& draws, uint64_t number) const {
  flow::Rng rng(best_.plan.seed, number);
  Candidate made = best_;
  const uint64_t target = rng.below(best_.choices.size());
  const uint64_t keep = rng.below(target + 1);
  while (made.choices.size() > keep)
    made.choices.erase(made.choices.begin() +
                       static_cast<ptrdiff_t>(rng.below(made.choices.size())));
  std::map<std::string, std::vector<const Draw*>> kinds;
  for (const Draw& draw : draws) kinds[draw.name].push_back(&draw);
  while (!kinds.empty() && made.choices.size() < target) {
    auto kind = kinds.begin();
    std::advance(kind, static_cast<ptrdiff_t>(rng.below(kinds.size())));
    const Draw& draw = *kind->second[rng.below(kind->second.size())];
    uint32_t value = 1 + static_cast<uint32_t>(rng.below(draw.n - 1));
    for (int tries = 0; draw.possible != 0 && (draw.possible >> value & 1) == 0 && tries < 64;
         ++tries) {
      value = 1 + static_cast<uint32_t>(rng.below(draw.n - 1));
    }
    made.choices.push_back({draw.stream, draw.index, draw.n, value, draw.name});
  }
  const uint64_t what = rng.below(8);
  const Plan other = plan_of(rng.next());
  if (what < 4) borrow(made.plan, other, what);
  return made;
}

// True: a shorter list was found.
bool Shrinker::search() {
  const size_t batches = best_.choices.size() <= kFew ? kBatchesWhenFew : kBatchesMost;
  for (size_t batch = 0; batch < batches && best_.choices.size() > options_.enough; ++batch) {
    if (monotonic_ms() > deadline_ms_) return false;
    const std::vector<Draw> draws = census();
    const uint64_t salt = mix64(verdict_.hash, batch);
    const auto found = take(kBatch, [&](size_t i) { return sample(draws, mix64(salt, i)); });
    if (found) return true;
  }
  return false;
}

Result<Shrunk> Shrinker::run() {
  if (!start()) {
    return Error{ErrorCode::kInvalidArgument,
                 options_.plant ? "it does not fail in this build with its bug, or fails without it"
                                : "it does not fail in this build"};
  }
  Shrunk shrunk;
  shrunk.choices_before = best_.choices.size();
  drop_kinds();
  other_seeds();
  faults_ = best_.plan.world.faults;
  do {
    bool smaller = true;
    while (smaller && monotonic_ms() < deadline_ms_) {
      drop_ranges();
      smaller = smaller_plan();
    }
  } while (search());
  lower_outcomes();
  shrunk.trace = trace_of(best_, verdict_);
  shrunk.choices = best_.choices.size();
  shrunk.judged = judge_.judged();
  shrunk.seconds = static_cast<double>(monotonic_ms() - begin_ms_) * 1e-3;
  return shrunk;
}

}  // namespace

Result<Candidate> candidate_of(const TraceFile& trace) {
  const Result<Plan> plan = plan_of(trace);
  if (!plan.ok()) return plan.error();
  Candidate candidate{*plan, {}, ChoiceMode::kReplay};
  for (const TraceChoice& choice : trace.choices) {
    candidate.choices.push_back({choice.stream, choice.index, choice.n, choice.value, nullptr});
  }
  // A trace of a process that died has no choices: its seed says the same.
  if (trace.choices.empty() && trace.events == 0) candidate.mode = ChoiceMode::kSeed;
  return candidate;
}

Result<Shrunk> shrink(const Candidate& candidate, const ShrinkOptions& options) {
  return Shrinker(candidate, options).run();
}

TraceFile trace_of(const Candidate& candidate, const Verdict& verdict) {
  TraceFile trace;
  trace.build = build_id();
  trace.scenario = scenario_name(candidate.plan.scenario);
  trace.seed = candidate.plan.seed;
  trace.promise = verdict.promise;
  trace.hash = verdict.hash;
  trace.events = std::max<uint64_t>(1, verdict.events);
  trace.config = plan_text(candidate.plan);
  char at[48];
  std::snprintf(at, sizeof at, " at %.6f s, ", to_seconds(verdict.at));
  trace.story = verdict.fired ? verdict.promise + at + verdict.text : "no violation";
  for (const Deviation& choice : verdict.choices) {
    trace.choices.push_back({choice.stream, choice.index, choice.n, choice.value,
                             choice.name != nullptr ? choice.name : "?"});
  }
  if (verdict.promise == "assertion" || verdict.promise == "hang") return trace;
  Schedule::Options options;
  options.mode = candidate.mode;
  options.overrides = candidate.choices;
  options.record = true;
  Schedule schedule(candidate.plan, options);
  schedule.run();
  trace.faults = schedule.faults();
  return trace;
}

}  // namespace weightlane::sim
