// weightlane demo: the arguments; prod/demo_run.h does it.
#include "prod/command.h"
#include "prod/demo_run.h"

namespace weightlane::prod {
namespace {

constexpr uint32_t kReplicasMax = 64;

class DemoCommand final : public Command {
 public:
  CLI::App* declare(CLI::App& program) override {
    CLI::App* app = program.add_subcommand(
        "demo", "Trainers, rollouts and a server on this machine: see weights move");
    app->footer(
        "Every shard is a process of its own. In each step the trainers change all weights and "
        "publish them, the\n"
        "rollouts update, and every byte is compared with what it must be. Exits 0 only if all of "
        "them were right.\n\n"
        "Example:\n  weightlane demo\n  weightlane demo --chaos\n  weightlane demo --weights "
        "model.safetensors --rollouts 6");
    CLI::Option* weights = app->add_option("--weights", options_.weights,
                                           "take the weights from this safetensors file")
                               ->type_name("FILE");
    add_size(app, "--size", &options_.size, "make weights of this size, each replica")
        ->default_str("256MiB")
        ->excludes(weights);
    trainers_ = app->add_option("--trainers", options_.trainers,
                                "trainer replicas (default 1, with --chaos 2)")
                    ->check(CLI::Range(1u, kReplicasMax));
    app->add_option("--rollouts", options_.rollouts, "rollout replicas")
        ->check(CLI::Range(1u, kReplicasMax))
        ->capture_default_str();
    app->add_option("--shards", options_.shards, "shards of each replica")
        ->check(CLI::Range(1u, 16u))
        ->capture_default_str();
    app->add_option("--steps", options_.steps, "versions to publish")
        ->check(CLI::Range(1u, 10000u))
        ->capture_default_str();
    app->add_option("--servers", options_.servers,
                    "reference servers: the first leads, the others stand by")
        ->check(CLI::Range(1u, 3u))
        ->capture_default_str();
    app->add_flag(
        "--chaos", options_.chaos,
        "kill -9 a rollout and a source when half of the bytes have arrived, and the first "
        "server where there is a standby");
    app->add_option("--transport", options_.transport, "auto, same-host, tcp or verbs")
        ->check(CLI::IsMember({"auto", "same-host", "tcp", "verbs"}))
        ->capture_default_str();
    app->add_flag("--checksums", options_.checksums,
                  "checksums end to end in the protocol as well");
    add_duration(app, "--lease", &options_.lease, "a process not heard of for so long is dead")
        ->default_str("2s");
    app->add_flag("--plain", options_.plain, "lines instead of a table, on a terminal too");
    return app;
  }

  int run() override {
    if (options_.chaos && trainers_->count() == 0) options_.trainers = 2;
    if (options_.chaos && options_.rollouts < 2) {
      return report(
          "demo",
          {ErrorCode::kInvalidArgument,
           "--chaos kills a rollout and the source of another: --rollouts must be 2 or more"});
    }
    if (options_.chaos && options_.steps < 2) {
      return report("demo", {ErrorCode::kInvalidArgument,
                             "--chaos strikes in the second step: --steps must be 2 or more"});
    }
    if (options_.lease < millis(400))
      return report("demo", {ErrorCode::kInvalidArgument, "--lease must be 400ms or more"});
    const StopRequest stop;
    return run_demo(options_, stop);
  }

 private:
  DemoOptions options_;
  CLI::Option* trainers_ = nullptr;
};

}  // namespace

std::unique_ptr<Command> make_demo_command() { return std::make_unique<DemoCommand>(); }

}  // namespace weightlane::prod
