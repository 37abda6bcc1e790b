// The options and beginnings that publish, pull and the demo's workers share.
#include "prod/command_peer.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "prod/control_address.h"
#include "prod/event_loop.h"
#include "prod/kj_runtime.h"
#include "prod/log.h"
#include "prod/rpc.h"

namespace weightlane::prod {

namespace {

// A line that says what is wrong; empty: nothing.
std::string check_servers(const std::string& text) {
  for (const std::string& address : server_list(text)) {
    Result<ControlAddress> parsed = parse_control_address(address);
    if (!parsed) return parsed.error().message;
  }
  return {};
}

}  // namespace

std::vector<std::string> server_list(const std::string& text) {
  std::vector<std::string> servers;
  size_t begin = 0;
  while (true) {
    const size_t comma = text.find(',', begin);
    servers.push_back(text.substr(begin, comma - begin));
    if (comma == std::string::npos) return servers;
    begin = comma + 1;
  }
}

CLI::Option* add_servers(CLI::App* app, std::string* into) {
  return app
      ->add_option("--server", *into,
                   "address of the reference server; several, with commas between: the first in "
                   "reach is the one, the others stand by")
      ->required()
      ->check(check_servers)
      ->type_name("ADDR,...");
}

void declare_peer(CLI::App* app, PeerOptions* options) {
  add_servers(app, &options->server);
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
  app->add_option("--port-range", options->port_range,
                  "readers connect to a port of this range and to no other")
      ->type_name("FIRST-LAST");
  add_size(app, "--window", &options->window,
           "bytes in flight at most; a small one makes chains over slow links shorter");
  app->add_option("--datacenter", options->datacenter,
                  "where this replica stands; a version crosses into a datacenter once")
      ->type_name("NAME");
  app->add_flag("--checksums", options->checksums,
                "checksums end to end; for publisher and readers alike");
  app->add_flag("--verbose", options->verbose, "log what happens, to stderr");
}

void declare_holder(CLI::App* app, PeerOptions* options) {
  app->add_option("--retain", options->retain.latest,
                  "keep the newest N versions of the model for as long as this process runs, "
                  "whoever holds them")
      ->type_name("N")
      ->check(CLI::NonNegativeNumber);
  app->add_option("--retain-version", options->retain_versions,
                  "keep this version as well; may be given several times")
      ->type_name("N")
      ->check(CLI::NonNegativeNumber);
  app->add_flag("--spot", options->spot,
                "this machine may be taken away: what it holds does not count as a copy, and "
                "others rather than it carry versions into their datacenter");
  add_size(app, "--offload-limit", &options->offload_limit,
           "host memory for retained versions that nobody else holds; without it: no limit");
  app->add_option("--on-offload-failure", options->on_offload_failure,
                  "refuse: what cannot be kept in host memory stays published; drop: it is lost")
      ->check(CLI::IsMember({"refuse", "drop"}))
      ->capture_default_str();
  add_duration(app, "--hand-over", &options->hand_over,
               "at the end, try so long to hand over what others retain")
      ->default_str("30s");
}

Result<Done> leave(const PeerOptions& options, Worker& worker,
                   const std::vector<WorkerHandle*>& handles, ProgressLine* progress) {
  const Nanos end = deadline_after(monotonic_now(), options.hand_over);
  const auto left = [end] { return std::max(kZeroNanos, end - monotonic_now()); };
  progress->show("waiting for readers to finish");
  Result<Done> done = Done{};
  for (WorkerHandle* handle : handles) {
    Result<Done> closed = handle->close_by(left());
    if (done.ok()) done = closed;
  }
  if (worker.offload_bytes() > 0)
    progress->show("handing over " + show_bytes(worker.offload_bytes()) + " that others retain");
  Result<Done> handed = worker.hand_over(left());
  progress->clear();
  return done.ok() ? handed : done;
}

namespace {

Result<Done> parse_ports(PeerOptions* options) {
  if (options->port_range.empty()) return Done{};
  unsigned first = 0;
  unsigned last = 0;
  int end = 0;
  const int count = std::sscanf(options->port_range.c_str(), "%5u-%5u%n", &first, &last, &end);
  if (count != 2 || static_cast<size_t>(end) != options->port_range.size() || first == 0 ||
      last > 65535 || first > last) {
    return Error{ErrorCode::kInvalidArgument, "--port-range '" + options->port_range +
                                                  "' is no range of ports; write 7500-7599"};
  }
  options->port_first = static_cast<uint16_t>(first);
  options->port_last = static_cast<uint16_t>(last);
  return Done{};
}

}  // namespace

Result<Done> complete_peer(PeerOptions* options, const std::string& default_replica) {
  if (options->replica.empty()) {
    options->replica = default_replica + "-" + host_name() + "-" + std::to_string(::getpid());
  }
  Result<Done> done = check_name("--model", options->model);
  if (done.ok()) done = check_name("--replica", options->replica);
  if (done.ok()) done = parse_ports(options);
  for (uint64_t version : options->retain_versions) options->retain.versions.push_back({version});
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
  worker.port_first = options.port_first;
  worker.port_last = options.port_last;
  worker.observer = observer;
  static const WaitsRequest waits;  // for as long as there is a process to ask
  worker.waits_descriptor = waits.descriptor();
  worker.on_waits = &WaitsRequest::answer;
  worker.offload_limit = options.offload_limit;
  return Worker::start(worker);
}

ros::OpenOptions open_options(const PeerOptions& options, const std::string& model,
                              ShardIndex shard, uint32_t num_shards, uint64_t bytes) {
  ros::OpenOptions open;
  open.model = model;
  open.replica = options.replica;
  open.shard = shard;
  open.num_shards = num_shards;
  open.datacenter = options.datacenter;
  open.servers = server_list(options.server);
  open.spot = options.spot;
  open.retain = options.retain;
  open.on_offload_failure = options.on_offload_failure == "drop" ? net::OffloadFailure::kDrop
                                                                 : net::OffloadFailure::kRefuse;
  open.timing.checksums = options.checksums;
  // A reader learns that bytes are proven up to two windows after they have come, and only then may
  // the next one in a chain have them. So the window starts as a small part of the shard: whatever
  // the speed of the links, each reader of a chain then adds one or two per cent of one transfer.
  constexpr uint64_t kPage = 4096;
  constexpr uint64_t kSlicesInFlight = 4;
  uint64_t start = std::clamp<uint64_t>(bytes / 128, kPage * 64, open.timing.window_start_bytes);
  if (options.window > 0) {
    open.timing.window_bytes = std::max<uint64_t>(options.window, kPage * 16);
    start = open.timing.window_bytes;
  }
  open.timing.window_start_bytes = start;
  open.timing.slice_bytes =
      std::clamp<uint64_t>(start / kSlicesInFlight / kPage * kPage, kPage, open.timing.slice_bytes);
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
  const ros::Environment environment{&loop.runtime(), &control, nullptr, nullptr, nullptr};
  const std::vector<std::string> servers = server_list(server);
  const auto each = static_cast<int64_t>(servers.size());
  Result<net::ListResponse> list = Error{ErrorCode::kUnreachable, "no server is named"};
  for (const std::string& address : servers) {
    const Nanos deadline = deadline_after(loop.runtime().now(), within / each);
    list = loop.run(ros::list_replicas(environment, address, model, deadline));
    if (list.ok()) break;
  }
  return list;
}

}  // namespace weightlane::prod
