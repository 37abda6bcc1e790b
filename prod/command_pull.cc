// weightlane pull: receives one version of a model into memory and writes it as safetensors.
//
// The layout comes first (prod/layout_model.h), then the space on the disk is taken, then the
// weights move: so nothing is moved that can't be written, and a file has its name only once it is
// whole. While it receives, and until it ends, this process serves other readers.
#include <algorithm>
#include <array>
#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "prod/command.h"
#include "prod/command_peer.h"
#include "prod/kj_runtime.h"
#include "prod/layout_model.h"
#include "prod/safetensors.h"
#include "prod/shared_memory.h"

namespace weightlane::prod {
namespace {

constexpr Nanos kAnswerWithin = seconds(5);
constexpr Nanos kOpenWithin = seconds(20);
constexpr Nanos kLayoutWithin = seconds(30);
constexpr Nanos kLook = millis(50);
constexpr Nanos kCloseWithin = seconds(5);
constexpr int kStoppedStatus = 130;  // as a shell says of a program that SIGINT ended

// One shard: its layout, its file to be, its memory and its handle.
struct Part {
  ShardIndex shard;
  std::string path;
  SafetensorsLayout layout;
  SafetensorsWriter writer;
  std::optional<SharedMemory> data;
  std::unique_ptr<WorkerHandle> handle;
  std::optional<Result<VersionId>> outcome;
};

class PullCommand final : public Command {
 public:
  CLI::App* declare(CLI::App& program) override;
  int run() override;

 private:
  Result<Done> choose(const StopRequest& stop);
  Result<bool> choose_from(const net::ListResponse& list);
  Result<Done> get_layout(Part& part);
  Result<std::string> receive_header(const std::string& model, uint64_t bytes);
  Result<Done> prepare(Part& part);
  Result<Done> receive(const StopRequest& stop);
  Result<Done> write_and_leave(const StopRequest& stop);
  void show(const std::vector<Part>& parts);
  void tell();
  int fail(const Error& error);

  PeerOptions peer_;
  net::VersionSpec wanted_;
  std::string out_;
  std::string like_;
  Nanos wait_ = seconds(5);
  Nanos timeout_ = seconds(600);
  bool json_ = false;
  bool serve_ = false;
  bool stopped_ = false;  // by its user, before all was there

