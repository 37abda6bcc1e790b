// weightlane-sim: the simulator's commands. With WEIGHTLANE_PLANTED_BUGS it is weightlane-sim-bugs,
// the same program over the second build of ros, with one command more that does the work; the
// program that ships hands `bugs` on to it.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "sim/campaign.h"
#include "sim/story.h"
#ifdef WEIGHTLANE_PLANTED_BUGS
#include "sim/bugs.h"
#else
#include "sim/paper/command.h"
#endif

namespace weightlane::sim {
namespace {

constexpr int kBadArguments = 2;

int complain(const std::string& text) {
  std::fprintf(stderr, "weightlane-sim: %s\n", text.c_str());
  return kBadArguments;
}

std::string scenarios_help() {
  std::string text = "what befalls the cluster:";
  for (Scenario scenario : kScenarios) {
    text += std::string("\n  ") + scenario_name(scenario) + ": " + scenario_help(scenario);
  }
  return text;
}

struct Arguments {
  CampaignOptions campaign;
  std::string scenario = "default";
  std::string trace;
  std::string save;
  uint64_t seed = 0;
#ifdef WEIGHTLANE_PLANTED_BUGS
  BugOptions bugs;
#endif
};

// False, and a complaint printed, when an argument makes no sense.
bool check(Arguments& arguments) {
  const Result<Scenario> scenario = scenario_named(arguments.scenario);
  if (!scenario.ok()) {
    complain("--scenario: " + scenario.error().message);
    return false;
  }
  arguments.campaign.scenario = *scenario;
  if (access(arguments.campaign.traces.c_str(), W_OK) != 0) {
    // Nothing was said about where they go: here, then.
    if (arguments.campaign.traces == CampaignOptions{}.traces) {
      arguments.campaign.traces = ".";
    } else {
      complain("--traces: " + arguments.campaign.traces + ": " + std::strerror(errno) +
               "; a folder that can be written");
      return false;
    }
  }
  return true;
}

int command_run(Arguments& arguments) {
  if (!check(arguments)) return kBadArguments;
  arguments.campaign.probes = true;
  const CampaignResult result = run_campaign(arguments.campaign);
  if (!arguments.campaign.json) std::fputs(unreached(result).c_str(), stdout);
  std::fputs(summary(result, arguments.campaign.json).c_str(), stdout);
  return result.violations == 0 ? 0 : 1;
}

int command_probes(Arguments& arguments) {
  if (!check(arguments)) return kBadArguments;
  arguments.campaign.probes = true;
  const CampaignResult result = run_campaign(arguments.campaign);
  uint64_t never = 0;
  for (const ProbeLine& probe : result.probes) {
    const auto hits = static_cast<unsigned long long>(probe.hits);
    const auto seeds = static_cast<unsigned long long>(probe.seeds);
    if (probe.hits == 0 && !probe.rare) ++never;
    if (arguments.campaign.json) {
      std::printf("{\"probe\":\"%s\",\"rare\":%s,\"hits\":%llu,\"seeds\":%llu}\n",
                  probe.name.c_str(), probe.rare ? "true" : "false", hits, seeds);
    } else {
      std::printf("%-64s %10llu hits in %8llu seeds%s%s\n", probe.name.c_str(), hits, seeds,
                  probe.rare ? "  rare" : "", probe.hits == 0 ? "  NEVER REACHED" : "");
    }
  }
  if (!arguments.campaign.json) {
    std::printf("%llu of %zu probes were never reached and are not marked rare\n",
                static_cast<unsigned long long>(never), result.probes.size());
    std::fputs(summary(result, false).c_str(), stdout);
  }
  return result.violations == 0 ? 0 : 1;
}

int command_replay(const Arguments& arguments) {
  const Result<TraceFile> read = read_trace(arguments.trace);
  if (!read.ok()) return complain(read.error().message);
  const TraceFile& trace = *read;
  const Result<Plan> plan = plan_of(trace);
  if (!plan.ok()) return complain(arguments.trace + ": " + plan.error().message);
  std::vector<Deviation> overrides;
  for (const TraceChoice& choice : trace.choices) {
    overrides.push_back({choice.stream, choice.index, choice.n, choice.value, nullptr});
  }
  std::printf("%s: seed %llu, %s\n%s", arguments.trace.c_str(),
              static_cast<unsigned long long>(trace.seed), trace.story.c_str(), story_legend());
  // A trace without choices is of a process that died: its seed says the same.
  Schedule::Options options;
  options.mode = overrides.empty() ? ChoiceMode::kSeed : ChoiceMode::kReplay;
  options.overrides = overrides;
  Schedule schedule(*plan, options);
  PrintedStory story(stdout);
  schedule.tell(&story);
  const Outcome outcome = schedule.run();
  const bool same_build = trace.build == build_id();
  const bool same_hash = outcome.hash == trace.hash;
  std::printf("replayed: events=%llu hash=%016llx, the trace says hash=%016llx: %s\n",
              static_cast<unsigned long long>(outcome.events),
              static_cast<unsigned long long>(outcome.hash),
              static_cast<unsigned long long>(trace.hash),
              same_hash    ? "the same run"
              : same_build ? "NOT the same run, though the build is the same"
                           : "another run; the trace is of another build, which binds nothing");
  if (outcome.violation)
    std::printf("violation: %s: %s\n", outcome.violation->promise.c_str(),
                outcome.violation->text.c_str());
  if (same_build && trace.promise != "assertion") {
    const std::string promise = outcome.violation ? outcome.violation->promise : "none";
    return same_hash && promise == trace.promise ? 0 : 1;
  }
  return outcome.violation ? 1 : 0;
}

// One seed with everything written down, to look at or to keep.
int command_record(Arguments& arguments) {
  if (!check(arguments)) return kBadArguments;
  const TraceFile trace = trace_of(draw_plan(arguments.campaign.scenario, arguments.seed));
  const Result<Done> written = write_trace(arguments.save, trace);
  if (!written.ok()) return complain(written.error().message);
  std::printf("%s: seed %llu, %s\n", arguments.save.c_str(),
              static_cast<unsigned long long>(trace.seed), trace.story.c_str());
  return trace.promise == "none" ? 0 : 1;
}

#ifdef WEIGHTLANE_PLANTED_BUGS
int command_bugs(const Arguments& arguments) {
  const Result<std::vector<BugFinding>> findings = find_bugs(arguments.bugs);
  if (!findings.ok()) return complain("--bug: " + findings.error().message);
  std::fputs(format_findings(*findings, arguments.bugs.json).c_str(), stdout);
  bool all = true;
  for (const BugFinding& finding : *findings) all = all && finding.found;
  return all ? 0 : 1;
}
#else
// The bugs are in another program, beside this one.
int command_bugs(int count, char** words) {
  char self[4096];
  const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
  if (length <= 0)
    return complain("cannot find weightlane-sim-bugs: " + std::string(std::strerror(errno)));
  const std::string other = std::string(self, static_cast<size_t>(length)) + "-bugs";
  std::vector<char*> arguments(words, words + count);
  arguments.push_back(nullptr);
  execv(other.c_str(), arguments.data());
  return complain(other + ": " + std::strerror(errno) + "; build the target weightlane-sim-bugs");
}
#endif

void add_campaign_options(CLI::App& command, Arguments& arguments) {
  CampaignOptions& options = arguments.campaign;
  command.add_option("--seeds", options.seeds, "how many schedules")->capture_default_str();
  command.add_option("--first", options.first, "the first seed")->capture_default_str();
  command.add_option("--jobs", options.jobs, "processes")
      ->capture_default_str()
      ->check(CLI::Range(1, 64));
  command.add_option("--scenario", arguments.scenario, scenarios_help())->capture_default_str();
  command.add_option("--traces", options.traces, "folder for the traces of failures")
      ->capture_default_str();
  command.add_flag("--json", options.json, "one JSON object a line");
}

int run_main(int count, char** words) {
  Arguments arguments;
  CLI::App app("Weightlane's simulator: the real protocol in seeded worlds full of faults.");
  app.name("weightlane-sim");
  app.require_subcommand(1);

  CLI::App* run = app.add_subcommand("run", "run many schedules, all checkers on");
  add_campaign_options(*run, arguments);
  run->add_flag("--check-determinism", arguments.campaign.check_determinism,
                "run every seed twice; stop at the first event that differs");
  run->footer("example: weightlane-sim run --seeds 10000 --jobs 2");

  CLI::App* replay =
      app.add_subcommand("replay", "run the schedule of a trace file and tell its story");
  replay->add_option("TRACE", arguments.trace, "a trace file")->required();
  replay->footer("example: weightlane-sim replay traces/default-4711.trace");

  CLI::App* record = app.add_subcommand("record", "write one seed's schedule down as a trace file");
  record->add_option("SEED", arguments.seed, "the seed")->required();
  record->add_option("TRACE", arguments.save, "the file to write")->required();
  record->add_option("--scenario", arguments.scenario, scenarios_help())->capture_default_str();
  record->footer("example: weightlane-sim record 4711 seed-4711.trace");

  CLI::App* probes =
      app.add_subcommand("probes", "which rare states of the code a campaign reaches");
  add_campaign_options(*probes, arguments);
  probes->footer("example: weightlane-sim probes --seeds 5000 --jobs 2");

  CLI::App* bugs = app.add_subcommand("bugs", "how many seeds it takes to find each planted bug");
#ifdef WEIGHTLANE_PLANTED_BUGS
  bugs->add_option("--seeds", arguments.bugs.seeds, "seeds to try, at most, in each range")
      ->capture_default_str();
  bugs->add_option("--ranges", arguments.bugs.ranges, "ranges of seeds, for the median")
      ->capture_default_str()
      ->check(CLI::Range(1, 32));
  bugs->add_option("--first", arguments.bugs.first, "the first seed")->capture_default_str();
  bugs->add_option("--jobs", arguments.bugs.jobs, "processes")
      ->capture_default_str()
      ->check(CLI::Range(1, 64));
  bugs->add_option("--bug", arguments.bugs.only, "only this one");
  bugs->add_flag("--json", arguments.bugs.json, "one JSON object a line");
#else
  bugs->allow_extras();
  bugs->set_help_flag();
#endif
  bugs->footer("example: weightlane-sim bugs --seeds 1000 --jobs 2");

#ifndef WEIGHTLANE_PLANTED_BUGS
  const paper::PaperCommand paper(app);
#endif

  if (count > 1 && words[1][0] != '-') {
    std::string known;
    bool found = false;
    for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
      known += (known.empty() ? "" : ", ") + command->get_name();
      found = found || command->get_name() == words[1];
    }
    if (!found) {
      return complain("no command '" + std::string(words[1]) + "'; there are: " + known);
    }
  }
  try {
    app.parse(count, words);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    const std::string what = error.what();
    return complain(what.substr(0, what.find('\n')) + "; see: weightlane-sim" +
                    (app.get_subcommands().empty() ? std::string()
                                                   : " " + app.get_subcommands()[0]->get_name()) +
                    " --help");
  }
  if (run->parsed()) return command_run(arguments);
  if (replay->parsed()) return command_replay(arguments);
  if (record->parsed()) return command_record(arguments);
  if (probes->parsed()) return command_probes(arguments);
#ifdef WEIGHTLANE_PLANTED_BUGS
  return command_bugs(arguments);
#else
  if (const std::optional<int> status = paper.run()) return *status;
  return command_bugs(count, words);
#endif
}

}  // namespace
}  // namespace weightlane::sim

int main(int count, char** words) { return weightlane::sim::run_main(count, words); }
