// Small traces of planted bugs: the first seed that fails becomes a trace that names its bug, as
// small as it can be made. Only weightlane-sim-bugs has this.
#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "sim/bugs.h"
#include "sim/shrink.h"

namespace weightlane::sim {
namespace {

constexpr int kStale = 77;  // as ctest's "skipped"

enum class Standing : uint8_t { kFresh, kStale, kWrong };

ShrinkOptions shrink_options(const std::string& bug, int jobs, int64_t budget_seconds) {
  ShrinkOptions options;
  options.jobs = jobs;
  options.budget_ms = budget_seconds * 1000;
  options.plant = [bug](bool on) { plant_bug(on ? bug : ""); };
  options.plan_of = [bug](uint64_t seed) { return bug_plan(bug, seed); };
  return options;
}

Standing look_at(const TraceFile& trace) {
  const Result<Candidate> candidate = candidate_of(trace);
  if (!candidate.ok()) {
    std::printf("%s\n", candidate.error().message.c_str());
    return Standing::kWrong;
  }
  Judge judge({});
  plant_bug("");
  const Verdict clean = judge.run(*candidate);
  if (clean.fired) {
    std::printf("violates %s without its bug: %s\n", clean.promise.c_str(), clean.text.c_str());
    return Standing::kWrong;
  }
  if (!plant_bug(trace.bug)) {
    std::printf("this build has no bug '%s'\n", trace.bug.c_str());
    return Standing::kWrong;
  }
  const Verdict verdict = judge.run(*candidate);
  plant_bug("");
  const bool same = verdict.fired && verdict.promise == trace.promise;
  std::printf(
      "%s\n",
      same ? (verdict.promise + ", " + std::to_string(trace.choices.size()) + " choices").c_str()
           : "no longer fails: refresh it");
  return same ? Standing::kFresh : Standing::kStale;
}

// Searches seeds for the bug again. What is said about it is kept.
Standing make_anew(const TracesOptions& options, const std::string& path, TraceFile trace) {
  BugOptions search;
  search.only = trace.bug;
  search.seeds = options.seeds;
  search.ranges = 1;
  Result<std::vector<BugFinding>> findings = find_bugs(search);
  if (!findings.ok() || findings->front().seed == 0) {
    std::printf("  %s\n", findings.ok() ? "no seed shows it" : findings.error().message.c_str());
    return Standing::kWrong;
  }
  const BugFinding& finding = findings->front();
  plant_bug(trace.bug);
  const Candidate first{bug_plan(finding.name, finding.seed), {}, ChoiceMode::kSeed};
  Result<Shrunk> shrunk =
      shrink(first, shrink_options(trace.bug, options.jobs, options.budget_seconds));
  plant_bug("");
  if (!shrunk.ok()) {
    std::printf("  seed %llu: %s\n", static_cast<unsigned long long>(finding.seed),
                shrunk.error().message.c_str());
    return Standing::kWrong;
  }
  TraceFile made = std::move(shrunk->trace);
  made.bug = trace.bug;
  made.about = std::move(trace.about);
  const Result<Done> written = write_trace(path, made);
  std::printf("  anew, from seed %llu: %zu choices, %s\n",
              static_cast<unsigned long long>(finding.seed), shrunk->choices,
              written.ok() ? made.story.c_str() : written.error().message.c_str());
  return written.ok() ? Standing::kFresh : Standing::kWrong;
}

}  // namespace

int tend_traces(const TracesOptions& options) {
  std::vector<std::string> paths;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(options.folder, error)) {
    if (entry.path().extension() == ".trace") paths.push_back(entry.path());
  }
  if (error) {
    std::printf("%s: %s\n", options.folder.c_str(), error.message().c_str());
    return 1;
  }
  std::sort(paths.begin(), paths.end());
  size_t stale = 0;
  size_t wrong = 0;
  for (const std::string& path : paths) {
    const Result<TraceFile> trace = read_trace(path);
    std::printf("%s: ", path.c_str());
    if (!trace.ok()) std::printf("%s\n", trace.error().message.c_str());
    Standing standing = trace.ok() ? look_at(*trace) : Standing::kWrong;
    std::fflush(stdout);
    const bool anew = options.refresh && (options.all || standing != Standing::kFresh);
    if (trace.ok() && anew) standing = make_anew(options, path, *trace);
    stale += standing == Standing::kStale;
    wrong += standing == Standing::kWrong;
  }
  std::printf("%zu traces, %zu to be refreshed, %zu wrong\n", paths.size(), stale, wrong);
  return wrong != 0 ? 1 : stale != 0 ? kStale : 0;
}

Result<Done> shrink_findings(std::vector<BugFinding>& findings, const BugOptions& options) {
  for (BugFinding& finding : findings) {
    if (finding.seed == 0) continue;
    const std::string name = finding.name;
    plant_bug(name);
    const Candidate first{bug_plan(finding.name, finding.seed), {}, ChoiceMode::kSeed};
    Result<Shrunk> shrunk =
        shrink(first, shrink_options(name, options.jobs, options.budget_seconds));
    plant_bug("");
    if (!shrunk.ok()) {
      std::fprintf(stderr, "%s: seed %llu: %s\n", name.c_str(),
                   static_cast<unsigned long long>(finding.seed), shrunk.error().message.c_str());
      continue;
    }
    finding.shrunk_deviations = shrunk->choices;
    finding.shrink_seconds = shrunk->seconds;
    if (options.traces.empty()) continue;
    TraceFile trace = std::move(shrunk)->trace;
    trace.bug = name;
    const Result<Done> written = write_trace(options.traces + "/" + name + ".trace", trace);
    if (!written.ok()) return written;
  }
  return Done{};
}

}  // namespace weightlane::sim
