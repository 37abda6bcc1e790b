// weightlane server: the reference server of a job. Knows who holds what, and never sees a weight.
#include <sys/resource.h>

#include <cstdio>
#include <optional>

#include "prod/command.h"
#include "prod/event_log.h"
#include "prod/event_loop.h"
#include "prod/log.h"
#include "prod/metrics.h"
#include "prod/metrics_port.h"
#include "prod/rpc.h"
#include "ros/server.h"
#include "ros/waits.h"

namespace weightlane::prod {
namespace {

// Every client keeps a connection: as many as the system lets this process have.
void raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

class ServerCommand final : public Command {
 public:
  CLI::App* declare(CLI::App& program) override {
    CLI::App* app = program.add_subcommand(
        "server", "Run a reference server: who holds what, who reads from whom");
    app->footer(
        "Prints \"listening on ADDRESS\" when it is ready. Port 0 takes a free one. SIGTERM ends "
        "it.\n\n"
        "Example:\n  weightlane server --listen 0.0.0.0:7400\n  weightlane server --listen "
        "[::1]:7400 --metrics [::1]:9400");
    app->add_option("--listen", listen_, "HOST:PORT, [IPV6]:PORT or unix:/PATH")
        ->required()
        ->type_name("ADDR");
    app->add_option("--metrics", metrics_, "serve Prometheus metrics at this HOST:PORT")
        ->type_name("ADDR");
    add_duration(app, "--heartbeat", &options_.heartbeat, "clients are heard of at least so often")
        ->default_str("1s");
    add_duration(app, "--lease", &options_.lease, "a client not heard of for so long is dead")
        ->default_str("10s");
    add_duration(app, "--drain", &options_.drain,
                 "a source waits so long for its readers before it cuts them off")
        ->default_str("30s");
    add_duration(app, "--missing-member", &options_.missing_member,
                 "a group call waits so long for a shard that does not call")
        ->default_str("60s");
    add_duration(app, "--seed-patience", &options_.seed_patience,
                 "a replica that could fetch a version from another datacenter leaves it so long "
                 "to one that should rather")
        ->default_str("10s");
    app->add_flag("--no-pipelining", no_pipelining_,
                  "replicas that still receive never serve; sources serve many at once");
    app->add_flag("--verbose", verbose_, "log decisions, evictions and visibility, to stderr");
    app->add_flag("--log-json", log_json_, "log as JSON, one object a line");
    return app;
  }

  int run() override {
    options_.pipelining = !no_pipelining_;
    if (options_.lease < options_.heartbeat * 2) {
      return report("server",
                    {ErrorCode::kInvalidArgument, "--lease must be at least twice --heartbeat"});
    }
    raise_descriptor_limit();
    const StopRequest stop;
    Log::Options log_options;
    log_options.format = log_json_ ? LogFormat::kJson : LogFormat::kKeyValue;
    Log log(log_options);
    EventLoop loop;
    RpcControlPlane control(&loop, &log);
    Metrics metrics;
    ServerLog events(&log, &metrics.server());
    ros::ServerObserver* const observer = verbose_ ? &events : &metrics.server();
    Result<std::unique_ptr<ros::Server>> server =
        ros::Server::start(&loop.runtime(), &control, listen_, options_, observer);
    if (!server) return report("server", server.error());
    std::unique_ptr<MetricsPort> port;
    if (!metrics_.empty()) {
      Result<std::unique_ptr<MetricsPort>> served =
          MetricsPort::serve(&loop, metrics_, [&metrics] { return metrics.text(); });
      if (!served) return report("server", served.error());
      port = std::move(*served);
      std::printf("metrics at http://%s/metrics\n", port->address().c_str());
    }
    std::printf("listening on %s\n", (*server)->address().c_str());
    std::fflush(stdout);
    const std::unique_ptr<FdWatch> watch =
        loop.watch(stop.descriptor(), [&loop](FdReady) { loop.stop(); });
    const WaitsRequest waits;
    const std::unique_ptr<FdWatch> asked = loop.watch(waits.descriptor(), [&](FdReady) {
      WaitsRequest::answer(waits.descriptor(), ros::who_waits((*server)->directory()));
    });
    while (!stop.requested()) loop.run();
    return 0;
  }

 private:
  std::string listen_;
  std::string metrics_;
  ros::ServerOptions options_;
  bool no_pipelining_ = false;
  bool log_json_ = false;
  bool verbose_ = false;
};

}  // namespace

std::unique_ptr<Command> make_server_command() { return std::make_unique<ServerCommand>(); }

}  // namespace weightlane::prod
