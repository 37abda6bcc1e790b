// `weightlane-sim paper`: the figures of the paper's evaluation, from the protocol itself.
#pragma once

#include <optional>
#include <string>

namespace CLI {
class App;
}

namespace weightlane::sim::paper {

class PaperCommand {
 public:
  explicit PaperCommand(CLI::App& app);
  // The exit status; nothing: another command was given.
  std::optional<int> run() const;

 private:
  CLI::App* command_;
  std::string figure_;
  std::string folder_;
  bool json_ = false;
};

}  // namespace weightlane::sim::paper
