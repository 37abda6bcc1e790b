// weightlane publish: reads safetensors files into memory and serves them until told to stop.
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <optional>

#include "prod/command.h"
#include "prod/command_peer.h"
#include "prod/kj_runtime.h"
#include "prod/layout_model.h"
#include "prod/safetensors.h"
#include "prod/shared_memory.h"

namespace weightlane::prod {
namespace {

constexpr Nanos kOpenWithin = seconds(20);
constexpr Nanos kLook = millis(250);  // at signals, copies and the handles' health

// One file: its bytes, and the handles that serve them and their layout.
struct Part {
  std::string path;
  ShardIndex shard;
  SafetensorsLayout layout;
  std::string header;
  std::optional<SharedMemory> data;
  std::optional<SharedMemory> header_data;
  std::unique_ptr<WorkerHandle> layout_handle;
  std::unique_ptr<WorkerHandle> handle;
};

class PublishCommand final : public Command {
 public:
  CLI::App* declare(CLI::App& program) override;
  int run() override;

 private:
  Result<Done> check_arguments();
  Result<Done> load(Part& part);
  Result<Done> publish(Part& part);
  Result<Done> serve(const StopRequest& stop);
  Result<Done> withdraw();
  Result<uint32_t> copies();

  PeerOptions peer_;
  std::vector<std::string> files_;
  uint64_t version_ = 0;
  uint32_t shards_ = 1;
  uint32_t shard_ = 0;
  CLI::Option* shards_option_ = nullptr;
  Nanos hold_ = kForever;
  uint32_t until_copies_ = 0;
  ProgressLine progress_;
  std::optional<Log> log_;
  std::unique_ptr<Worker> worker_;
  std::vector<Part> parts_;
};

CLI::App* PublishCommand::declare(CLI::App& program) {
  CLI::App* app = program.add_subcommand(
      "publish", "Serve the weights of safetensors files as one version of a model");
  app->footer(
      "Serves from this process's memory until SIGTERM or Ctrl-C, or what --hold or --until-copies "
      "say. Several files\n"
      "are the shards of one replica, in this order; --shards and --shard publish one of them from "
      "each process.\n\n"
      "Example:\n  weightlane publish --server 127.0.0.1:7400 --model m --version 1 "
      "model.safetensors\n"
      "  weightlane publish --server 127.0.0.1:7400 --model m --version 2 --shards 2 --shard 1 "
      "--replica t0 part1.safetensors\n"
      "  weightlane publish --server 127.0.0.1:7400 --model m --version 3 --retain 2 "
      "--offload-limit 64GiB model.safetensors");
  declare_peer(app, &peer_);
  declare_holder(app, &peer_);
  app->add_option("--version", version_, "a number; higher ones are newer")
      ->required()
      ->type_name("N")
      ->check(CLI::NonNegativeNumber);
  shards_option_ =
      app->add_option("--shards", shards_, "shards of the replica, each published by a process")
          ->type_name("N")
          ->check(CLI::NonNegativeNumber);
  app->add_option("--shard", shard_, "which of them this is, from 0")
      ->type_name("I")
      ->check(CLI::NonNegativeNumber)
      ->needs(shards_option_);
  add_duration(app, "--hold", &hold_, "stop after this time");
  app->add_option("--until-copies", until_copies_,
                  "stop when so many other replicas hold the version")
      ->type_name("N")
      ->check(CLI::NonNegativeNumber);
  app->add_option("FILE", files_, "safetensors file(s)")->required();
  return app;
}

Result<Done> PublishCommand::check_arguments() {
  Result<Done> names = complete_peer(&peer_, "publish");
  if (!names) return names;
  if (shards_ == 0 || shard_ >= shards_) {
    return Error{ErrorCode::kInvalidArgument,
                 "--shard " + std::to_string(shard_) + " does not exist; with --shards " +
                     std::to_string(shards_) + " it can be " +
                     (shards_ == 0 ? "none" : "0 to " + std::to_string(shards_ - 1))};
  }
  if (files_.size() > 1 && shards_option_->count() > 0) {
    return Error{ErrorCode::kInvalidArgument,
                 "several files are the shards; --shards goes with one file"};
  }
  const auto count = static_cast<uint32_t>(files_.size());
  if (count > 1) shards_ = count;
  for (uint32_t i = 0; i < count; ++i) {
    Part part;
    part.path = files_[i];
    part.shard = ShardIndex{count > 1 ? i : shard_};
    Result<SafetensorsLayout> layout = read_safetensors_layout(part.path);
    if (!layout) return layout.error();
    part.layout = std::move(*layout);
    part.header = format_safetensors_header(part.layout);
    parts_.push_back(std::move(part));
  }
  return Done{};
}

Result<Done> PublishCommand::load(Part& part) {
  progress_.show("reading " + part.path);
  Result<SharedMemory> data = worker_->allocate(part.layout.data_bytes);
  if (!data) return data.error();
  part.data.emplace(std::move(*data));
  Result<SharedMemory> header = worker_->allocate(part.header.size());
  if (!header) return header.error();
  part.header_data.emplace(std::move(*header));
  std::copy(part.header.begin(), part.header.end(), part.header_data->data());
  return read_safetensors_data(part.path, part.layout,
                               {part.data->data(), static_cast<size_t>(part.layout.data_bytes)});
}

Result<Done> PublishCommand::publish(Part& part) {
  const VersionId version{version_};
  progress_.show("publishing " + part.path);
  const auto open = [&](const std::string& model, ShardIndex shard, uint32_t shards,
                        uint64_t bytes) {
    return worker_->open(open_options(peer_, model, shard, shards, bytes), kOpenWithin);
  };
  // The weights' handle first: whether this shard is somebody else's is known by its name.
  Result<std::unique_ptr<WorkerHandle>> handle =
      open(peer_.model, part.shard, shards_, part.layout.data_bytes);
  if (!handle) return handle.error();
  part.handle = std::move(*handle);
  handle = open(layout_model(peer_.model, part.shard), ShardIndex{0}, 1, part.header.size());
  if (!handle) return handle.error();
  part.layout_handle = std::move(*handle);

  Result<Done> done = part.layout_handle->register_tensors(
      {header_tensor(part.header_data->data(), part.header.size())});
  if (done.ok())
    done = part.handle->register_tensors(tensors_of(part.layout.tensors, part.data->data()));
  if (!done) return done;
  done = part.layout_handle->publish(version);
  const bool other_header = !done.ok() && done.error().code == ErrorCode::kLayoutMismatch;
  if (!done.ok() && !other_header) return done;
  // Where layouts differ it is the weights' own error that says how.
  done = part.handle->publish(version);
  if (!done || !other_header) return done;
  return Error{ErrorCode::kLayoutMismatch, part.path + ": version " + std::to_string(version_) +
                                               " of " + peer_.model +
                                               " is published with another header (its metadata?); "
                                               "publish the same file or another version"};
}

// Complete replicas of the version beside our own.
Result<uint32_t> PublishCommand::copies() {
  Result<net::ListResponse> list = fetch_list(peer_.server, peer_.model, seconds(5));
  if (!list) return list.error();
  uint32_t count = 0;
  for (const net::ListedReplica& replica : list->replicas) {
    const bool counts = replica.model == peer_.model && replica.content.version.value == version_ &&
                        replica.state == net::ReplicaState::kComplete &&
                        replica.replica != peer_.replica;
    count += counts ? 1 : 0;
  }
  return count;
}

Result<Done> PublishCommand::serve(const StopRequest& stop) {
  const Nanos end = deadline_after(monotonic_now(), hold_);
  while (monotonic_now() < end && !stop.wait(std::min(kLook, end - monotonic_now()))) {
    for (const Part& part : parts_) {
      if (part.handle->state() == ros::HandleState::kPublished) continue;
      return Error{ErrorCode::kReplicaLost, part.path + ": no longer served: the handle is " +
                                                ros::handle_state_name(part.handle->state()) +
                                                "; publish it again"};
    }
    if (until_copies_ == 0) continue;
    Result<uint32_t> count = copies();
    if (!count) return count.error();
    if (*count >= until_copies_) break;
  }
  return Done{};
}

Result<Done> PublishCommand::withdraw() {
  std::vector<WorkerHandle*> handles;
  for (Part& part : parts_) handles.push_back(part.handle.get());
  for (Part& part : parts_) handles.push_back(part.layout_handle.get());
  return leave(peer_, *worker_, handles, &progress_);
}

int PublishCommand::run() {
  const StopRequest stop;
  Result<Done> done = check_arguments();
  if (!done) return report("publish", done.error());
  log_.emplace(peer_log_options(peer_));
  Result<std::unique_ptr<Worker>> worker = start_worker(peer_, &*log_, nullptr);
  if (!worker) return report("publish", worker.error());
  worker_ = std::move(*worker);
  uint64_t bytes = 0;
  size_t tensors = 0;
  for (Part& part : parts_) {
    bytes += part.layout.data_bytes;
    tensors += part.layout.tensors.size();
    done = load(part);
    if (!done) return report("publish", done.error());
  }
  for (Part& part : parts_) {
    done = publish(part);
    if (!done) return report("publish", done.error());
  }
  progress_.clear();
  std::printf("published %s version %" PRIu64
              " as replica %s: %zu tensors, %s; stop with Ctrl-C or kill %d\n",
              peer_.model.c_str(), version_, peer_.replica.c_str(), tensors,
              show_bytes(bytes).c_str(), static_cast<int>(::getpid()));
  std::fflush(stdout);
  done = serve(stop);
  Result<Done> withdrawn = withdraw();
  if (done.ok()) done = withdrawn;
  return done.ok() ? 0 : report("publish", done.error());
}

}  // namespace

std::unique_ptr<Command> make_publish_command() { return std::make_unique<PublishCommand>(); }

}  // namespace weightlane::prod
