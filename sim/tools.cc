// A trace file is read, its bug switched on if it names one and this build has it, and its schedule
// run with somebody watching.
#include "sim/tools.h"

#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "sim/campaign.h"
#include "sim/explain.h"
#include "sim/explore.h"
#include "sim/perfetto.h"
#include "sim/shrink.h"
#include "sim/story.h"

namespace weightlane::sim {
namespace {

unsigned long long wide(uint64_t value) { return value; }  // for printf

struct Loaded {
  TraceFile trace;
  Candidate candidate;
};

Result<Loaded> load(const ToolOptions& options) {
  Result<TraceFile> trace = read_trace(options.trace);
  if (!trace.ok()) return trace.error();
  const Result<Candidate> candidate = candidate_of(*trace);
  if (!candidate.ok())
    return Error{candidate.error().code, options.trace + ": " + candidate.error().message};
  if (!trace->bug.empty() && options.plant && !options.plant(trace->bug))
    return Error{ErrorCode::kInvalidArgument,
                 options.trace + ": this build has no planted bug '" + trace->bug + "'"};
  return Loaded{std::move(trace).value(), *candidate};
}

bool runs_without_its_bug(const ToolOptions& options, const TraceFile& trace) {
  return !trace.bug.empty() && !options.plant;
}

void print_head(const ToolOptions& options, const TraceFile& trace) {
  std::printf("%s: seed %llu, %s\n", options.trace.c_str(), wide(trace.seed), trace.story.c_str());
  for (const std::string& line : trace.about) std::printf("  %s\n", line.c_str());
  if (trace.bug.empty()) return;
  std::printf("planted bug: %s%s\n", trace.bug.c_str(),
              options.plant ? "" : ", which this build does not have: it must run well");
}

void print_violation(const Outcome& outcome) {
  if (outcome.violation)
    std::printf("violation: %s: %s\n", outcome.violation->promise.c_str(),
                outcome.violation->text.c_str());
}

// The world ends after those who watched it have gone.
Outcome run_watched(Schedule& schedule) {
  const Outcome outcome = schedule.run();
  schedule.tell(nullptr);
  schedule.set_sink(nullptr);
  return outcome;
}

Schedule::Options schedule_options(const Candidate& candidate) {
  Schedule::Options options;
  options.mode = candidate.mode;
  options.overrides = candidate.choices;
  options.record = true;
  return options;
}

}  // namespace

int complain(const std::string& text) {
  std::fprintf(stderr, "weightlane-sim: %s\n", text.c_str());
  return kBadArguments;
}

int tool_replay(const ToolOptions& options) {
  const Result<Loaded> loaded = load(options);
  if (!loaded.ok()) return complain(loaded.error().message);
  const TraceFile& trace = loaded->trace;
  print_head(options, trace);
  std::fputs(story_legend(), stdout);
  Schedule schedule(loaded->candidate.plan, schedule_options(loaded->candidate));
  PrintedStory story(stdout);
  schedule.tell(&story);
  const Outcome outcome = run_watched(schedule);
  const bool same_build = trace.build == build_id();
  const bool same_hash = outcome.hash == trace.hash;
  std::printf("replayed: events=%llu hash=%016llx, the trace says hash=%016llx: %s\n",
              wide(outcome.events), wide(outcome.hash), wide(trace.hash),
              same_hash    ? "the same run"
              : same_build ? "NOT the same run, though the build is the same"
                           : "another run; the trace is of another build, which binds nothing");
  print_violation(outcome);
  if (same_build && trace.promise != "assertion" && trace.promise != "hang") {
    const std::string promise = outcome.violation ? outcome.violation->promise : "none";
    return same_hash && promise == trace.promise ? 0 : 1;
  }
  return outcome.violation ? 1 : 0;
}

int tool_explain(const ToolOptions& options) {
  const Result<Loaded> loaded = load(options);
  if (!loaded.ok()) return complain(loaded.error().message);
  print_head(options, loaded->trace);
  std::fputs(story_legend(), stdout);
  std::fflush(stdout);
  Schedule schedule(loaded->candidate.plan, schedule_options(loaded->candidate));
  PrintedStory story(stdout);
  PerfettoTrace perfetto(schedule.world(), &story);
  const bool writes = !options.perfetto.empty();
  ChoiceClock clock(schedule, writes ? &perfetto : nullptr);
  schedule.tell(writes ? static_cast<StoryTeller*>(&perfetto) : &story);
  schedule.set_sink(&clock);
  const Outcome outcome = run_watched(schedule);
  std::printf("\n");
  print_violation(outcome);
  if (!outcome.violation) std::printf("no violation\n");
  std::fputs(schedule_words(schedule, &clock).c_str(), stdout);
  if (!writes) return 0;
  std::ofstream out(options.perfetto, std::ios::trunc);
  out << perfetto.finish(outcome.ended);
  out.close();
  if (!out) return complain("--perfetto: " + options.perfetto + " cannot be written");
  std::printf("%s: open it with https://ui.perfetto.dev\n", options.perfetto.c_str());
  return 0;
}

int tool_shrink(const ToolOptions& options) {
  const Result<Loaded> loaded = load(options);
  if (!loaded.ok()) return complain(loaded.error().message);
  const TraceFile& trace = loaded->trace;
  if (runs_without_its_bug(options, trace))
    return complain(options.trace + ": it takes the planted bug '" + trace.bug +
                    "': use weightlane-sim-bugs shrink");
  ShrinkOptions shrinking;
  shrinking.jobs = options.jobs;
  shrinking.budget_ms = options.budget_seconds * 1000;
  if (!trace.bug.empty())
    shrinking.plant = [&options, bug = trace.bug](bool on) { options.plant(on ? bug : ""); };
  const int64_t begin = monotonic_ms();
  const bool shows = isatty(STDERR_FILENO) != 0;
  shrinking.on_progress = [&](uint64_t judged, size_t left) {
    if (!shows || monotonic_ms() - begin < 2000) return;
    std::fprintf(stderr, "\r%llu candidates, %zu choices left, %lld s ", wide(judged), left,
                 static_cast<long long>((monotonic_ms() - begin) / 1000));
  };
  Result<Shrunk> shrunk = shrink(loaded->candidate, shrinking);
  if (shows && monotonic_ms() - begin >= 2000) std::fprintf(stderr, "\r\033[K");
  if (!shrunk.ok()) return complain(options.trace + ": " + shrunk.error().message);
  shrunk->trace.bug = trace.bug;
  shrunk->trace.about = trace.about;
  std::string path = options.out;
  if (path.empty()) {
    path = options.trace;
    const size_t dot = path.rfind(".trace");
    if (dot != std::string::npos && dot + 6 == path.size()) path.erase(dot);
    path += ".small.trace";
  }
  const Result<Done> written = write_trace(path, shrunk->trace);
  if (!written.ok()) return complain(written.error().message);
  std::printf("%s: %s\n", path.c_str(), shrunk->trace.story.c_str());
  std::printf("%zu choices became %zu; %llu candidates in %.1f s\n", shrunk->choices_before,
              shrunk->choices, wide(shrunk->judged), shrunk->seconds);
  const Result<Candidate> small = candidate_of(shrunk->trace);
  if (!small.ok() || shrunk->trace.promise == "assertion" || shrunk->trace.promise == "hang")
    return 0;
  Schedule schedule(small->plan, schedule_options(*small));
  ChoiceClock clock(schedule, nullptr);
  schedule.set_sink(&clock);
  run_watched(schedule);
  std::fputs(schedule_words(schedule, &clock).c_str(), stdout);
  return 0;
}

int tool_explore(const ToolOptions& options) {
  const Result<Script> script = read_script(options.trace);
  if (!script.ok()) return complain(script.error().message);
  const int64_t begin = monotonic_ms();
  const Explored explored = explore(*script, {options.depth, options.jobs});
  const double seconds = static_cast<double>(monotonic_ms() - begin) * 1e-3;
  if (explored.violations != 0) {
    const bool dies = explored.promise == "assertion";
    const Played failing =
        dies ? Played{} : play(*script, {.overrides = explored.failing, .census = nullptr});
    for (const std::string& line : failing.transcript) std::printf("%s\n", line.c_str());
    std::printf("violation: %s: %s\nFIFO except these %zu choices:\n", explored.promise.c_str(),
                explored.text.c_str(), explored.failing.size());
    for (const Deviation& choice : explored.failing)
      std::printf("  %s\n", choice_words(choice, failing.hosts).c_str());
  }
  std::printf(
      "at most %u choices other than FIFO's, of %llu: schedules=%llu same=%llu "
      "violations=%llu seconds=%.1f\n",
      options.depth, wide(explored.choices), wide(explored.schedules), wide(explored.same),
      wide(explored.violations), seconds);
  return explored.violations == 0 ? 0 : 1;
}

}  // namespace weightlane::sim
