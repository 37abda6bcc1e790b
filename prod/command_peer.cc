// The options and beginnings that publish, pull and the demo's workers share.
#include "prod/command_peer.h"

#include <unistd.h>

#include "prod/event_loop.h"
#include "prod/log.h"
#include "prod/rpc.h"

namespace weightlane::prod {

void declare_peer(CLI::App* app, PeerOptions* options) {
  app->add_option("--server", options->server, "address of the reference server")
      ->required()
      ->type_name("ADDR");
  app->add_option("--model", options->model, "name of the model")->required()->type_name("NAME");
  app->add_option("--replica", options->replica,
                  "name of this replica, the same for all of its shards")
      ->type_name("NAME");
  app->add_option("--transport", options->transport,
                  "auto, same-host, tcp or verbs; auto takes the best that works")
      ->check(CLI::IsMember({"auto", "same-host", "tcp", "verbs"}))
      ->capture_default_str();
  app->add_option("--data-host", options->data_host,
                  "numeric address of this host that readers connect to")
      ->type_name("HOST");
  app->add_flag("--checksums", options->checksums,
                "checksums end to end; for publisher and readers alike");
  app->add_flag("--verbose", options->verbose, "log what happens, to stderr");
}

Result<Done> complete_peer(PeerOptions* options, const std::string& default_replica) {
  if (options->replica.empty()) {
    options->replica = default_replica + "-" + host_name() + "-" + std::to_string(::getpid());
  }
  Result<Done> done = check_name("--model", options->model);
  if (done.ok()) done = check_name("--replica", options->replica);
  return done;
}

Log::Options peer_log_options(const PeerOptions& options) {
  Log::Options log;
  log.level = options.verbose ? LogLevel::kInfo : LogLevel::kError;
  return log;
}

Result<std::unique_ptr<Worker>> start_worker(const PeerOptions& options, Log* log,
                                             ros::HandleObserver* observer) {
  WorkerOptions worker;
  worker.log = log;
  worker.transport = options.transport;
  worker.data_host = options.data_host;
  worker.observer = observer;
  return Worker::start(worker);
}

ros::OpenOptions open_options(const PeerOptions& options, const std::string& model,
                              ShardIndex shard, uint32_t num_shards) {
  ros::OpenOptions open;
  open.model = model;
  open.replica = options.replica;
  open.shard = shard;
  open.num_shards = num_shards;
  open.servers = {options.server};
  open.timing.checksums = options.checksums;
  return open;
}

ros::TensorSpec header_tensor(uint8_t* memory, uint64_t bytes) {
  net::MemoryRange range;
  range.address = reinterpret_cast<uint64_t>(memory);
  range.length = bytes;
  return {"header", "U8", {bytes}, range};
}

std::vector<ros::TensorSpec> tensors_of(const std::vector<SafetensorsEntry>& entries,
                                        uint8_t* memory) {
  std::vector<ros::TensorSpec> out;
  out.reserve(entries.size());
  for (const SafetensorsEntry& entry : entries) {
    net::MemoryRange range;
    range.address = reinterpret_cast<uint64_t>(memory) + entry.begin;
    range.length = entry.end - entry.begin;
    out.push_back({entry.name, entry.dtype, entry.shape, range});
  }
  return out;
}

Result<net::ListResponse> fetch_list(const std::string& server, const std::string& model,
                                     Nanos within) {
  Log::Options quiet;
  quiet.level = LogLevel::kError;
  Log log(quiet);
  EventLoop loop;
  RpcControlPlane control(&loop, &log);
  const ros::Environment environment{&loop.runtime(), &control, nullptr, nullptr};
  return loop.run(
      ros::list_replicas(environment, server, model, deadline_after(loop.runtime().now(), within)));
}

}  // namespace weightlane::prod
