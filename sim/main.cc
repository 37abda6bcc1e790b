// weightlane-sim: the simulator's commands. With WEIGHTLANE_PLANTED_BUGS it is weightlane-sim-bugs,
// the same program over the second build of ros, with one command more that does the work; the
// program that ships hands `bugs` on to it.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "sim/campaign.h"
#include "sim/tools.h"
#ifdef WEIGHTLANE_PLANTED_BUGS
#include "sim/bugs.h"
#else
#include "sim/paper/command.h"
#endif

namespace weightlane::sim {
namespace {

std::string scenarios_help() {
  std::string text = "what befalls the cluster:";
  for (Scenario scenario : kScenarios) {
    text += std::string("\n  ") + scenario_name(scenario) + ": " + scenario_help(scenario);
  }
  return text;
}

// A decimal number, 0x and digits, or a commit's hash, whose first twelve digits count.
bool seed_from(const std::string& text, uint64_t& seed) {
  const bool prefixed = text.rfind("0x", 0) == 0;
  const bool decimal =
      text.find_first_not_of("0123456789") == std::string::npos && text.size() < 20;
  std::string digits = prefixed ? text.substr(2) : text;
  if (!decimal && !prefixed) digits = digits.substr(0, 12);
  char* end = nullptr;
  errno = 0;
  seed = std::strtoull(digits.c_str(), &end, decimal ? 10 : 16);
  return errno == 0 && !digits.empty() && *end == '\0' && digits[0] != '-';
}

struct Arguments {
  CampaignOptions campaign;
  std::string scenario = "default";
  ToolOptions tool;
  std::string save;
  uint64_t seed = 0;
#ifdef WEIGHTLANE_PLANTED_BUGS
  BugOptions bugs;
  TracesOptions traces;
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

// Switches on what --bug asks for.
bool plant(const Arguments& arguments) {
  const std::string& bug = arguments.campaign.bug;
  if (bug.empty() || arguments.tool.plant(bug)) return true;
  complain("--bug: no bug '" + bug + "'; weightlane-sim-bugs bugs lists them");
  return false;
}

int command_run(Arguments& arguments) {
  if (!check(arguments) || !plant(arguments)) return kBadArguments;
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

// One seed with everything written down, to look at or to keep.
int command_record(Arguments& arguments) {
  if (!check(arguments) || !plant(arguments)) return kBadArguments;
  TraceFile trace = trace_of(draw_plan(arguments.campaign.scenario, arguments.seed));
  trace.bug = arguments.campaign.bug;
  const Result<Done> written = write_trace(arguments.save, trace);
  if (!written.ok()) return complain(written.error().message);
  std::printf("%s: seed %llu, %s\n", arguments.save.c_str(),
              static_cast<unsigned long long>(trace.seed), trace.story.c_str());
  return trace.promise == "none" ? 0 : 1;
}

#ifdef WEIGHTLANE_PLANTED_BUGS
int command_bugs(Arguments& arguments) {
  Result<std::vector<BugFinding>> findings = find_bugs(arguments.bugs);
  if (!findings.ok()) return complain("--bug: " + findings.error().message);
  if (arguments.bugs.shrink) {
    const Result<Done> shrunk = shrink_findings(*findings, arguments.bugs);
    if (!shrunk.ok()) return complain(shrunk.error().message);
  }
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
  command
      .add_option_function<std::string>(
          "--first",
          [&options](const std::string& text) {
            if (!seed_from(text, options.first))
              throw CLI::ValidationError("--first", "'" + text + "' is no number and no hash");
          },
          "the first seed: a number, 0x and hexadecimal digits, or a commit's hash")
      ->default_str(std::to_string(options.first));
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
#ifdef WEIGHTLANE_PLANTED_BUGS
  arguments.tool.plant = &plant_bug;
#endif
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
  replay->add_option("TRACE", arguments.tool.trace, "a trace file")->required();
  replay->footer("example: weightlane-sim replay traces/default-4711.trace");

  CLI::App* explain =
      app.add_subcommand("explain", "tell the story of a trace, and what its schedule is in words");
  explain->add_option("TRACE", arguments.tool.trace, "a trace file")->required();
  explain->add_option("--perfetto", arguments.tool.perfetto,
                      "write the run for ui.perfetto.dev to this file too");
  explain->footer("example: weightlane-sim explain one.trace --perfetto one.json");

  CLI::App* shrink =
      app.add_subcommand("shrink", "make a failing trace small: the same check still fires");
  shrink->add_option("TRACE", arguments.tool.trace, "a trace file")->required();
  shrink->add_option("--out", arguments.tool.out,
                     "the file to write; without it TRACE with .small before .trace");
  shrink->add_option("--budget", arguments.tool.budget_seconds, "seconds, at most")
      ->capture_default_str()
      ->check(CLI::Range(1, 86400));
  shrink->add_option("--jobs", arguments.tool.jobs, "processes")
      ->capture_default_str()
      ->check(CLI::Range(1, 16));
  shrink->footer("example: weightlane-sim shrink traces/default-4711.trace --out small.trace");

  CLI::App* record = app.add_subcommand("record", "write one seed's schedule down as a trace file");
  record->add_option("SEED", arguments.seed, "the seed")->required();
  record->add_option("TRACE", arguments.save, "the file to write")->required();
  record->add_option("--scenario", arguments.scenario, scenarios_help())->capture_default_str();
  record->footer("example: weightlane-sim record 4711 seed-4711.trace");

  CLI::App* probes =
      app.add_subcommand("probes", "which rare states of the code a campaign reaches");
  add_campaign_options(*probes, arguments);
  probes->footer("example: weightlane-sim probes --seeds 5000 --jobs 2");

  CLI::App* explore = app.add_subcommand(
      "explore", "every schedule of a script that differs from FIFO in few choices");
  explore->add_option("SCRIPT", arguments.tool.trace, "a file of tests/scenarios")->required();
  explore->add_option("--depth", arguments.tool.depth, "choices that may differ, at most")
      ->capture_default_str()
      ->check(CLI::Range(0, 8));
  explore->add_option("--jobs", arguments.tool.jobs, "processes")
      ->capture_default_str()
      ->check(CLI::Range(1, 16));
  explore->footer("example: weightlane-sim explore tests/scenarios/figure6.txt --depth 2");

#ifdef WEIGHTLANE_PLANTED_BUGS
  for (CLI::App* command : {run, record, explore})
    command->add_option("--bug", arguments.campaign.bug, "switch this planted bug on");
#endif

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
  bugs->add_flag("--shrink", arguments.bugs.shrink,
                 "make the first failure of each small; column shrunk: choices left");
  bugs->add_option("--budget", arguments.bugs.budget_seconds, "with --shrink: seconds for each")
      ->capture_default_str()
      ->check(CLI::Range(1, 86400));
  bugs->add_option("--traces", arguments.bugs.traces,
                   "with --shrink: folder for the small traces, named after the bugs");
  bugs->add_flag("--json", arguments.bugs.json, "one JSON object a line");
  CLI::App* traces = app.add_subcommand(
      "traces", "look after a folder of traces of planted bugs: each fails with its bug only");
  traces->add_option("FOLDER", arguments.traces.folder, "the folder")->required();
  traces->add_flag("--refresh", arguments.traces.refresh,
                   "make those anew that no longer fail: search seeds, shrink, keep the story");
  traces->add_flag("--all", arguments.traces.all, "with --refresh: every one");
  traces->add_option("--seeds", arguments.traces.seeds, "seeds to search, at most")
      ->capture_default_str();
  traces->add_option("--budget", arguments.traces.budget_seconds, "seconds to shrink each, at most")
      ->capture_default_str()
      ->check(CLI::Range(1, 86400));
  traces->add_option("--jobs", arguments.traces.jobs, "processes")
      ->capture_default_str()
      ->check(CLI::Range(1, 16));
  traces->footer("example: weightlane-sim-bugs traces traces --refresh");
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
  if (replay->parsed()) return tool_replay(arguments.tool);
  if (explain->parsed()) return tool_explain(arguments.tool);
  if (shrink->parsed()) return tool_shrink(arguments.tool);
  if (explore->parsed()) return plant(arguments) ? tool_explore(arguments.tool) : kBadArguments;
  if (record->parsed()) return command_record(arguments);
  if (probes->parsed()) return command_probes(arguments);
#ifdef WEIGHTLANE_PLANTED_BUGS
  if (traces->parsed()) return tend_traces(arguments.traces);
  return command_bugs(arguments);
#else
  if (const std::optional<int> status = paper.run()) return *status;
  return command_bugs(count, words);
#endif
}

}  // namespace
}  // namespace weightlane::sim

int main(int count, char** words) { return weightlane::sim::run_main(count, words); }
