// weightlane wait and weightlane rewind: what is asked of a reference server without holding
// anything.
#include <cinttypes>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>

#include "prod/command.h"
#include "prod/event_loop.h"
#include "prod/log.h"
#include "prod/rpc.h"
#include "ros/queries.h"

namespace weightlane::prod {
namespace {

// Runs `ask` on a loop of its own.
template <typename T>
Result<T> ask_server(std::function<flow::Task<Result<T>>(ros::Environment)> ask) {
  Log::Options quiet;
  quiet.level = LogLevel::kError;
  Log log(quiet);
  EventLoop loop;
  RpcControlPlane control(&loop, &log);
  return loop.run(ask({&loop.runtime(), &control, nullptr, nullptr, nullptr}));
}

class WaitCommand final : public Command {
 public:
  CLI::App* declare(CLI::App& program) override {
    CLI::App* app = program.add_subcommand("wait", "Wait until a version of a model can be had");
    app->footer(
        "Example:\n  weightlane wait --server 127.0.0.1:7400 --model m --version 7 --timeout 1m");
    app->add_option("--server", server_, "address of the reference server")
        ->required()
        ->type_name("ADDR");
    app->add_option("--model", model_, "name of the model")->required()->type_name("NAME");
    add_version(app, "--version", &version_, "a number, latest, or latest-K")
        ->default_str("latest");
    add_duration(app, "--timeout", &timeout_, "give up after this time")->default_str("1m");
    app->add_flag("--json", json_, "tell the outcome as one JSON object");
    return app;
  }
  int run() override {
    if (Result<Done> named = check_name("--model", model_); !named)
      return report("wait", named.error());
    Result<net::Content> there = ask_server<net::Content>([this](ros::Environment environment) {
      return ros::wait_for_version(environment, server_, model_, version_, timeout_);
    });
    if (!there) return report("wait", there.error());
    if (json_) {
      const nlohmann::json line{{"model", model_},
                                {"version", there->version.value},
                                {"generation", there->generation.value}};
      std::printf("%s\n", line.dump().c_str());
    } else {
      std::printf("%" PRIu64 "\n", there->version.value);
    }
    return 0;
  }

 private:
  std::string server_;
  std::string model_;
  net::VersionSpec version_;
  Nanos timeout_ = seconds(60);
  bool json_ = false;
};

class RewindCommand final : public Command {
 public:
  CLI::App* declare(CLI::App& program) override {
    CLI::App* app = program.add_subcommand(
        "rewind", "Begin a model's next generation: older versions stop being the latest");
    app->footer(
        "For a trainer that goes back to an older step. Versions of the generation before stay "
        "reachable by number until\ntheir holders leave. Nothing is done unless the present "
        "generation is the one expected: see weightlane ls --json.\n\n"
        "Example:\n  weightlane rewind --server 127.0.0.1:7400 --model m --expected 1");
    app->add_option("--server", server_, "address of the reference server")
        ->required()
        ->type_name("ADDR");
    app->add_option("--model", model_, "name of the model")->required()->type_name("NAME");
    app->add_option("--expected", expected_, "the present generation; the first is 1")
        ->required()
        ->type_name("N")
        ->check(CLI::NonNegativeNumber);
    add_duration(app, "--timeout", &timeout_, "give up after this time")->default_str("10s");
    return app;
  }
  int run() override {
    if (Result<Done> named = check_name("--model", model_); !named)
      return report("rewind", named.error());
    Result<Generation> next = ask_server<Generation>([this](ros::Environment environment) {
      return ros::rewind_model(environment, server_, model_, Generation{expected_}, timeout_);
    });
    if (!next) return report("rewind", next.error());
    std::printf("%s is at generation %" PRIu64 "\n", model_.c_str(), next->value);
    return 0;
  }

 private:
  std::string server_;
  std::string model_;
  uint64_t expected_ = 0;
  Nanos timeout_ = seconds(10);
};

}  // namespace

std::unique_ptr<Command> make_wait_command() { return std::make_unique<WaitCommand>(); }
std::unique_ptr<Command> make_rewind_command() { return std::make_unique<RewindCommand>(); }

}  // namespace weightlane::prod
