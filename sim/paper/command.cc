// Figures are independent worlds, made and printed one after the other.
#include "sim/paper/command.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "sim/paper/figures.h"

namespace weightlane::sim::paper {

PaperCommand::PaperCommand(CLI::App& app)
    : command_(app.add_subcommand("paper", "the figures of the paper's evaluation, in tables")) {
  std::vector<std::string> names;
  for (const NamedFigure& figure : kFigures) names.emplace_back(figure.id);
  command_->add_option("--figure", figure_, "only this one")->check(CLI::IsMember(names));
  command_->add_option("--plot", folder_,
                       "folder for gnuplot scripts and, with gnuplot, SVG files");
  command_->add_flag("--json", json_, "one JSON object a line");
  command_->footer("example: weightlane-sim paper --figure 9");
}

std::optional<int> PaperCommand::run() const {
  if (!command_->parsed()) return std::nullopt;
  if (!folder_.empty()) {
    std::error_code failed;
    std::filesystem::create_directories(folder_, failed);
    if (failed) {
      std::fprintf(stderr, "weightlane-sim: --plot: %s: %s\n", folder_.c_str(),
                   failed.message().c_str());
      return 2;
    }
  }
  if (!json_) std::printf("%s\n", assumptions_text().c_str());
  for (const NamedFigure& named : kFigures) {
    if (!figure_.empty() && figure_ != named.id) continue;
    const Figure figure = named.make();
    std::printf("%s%s", json_ ? to_json(figure).c_str() : to_text(figure).c_str(),
                json_ ? "" : "\n");
    std::fflush(stdout);
    if (folder_.empty()) continue;
    const Result<std::string> drawn = plot(figure, folder_);
    if (!drawn.ok()) {
      std::fprintf(stderr, "weightlane-sim: %s\n", drawn.error().message.c_str());
      return 2;
    }
    std::fprintf(stderr, "%s\n", drawn->c_str());
  }
  return 0;
}

}  // namespace weightlane::sim::paper
