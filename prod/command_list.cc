// weightlane ls and weightlane watch: who holds what.
#include <unistd.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "prod/command.h"
#include "prod/command_peer.h"
#include "prod/kj_runtime.h"
#include "prod/layout_model.h"

namespace weightlane::prod {
namespace {

constexpr Nanos kAnswerWithin = seconds(5);

std::string state_of(const net::ListedReplica& replica) {
  std::string state = net::replica_state_name(replica.state);
  if (replica.state == net::ReplicaState::kReceiving && replica.bytes > 0) {
    state += " " + std::to_string(replica.sealed_bytes * 100 / replica.bytes) + "%";
  }
  if (replica.offload) state += " offload";
  if (replica.spot) state += " spot";
  return state;
}

// "7"; "7 kept" when it is retained; "7@2" of a generation after a rewind.
std::string version_of(const net::ListedReplica& replica) {
  std::string text = std::to_string(replica.content.version.value);
  if (replica.content.generation.value > 1)
    text += "@" + std::to_string(replica.content.generation.value);
  return text + (replica.retained ? " kept" : "");
}

class ListCommand : public Command {
 public:
  CLI::App* declare(CLI::App& program) override {
    CLI::App* app = program.add_subcommand("ls", "List what is published, and by whom");
    app->footer(
        "Example:\n  weightlane ls --server 127.0.0.1:7400\n  weightlane ls --server "
        "127.0.0.1:7400 --model m --json");
    declare_shared(app);
    return app;
  }
  int run() override {
    Result<net::ListResponse> list = fetch();
    if (!list) return report("ls", list.error());
    std::fputs(show(*list).c_str(), stdout);
    return 0;
  }

 protected:
  void declare_shared(CLI::App* app) {
    add_servers(app, &server_);
    app->add_option("--model", model_, "only this model")->type_name("NAME");
    app->add_flag("--all", all_, "the models that carry safetensors headers as well");
    app->add_flag("--json", json_, "one JSON object a line");
  }

  Result<net::ListResponse> fetch() { return fetch_list(server_, model_, kAnswerWithin); }

  std::string show(const net::ListResponse& list) const {
    std::string out;
    const std::vector<size_t> widths{16, 8, 24, 14, 6, 12, 16};
    if (!json_)
      out = show_row(
                {"MODEL", "VERSION", "REPLICA", "STATE", "SHARDS", "SIZE", "DATACENTER", "SOURCE"},
                widths) +
            "\n";
    for (const net::ListedReplica& replica : list.replicas) {
      if (is_layout_model(replica.model) && !all_) continue;
      if (json_) {
        const nlohmann::json line{{"model", replica.model},
                                  {"version", replica.content.version.value},
                                  {"replica", replica.replica},
                                  {"state", net::replica_state_name(replica.state)},
                                  {"shards", replica.num_shards},
                                  {"bytes", replica.bytes},
                                  {"sealed_bytes", replica.sealed_bytes},
                                  {"source", replica.source},
                                  {"generation", replica.content.generation.value},
                                  {"offload", replica.offload},
                                  {"spot", replica.spot},
                                  {"retained", replica.retained},
                                  {"datacenter", replica.datacenter}};
        out += line.dump() + "\n";
      } else {
        out += show_row({replica.model, version_of(replica), replica.replica, state_of(replica),
                         std::to_string(replica.num_shards), show_bytes(replica.bytes),
                         replica.datacenter, replica.source},
                        widths) +
               "\n";
      }
    }
    return out;
  }

  std::string server_;
  std::string model_;
  bool all_ = false;
  bool json_ = false;
};

class WatchCommand final : public ListCommand {
 public:
  CLI::App* declare(CLI::App& program) override {
    CLI::App* app =
        program.add_subcommand("watch", "Show what is published as it changes, until Ctrl-C");
    app->footer("Example:\n  weightlane watch --server 127.0.0.1:7400 --interval 500ms");
    declare_shared(app);
    add_duration(app, "--interval", &interval_, "between two looks")->default_str("1s");
    app->add_option("--count", count_, "end after so many looks; 0: go on")
        ->type_name("N")
        ->check(CLI::NonNegativeNumber);
    return app;
  }
  int run() override {
    const StopRequest stop;
    const bool live = ::isatty(STDOUT_FILENO) != 0;
    std::string last;
    for (uint64_t looks = 0; count_ == 0 || looks < count_; ++looks) {
      if (looks > 0 && stop.wait(interval_)) break;
      Result<net::ListResponse> list = fetch();
      if (!list) return report("watch", list.error());
      const std::string text = show(*list);
      if (live) {
        std::printf("\033[H\033[J%s", text.c_str());
      } else if (text != last) {
        std::fputs(text.c_str(), stdout);
      }
      std::fflush(stdout);
      last = text;
    }
    return 0;
  }

 private:
  Nanos interval_ = seconds(1);
  uint64_t count_ = 0;
};

}  // namespace

std::unique_ptr<Command> make_list_command() { return std::make_unique<ListCommand>(); }
std::unique_ptr<Command> make_watch_command() { return std::make_unique<WatchCommand>(); }

}  // namespace weightlane::prod
