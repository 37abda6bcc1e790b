// One task per offload, from its memory to the end of its memory; it does what an application would
// do with a handle of its own: open, register, replicate, wait to be told, close.
#include "ros/offload.h"

#include "ros/handle_core.h"
#include "ros/planted_bugs.h"
#include "ros/probes.h"

namespace weightlane::ros {

struct OffloadStore::Kept {
  Kept(Wanted w, flow::Promise<Result<Done>> d) : wanted(std::move(w)), done(std::move(d)) {}
  Wanted wanted;
  flow::Promise<Result<Done>> done;
  net::MemoryRange memory;  // length 0: none
  uint64_t bytes = 0;       // counted in bytes_
  std::unique_ptr<HandleCore> core;
};

OffloadStore::OffloadStore(Environment environment, net::HostMemory* memory, OffloadOptions options)
    : environment_(environment),
      memory_(memory),
      options_(options),
      changed_(*environment.runtime),
      tasks_(*environment.runtime) {
  WL_ASSERT(memory_ != nullptr);
  environment_.offloads = nullptr;  // an offload is not offloaded by its own process
}

OffloadStore::~OffloadStore() {
  tasks_.cancel_all();
  kept_.clear();
}

HandleName OffloadStore::name(const Kept& kept) const {
  const OpenOptions& open = kept.wanted.open;
  return {open.model, open.replica, open.shard};
}

flow::Future<Result<Done>> OffloadStore::keep(Wanted wanted) {
  flow::Promise<Result<Done>> done(*environment_.runtime);
  flow::Future<Result<Done>> future = done.future();
  if (close_by_ != kForever) {
    done.set(Error{ErrorCode::kClosed, "its process is about to end"});
    return future;
  }
  auto kept = std::make_shared<Kept>(std::move(wanted), std::move(done));
  kept_.push_back(kept);
  tasks_.spawn(run(this, std::move(kept)), "offload.keep");
  return future;
}

Result<Done> OffloadStore::take_memory(Kept& kept) {
  const uint64_t bytes = kept.wanted.layout.summary().bytes;
  if (bytes > options_.limit_bytes || bytes_ > options_.limit_bytes - bytes) {
    environment_.runtime->probe(probes::kOffloadLimit);
    return Error{ErrorCode::kResourceExhausted,
                 "offload_limit is " + std::to_string(options_.limit_bytes) + " bytes, of which " +
                     std::to_string(bytes_) + " are used; version " +
                     std::to_string(kept.wanted.content.version.value) + " needs " +
                     std::to_string(bytes) + " more"};
  }
  if (bytes > 0) {
    Result<net::MemoryRange> memory = memory_->allocate(bytes);
    if (!memory) return memory.error();
    kept.memory = *memory;
  }
  kept.bytes = bytes;
  bytes_ += bytes;
  if (environment_.observer != nullptr)
    environment_.observer->on_offload(name(kept), kept.memory, bytes_);
  return Done{};
}

void OffloadStore::give_back_memory(Kept& kept) {
  if (kept.memory.length > 0) memory_->release(kept.memory);
  kept.memory = {};
  bytes_ -= std::exchange(kept.bytes, 0);
  if (environment_.observer != nullptr) environment_.observer->on_offload(name(kept), {}, bytes_);
}

flow::Task<Result<Done>> OffloadStore::fill(std::shared_ptr<Kept> kept) {
  if (Result<Done> taken = take_memory(*kept); !taken) co_return taken.error();
  flow::Runtime& runtime = *environment_.runtime;
  const Nanos deadline = deadline_after(runtime.now(), options_.transfer);
  kept->core = std::make_unique<HandleCore>(environment_, kept->wanted.open);
  Result<Done> opened = co_await kept->core->open(deadline);
  if (!opened) {
    kept->core.reset();  // never open, never to be closed
    co_return opened.error();
  }
  Result<Result<Done>> registered =
      co_await kept->core->register_layout(kept->wanted.layout.moved_to(kept->memory));
  if (!registered) co_return registered.error();
  if (!*registered) co_return registered->error();
  const net::VersionSpec version{net::VersionKind::kExact, kept->wanted.content.version, 0};
  Result<Result<std::optional<VersionId>>> received =
      co_await kept->core->receive(net::CallKind::kReplicate, version, options_.transfer);
  if (!received) co_return received.error();
  if (!*received) co_return received->error();
  runtime.probe(probes::kOffloaded);
  co_return Done{};
}

flow::Task<void> OffloadStore::run(OffloadStore* self, std::shared_ptr<Kept> kept) {
  flow::Runtime& runtime = *self->environment_.runtime;
  Result<Done> filled = co_await self->fill(kept);
  const bool whole = filled.ok();
  if (!whole) runtime.probe(probes::kOffloadFailed);
  kept->done.set(std::move(filled));
  bool usable = true;
  while (kept->core != nullptr) {
    if (whole) co_await kept->core->until_unneeded();
    const Nanos by = self->close_by_;
    Result<Result<Done>> closed = co_await kept->core->close(by);
    usable = closed.ok() && closed->ok();
    if (!closed.ok() || closed->ok() || closed->error().code != ErrorCode::kRetained) break;
    kept->core->stay();  // the server has thought better of it
  }
  kept->core.reset();
  // Memory that something may still land in stays taken, and counted, until the process ends.
  if (usable && kept->bytes > 0) self->give_back_memory(*kept);
  std::erase(self->kept_, kept);
  self->changed_.notify_all();
}

flow::Task<void> OffloadStore::close(Nanos deadline) {
  close_by_ = deadline;  // and nothing new is taken
  for (const std::shared_ptr<Kept>& kept : kept_)
    if (kept->core != nullptr) kept->core->let_go();
  while (!kept_.empty()) co_await changed_.wait();
}

}  // namespace weightlane::ros