  std::optional<Log> log_;
  std::unique_ptr<Worker> worker_;
  uint64_t version_ = 0;
  uint32_t shards_ = 0;
  uint64_t bytes_ = 0;
  std::string there_is_;  // versions that were seen, for people
  std::vector<Part> parts_;
  Nanos started_{0};
  Nanos finished_{0};
  ProgressLine progress_;
};

CLI::App* PullCommand::declare(CLI::App& program) {
  CLI::App* app =
      program.add_subcommand("pull", "Receive a version of a model into a safetensors file");
  app->footer(
      "The file appears under its name only when it is whole; an old one of that name is replaced "
      "then. A model of\n"
      "several shards gives one file a shard: out-00001-of-00002.safetensors and so on.\n\n"
      "Example:\n  weightlane pull --server 127.0.0.1:7400 --model m --out m.safetensors\n"
      "  weightlane pull --server 127.0.0.1:7400 --model m --version latest-1 --out "
      "old.safetensors");
  declare_peer(app, &peer_);
  declare_holder(app, &peer_);
  add_version(app, "--version", &wanted_, "a number, latest, or latest-K")->default_str("latest");
  app->add_option("--out", out_, "the file to write")->required()->type_name("FILE");
  app->add_option(
         "--like", like_,
         "take the layout from this file, for weights that were not published by this program")
      ->type_name("FILE");
  add_duration(app, "--wait", &wait_, "wait so long for the version to be there")
      ->default_str("5s");
  add_duration(app, "--timeout", &timeout_, "give the transfer up after this time")
      ->default_str("10m");
  app->add_flag("--json", json_, "tell the outcome as one JSON object");
  app->add_flag("--serve", serve_, "go on serving what was received until SIGTERM");
  return app;
}

// ---------------------------------------------------------------- which version

// True when the list holds what is wanted.
Result<bool> PullCommand::choose_from(const net::ListResponse& list) {
  using Key = std::pair<uint64_t, uint64_t>;  // generation, version
  std::set<Key, std::greater<>> complete;
  for (const net::ListedReplica& replica : list.replicas) {
    if (replica.model != peer_.model || replica.state != net::ReplicaState::kComplete) continue;
    complete.emplace(replica.content.generation.value, replica.content.version.value);
  }
  there_is_.clear();
  for (const auto& [generation, version] : complete) {
    if (there_is_.size() < 100)
      there_is_ += (there_is_.empty() ? "" : ", ") + std::to_string(version);
  }
  auto found = complete.begin();
  if (wanted_.kind == net::VersionKind::kLatest) {
    for (uint32_t i = 0; i < wanted_.back && found != complete.end(); ++i) ++found;
    if (found != complete.end() && found->first != complete.begin()->first) found = complete.end();
  } else {
    found = std::find_if(found, complete.end(),
                         [&](const Key& key) { return key.second == wanted_.exact.value; });
  }
  if (found == complete.end()) return false;
  for (const net::ListedReplica& replica : list.replicas) {
    if (replica.model != peer_.model || replica.content.version.value != found->second ||
        replica.state != net::ReplicaState::kComplete) {
      continue;
    }
    version_ = found->second;
    shards_ = replica.num_shards;
    bytes_ = replica.bytes;
  }
  return shards_ > 0;
}

Result<Done> PullCommand::choose(const StopRequest& stop) {
  const Nanos end = deadline_after(monotonic_now(), wait_);
  while (true) {
    Result<net::ListResponse> list = fetch_list(peer_.server, peer_.model, kAnswerWithin);
    if (!list) return list.error();
    Result<bool> chosen = choose_from(*list);
    if (!chosen) return chosen.error();
    if (*chosen) return Done{};
    if (monotonic_now() >= end || stop.wait(std::min(kLook, end - monotonic_now()))) break;
    progress_.show("waiting for version " + net::to_string(wanted_) + " of " + peer_.model);
  }
  return Error{ErrorCode::kVersionUnavailable,
               "nobody holds version " + net::to_string(wanted_) + " of model '" + peer_.model +
                   "' at " + peer_.server +
                   (there_is_.empty() ? "; it has no versions there" : "; there are " + there_is_)};
}

// ---------------------------------------------------------------- layout

Result<std::string> PullCommand::receive_header(const std::string& model, uint64_t bytes) {
  Result<SharedMemory> memory = worker_->allocate(bytes);
  if (!memory) return memory.error();
  Result<std::unique_ptr<WorkerHandle>> handle =
      worker_->open(open_options(peer_, model, ShardIndex{0}, 1, bytes), kOpenWithin);
  if (!handle) return handle.error();
  Result<Done> registered = (*handle)->register_tensors({header_tensor(memory->data(), bytes)});
  if (!registered) return registered.error();
  net::VersionSpec exact;
  exact.kind = net::VersionKind::kExact;
  exact.exact = VersionId{version_};
  Result<VersionId> received = (*handle)->replicate(exact, kLayoutWithin);
  std::string header;
  if (received.ok()) header.assign(reinterpret_cast<const char*>(memory->data()), bytes);
  Result<Done> closed = (*handle)->close();
  if (!received) return received.error();
  if (!closed) return closed.error();
  return header;
}

Result<Done> PullCommand::get_layout(Part& part) {
  if (!like_.empty()) {
    Result<SafetensorsLayout> layout = read_safetensors_layout(like_);
    if (!layout) return layout.error();
    part.layout = std::move(*layout);
    return Done{};
  }
  const std::string model = layout_model(peer_.model, part.shard);
  Result<net::ListResponse> list = fetch_list(peer_.server, model, kAnswerWithin);
  if (!list) return list.error();
  uint64_t bytes = 0;
  for (const net::ListedReplica& replica : list->replicas) {
    const bool fits =
        replica.content.version.value == version_ && replica.state == net::ReplicaState::kComplete;
    if (replica.model == model && fits) bytes = replica.bytes;
  }
  if (bytes == 0 || bytes > kSafetensorsHeaderBytesMax) {
    return Error{ErrorCode::kVersionUnavailable,
                 "version " + std::to_string(version_) + " of model '" + peer_.model +
                     "' has no layout at the server: it was not published by `weightlane publish`; "
                     "say --like FILE"};
  }
  Result<std::string> header = receive_header(model, bytes);
  if (!header) return header.error();
  Result<SafetensorsLayout> layout =
      parse_safetensors_header(*header, "the published layout of " + peer_.model);
  if (!layout) return layout.error();
  part.layout = std::move(*layout);
  return Done{};
}

// "m.safetensors" -> "m-00001-of-00002.safetensors".
std::string path_of_shard(const std::string& out, uint32_t shard, uint32_t shards) {
  if (shards == 1) return out;
  std::array<char, 40> suffix{};
  std::snprintf(suffix.data(), suffix.size(), "-%05u-of-%05u", shard + 1, shards);
  const size_t slash = out.rfind('/') == std::string::npos ? 0 : out.rfind('/') + 1;
  const size_t dot = out.rfind('.');
  const size_t at = dot == std::string::npos || dot <= slash ? out.size() : dot;
  return out.substr(0, at) + suffix.data() + out.substr(at);
}

Result<Done> PullCommand::prepare(Part& part) {
  Result<Done> done = get_layout(part);
  if (!done) return done;
  Result<SafetensorsWriter> writer = SafetensorsWriter::create(part.path, part.layout);
  if (!writer) return writer.error();
  part.writer = std::move(*writer);
  Result<SharedMemory> data = worker_->allocate(part.layout.data_bytes);
  if (!data) return data.error();
  part.data.emplace(std::move(*data));
  Result<std::unique_ptr<WorkerHandle>> handle = worker_->open(
      open_options(peer_, peer_.model, part.shard, shards_, part.layout.data_bytes), kOpenWithin);
  if (!handle) return handle.error();
  part.handle = std::move(*handle);
  return part.handle->register_tensors(tensors_of(part.layout.tensors, part.data->data()));
}

// ---------------------------------------------------------------- transfer

void PullCommand::show(const std::vector<Part>& parts) {
  uint64_t sealed = 0;
  uint64_t total = 0;
  std::string source;
  for (const Part& part : parts) {
    const ros::Progress progress = part.handle->progress();
    sealed += progress.sealed_bytes;
    total += progress.total_bytes;
    if (source.empty()) source = progress.source;
  }
  progress_.show(peer_.model + " version " + std::to_string(version_) + ": " + show_bytes(sealed) +
                 " of " + show_bytes(total) + ", " + show_rate(sealed, monotonic_now() - started_) +
                 (source.empty() ? ", waiting for a source" : ", from " + source));
}

Result<Done> PullCommand::receive(const StopRequest& stop) {
  net::VersionSpec exact;
  exact.kind = net::VersionKind::kExact;
  exact.exact = VersionId{version_};
  started_ = monotonic_now();
  std::atomic<size_t> left{parts_.size()};
  std::vector<std::thread> threads;
  for (Part& part : parts_) {
    threads.emplace_back([&part, &left, exact, timeout = timeout_] {
      part.outcome.emplace(part.handle->replicate(exact, timeout));
      left.fetch_sub(1);
    });
  }
  while (left.load() > 0 && !stop.wait(kLook)) show(parts_);
  stopped_ = left.load() > 0;
  if (stopped_) {
    // The calls end when the server says so, or is lost; a second signal ends the process now.
    progress_.show("stopping");
    for (Part& part : parts_) part.handle->give_up("stopped by its user");
  }
  for (std::thread& thread : threads) thread.join();
  finished_ = monotonic_now();
  if (stopped_) return Error{ErrorCode::kClosed, "stopped; nothing was written"};
  for (const Part& part : parts_) {
    if (!part.outcome->ok()) return part.outcome->error();
  }
  return Done{};
}

void PullCommand::tell() {
  progress_.clear();
  uint64_t bytes = 0;
  uint64_t reroutes = 0;
  for (const Part& part : parts_) {
    bytes += part.layout.data_bytes;
    reroutes += part.handle->progress().reroutes;
  }
  const std::string source = parts_.front().handle->progress().source;
  if (json_) {
    const nlohmann::json line{{"model", peer_.model},
                              {"version", version_},
                              {"bytes", bytes},
                              {"source", source},
                              {"reroutes", reroutes},
                              {"started_ns", started_.count},
                              {"finished_ns", finished_.count},
                              {"seconds", to_seconds(finished_ - started_)}};
    std::printf("%s\n", line.dump().c_str());
  } else {
    std::printf("received %s version %" PRIu64 " from %s: %s in %s, %s\n", peer_.model.c_str(),
                version_, source.c_str(), show_bytes(bytes).c_str(),
                show_duration(finished_ - started_).c_str(),
                show_rate(bytes, finished_ - started_).c_str());
  }
  std::fflush(stdout);
}

Result<Done> PullCommand::write_and_leave(const StopRequest& stop) {
  for (Part& part : parts_) {
    progress_.show("writing " + part.path);
    Result<Done> written =
        part.writer.commit({part.data->data(), static_cast<size_t>(part.layout.data_bytes)});
    if (!written) return written;
  }
  tell();
  while (serve_ && !stop.wait(seconds(1))) {
  }
  std::vector<WorkerHandle*> handles;
  for (Part& part : parts_) handles.push_back(part.handle.get());
  return leave(peer_, *worker_, handles, &progress_);
}

// The server hears of it now, and not by the lease.
int PullCommand::fail(const Error& error) {
  progress_.clear();
  for (Part& part : parts_) {
    if (part.handle != nullptr) static_cast<void>(part.handle->close(kCloseWithin));
  }
  const int status = report("pull", error);
  return stopped_ ? kStoppedStatus : status;
}

int PullCommand::run() {
  const StopRequest stop;
  Result<Done> done = complete_peer(&peer_, "pull");
  if (done.ok()) done = choose(stop);
  if (done.ok() && !like_.empty() && shards_ > 1) {
    done = Error{ErrorCode::kInvalidArgument,
                 "--like is for models of one shard; this one has " + std::to_string(shards_)};
  }
  if (!done) return report("pull", done.error());
  log_.emplace(peer_log_options(peer_));
  Result<std::unique_ptr<Worker>> worker = start_worker(peer_, &*log_, nullptr);
  if (!worker) return report("pull", worker.error());
  worker_ = std::move(*worker);
  for (uint32_t shard = 0; shard < shards_; ++shard) {
    Part part;
    part.shard = ShardIndex{shard};
    part.path = path_of_shard(out_, shard, shards_);
    parts_.push_back(std::move(part));
  }
  for (Part& part : parts_) {
    if (done.ok()) done = prepare(part);
  }
  if (done.ok()) done = receive(stop);
  if (done.ok()) done = write_and_leave(stop);
  return done.ok() ? 0 : fail(done.error());
}

}  // namespace

std::unique_ptr<Command> make_pull_command() { return std::make_unique<PullCommand>(); }

}  // namespace weightlane::prod
