// weightlane: the program. Reads the arguments, runs one command, and answers wrong arguments in
// one line that says what would be right.
#include <signal.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "prod/command.h"

namespace {

using weightlane::prod::Command;

// The library's words, on one line, and where to look.
int wrong_arguments(const CLI::App& program, const CLI::ParseError& error) {
  std::string where = "weightlane";
  for (const CLI::App* app : program.get_subcommands()) where += " " + app->get_name();
  std::string what = error.what();
  for (char& c : what) {
    if (c == '\n') c = ' ';
  }
  std::fprintf(stderr, "%s: %s; see %s --help\n", where.c_str(), what.c_str(), where.c_str());
  return weightlane::prod::kExitWrongArguments;
}

// Empty when the first argument is a command or an option.
std::string no_such_command(int argc, char** argv, const std::vector<CLI::App*>& apps) {
  const std::string first = argc > 1 ? argv[1] : "";
  if (first.starts_with('-')) return {};
  std::string known;
  for (const CLI::App* app : apps) {
    if (app->get_name() == first) return {};
    if (!app->get_group().empty()) known += (known.empty() ? "" : ", ") + app->get_name();
  }
  return "no command" + (first.empty() ? first : " '" + first + "'") + "; there are " + known;
}

}  // namespace

int main(int argc, char** argv) {
  ::signal(SIGPIPE, SIG_IGN);
  CLI::App program(
      "Weightlane moves model weights from trainers to rollout workers, from memory to memory.\n",
      "weightlane");
  program.require_subcommand(1);
  program.footer("Example:\n  weightlane demo\n\nEvery command has --help with an example.");
  std::vector<std::unique_ptr<Command>> commands;
  commands.push_back(weightlane::prod::make_demo_command());
  commands.push_back(weightlane::prod::make_server_command());
  commands.push_back(weightlane::prod::make_publish_command());
  commands.push_back(weightlane::prod::make_pull_command());
  commands.push_back(weightlane::prod::make_list_command());
  commands.push_back(weightlane::prod::make_watch_command());
  commands.push_back(weightlane::prod::make_wait_command());
  commands.push_back(weightlane::prod::make_rewind_command());
  commands.push_back(weightlane::prod::make_bench_command());
  commands.push_back(weightlane::prod::make_demo_worker_command());
  std::vector<CLI::App*> apps;
  apps.reserve(commands.size());
  for (const auto& command : commands) apps.push_back(command->declare(program));
  const std::string wrong = no_such_command(argc, argv, apps);
  if (!wrong.empty()) {
    std::fprintf(stderr, "weightlane: %s; see weightlane --help\n", wrong.c_str());
    return weightlane::prod::kExitWrongArguments;
  }
  try {
    program.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return program.exit(help);
  } catch (const CLI::CallForAllHelp& help) {
    return program.exit(help);
  } catch (const CLI::ParseError& error) {
    return wrong_arguments(program, error);
  }
  for (size_t i = 0; i < commands.size(); ++i) {
    if (apps[i]->parsed()) return commands[i]->run();
  }
  return weightlane::prod::kExitWrongArguments;
}
