// What publish, pull and the demo's workers share: the options of a process that holds weights, and
// a look at the server's list.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "net/messages.h"
#include "prod/command.h"
#include "prod/safetensors.h"
#include "prod/worker.h"

namespace weightlane::prod {

struct PeerOptions {
  std::string server;
  std::string model;
  std::string replica;  // empty: made from host and process
  std::string transport = "auto";
  std::string data_host;
  std::string port_range;
  uint16_t port_first = 0;  // of port_range, by complete_peer
  uint16_t port_last = 0;
  uint64_t window = 0;  // bytes in flight; 0: by the shard's size
  std::string datacenter;
  bool checksums = false;
  bool spot = false;
  net::RetainSpec retain = {};
  std::vector<uint64_t> retain_versions;  // as given; complete_peer() puts them into `retain`
  std::string on_offload_failure = "refuse";
  uint64_t offload_limit = UINT64_MAX;
  Nanos hand_over = seconds(30);
  bool verbose = false;
};

void declare_peer(CLI::App* app, PeerOptions* options);
// The options of those who hold versions for long: retention, spot machines, offloads.
void declare_holder(CLI::App* app, PeerOptions* options);
// Closes handles and hands over what others retain, until options.hand_over has passed.
Result<Done> leave(const PeerOptions& options, Worker& worker,
                   const std::vector<WorkerHandle*>& handles, ProgressLine* progress);
// Names and the like that the parser can't check; fills in the replica's name: "NAME-host-pid".
Result<Done> complete_peer(PeerOptions* options, const std::string& default_replica);

// This process's loop, planes and log, as the options say.
// Warnings and errors of a command are its one line; what else happens is logged when asked for.
Log::Options peer_log_options(const PeerOptions& options);
// `log` outlives the worker; so does `observer`, which may be null.
Result<std::unique_ptr<Worker>> start_worker(const PeerOptions& options, Log* log,
                                             ros::HandleObserver* observer);
// `bytes`: of the shard; decides how its stream is cut, so both sides must give the same.
ros::OpenOptions open_options(const PeerOptions& options, const std::string& model,
                              ShardIndex shard, uint32_t num_shards, uint64_t bytes);

// The one tensor of a layout's model (prod/layout_model.h).
ros::TensorSpec header_tensor(uint8_t* memory, uint64_t bytes);
// A file's tensors at their place in `memory`.
std::vector<ros::TensorSpec> tensors_of(const std::vector<SafetensorsEntry>& entries,
                                        uint8_t* memory);

// The option --server ADDR,...: one address or several, told apart by commas.
CLI::Option* add_servers(CLI::App* app, std::string* into);
// In the order given. `text` has passed the option's check.
std::vector<std::string> server_list(const std::string& text);

// What is published at the first of these servers that answers; without a handle.
Result<net::ListResponse> fetch_list(const std::string& server, const std::string& model,
                                     Nanos within);

}  // namespace weightlane::prod
