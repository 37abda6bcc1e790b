// A call is a task on the loop and a promise between two threads.
//
// The loop enforces the callers' deadlines, so a caller waits without one: while the Worker lives,
// its loop runs.
#include "prod/worker.h"

#include <functional>
#include <future>
#include <thread>
#include <utility>

#include "flow/combinators.h"
#include "flow/task_set.h"
#include "prod/arena_memory.h"
#include "prod/event_log.h"
#include "prod/event_loop.h"
#include "prod/process_identity.h"
#include "prod/rpc.h"
#include "prod/worker_plane.h"
#include "ros/offload.h"
#include "ros/queries.h"

namespace weightlane::prod {

using flow::Task;

struct Worker::Impl {
  explicit Impl(WorkerOptions o) : options(std::move(o)) {}

  // Makes the world, tells `started`, and runs until told to stop.
  void serve(std::promise<Result<Done>> started);

  // Runs start() on the loop; its task's value, or kTimeout after `within`.
  template <typename T>
  Result<T> call(std::function<Task<Result<T>>()> start, Nanos within, const char* what) {
    auto answer = std::make_shared<std::promise<Result<T>>>();
    std::future<Result<T>> future = answer->get_future();
    loop->post_to_loop([this, start = std::move(start), answer, within, what] {
      flow::Runtime& runtime = loop->runtime();
      const Nanos deadline = deadline_after(runtime.now(), within);
      calls->spawn(deliver<T>(&runtime, start(), answer, deadline, what), "worker.call");
    });
    return future.get();
  }
  // Runs `look` on the loop, between two turns of everything else.
  template <typename T>
  T look(std::function<T()> glance) {
    std::promise<T> answer;
    std::future<T> future = answer.get_future();
    loop->post_to_loop([&answer, &glance] { answer.set_value(glance()); });
    return future.get();
  }

  template <typename T>
  static Task<void> deliver(flow::Runtime* runtime, Task<Result<T>> task,
                            std::shared_ptr<std::promise<Result<T>>> answer, Nanos deadline,
                            const char* what) {
    std::optional<Result<T>> value =
        co_await flow::with_timeout(*runtime, deadline, std::move(task));
    if (!value.has_value()) {
      value.emplace(Error{ErrorCode::kTimeout, std::string(what) + " is not done in time"});
    }
    answer->set_value(std::move(*value));
  }

  void tell_waits() {
    std::vector<std::string> lines;
    for (const ros::ShardHandle* handle : handles) {
      const std::string line = handle->waits_for();
      if (!line.empty()) lines.push_back(line);
    }
    options.on_waits(options.waits_descriptor, lines);
  }

  const WorkerOptions options;
  SharedArenas arenas;
  std::thread thread;
  // Made and destroyed by the thread; valid between start() and the destructor.
  EventLoop* loop = nullptr;
  flow::TaskSet* calls = nullptr;
  ros::Environment environment;
  std::vector<const ros::ShardHandle*> handles;  // open ones, in the order of opening; the loop's
  ros::OffloadStore* offloads = nullptr;
};

namespace {

Task<Result<Done>> close_offloads(ros::OffloadStore* offloads, Nanos deadline) {
  co_await offloads->close(deadline);
  co_return Done{};
}

}  // namespace

void Worker::Impl::serve(std::promise<Result<Done>> started) {
  std::unique_ptr<Log> own_log;
  Log* log = options.log;
  if (log == nullptr) {
    Log::Options quiet;
    quiet.level = LogLevel::kError;
    own_log = std::make_unique<Log>(quiet);
    log = own_log.get();
  }
  EventLoop the_loop(
      EventLoop::Options{.helper_threads = options.helper_threads, .on_trace = log->trace_sink()});
  RpcControlPlane control(&the_loop, log);
  Result<std::unique_ptr<net::DataPlane>> plane =
      make_worker_plane(the_loop, *log, arenas, options);
  if (!plane) {
    started.set_value(plane.error());
    return;
  }
  flow::TaskSet the_calls(the_loop.runtime());
  loop = &the_loop;
  calls = &the_calls;
  HandleLog events(log, options.observer);
  ArenaMemory memory(&arenas);
  ros::OffloadOptions limits;
  limits.limit_bytes = options.offload_limit;
  environment = {&the_loop.runtime(), &control, plane->get(), &events, nullptr};
  ros::OffloadStore the_offloads(environment, &memory, limits);
  environment.offloads = &the_offloads;
  offloads = &the_offloads;
  std::unique_ptr<FdWatch> asked;
  if (options.waits_descriptor >= 0)
    asked = the_loop.watch(options.waits_descriptor, [this](FdReady) { tell_waits(); });
  started.set_value(Done{});
  the_loop.run();
}

Worker::Worker(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Worker::~Worker() {
  impl_->loop->stop();
  impl_->thread.join();
}

Result<std::unique_ptr<Worker>> Worker::start(WorkerOptions options) {
  if (options.node.empty()) options.node = boot_id();
  auto impl = std::make_unique<Impl>(std::move(options));
  std::promise<Result<Done>> started;
  std::future<Result<Done>> future = started.get_future();
  impl->thread = std::thread([raw = impl.get(), promise = std::move(started)]() mutable {
    raw->serve(std::move(promise));
  });
  const Result<Done> result = future.get();
  if (!result) {
    impl->thread.join();
    return result.error();
  }
  return std::unique_ptr<Worker>(new Worker(std::move(impl)));
}

Result<SharedMemory> Worker::allocate(uint64_t bytes) {
  return SharedMemory::allocate(impl_->arenas, bytes);
}

Result<std::unique_ptr<WorkerHandle>> Worker::open(ros::OpenOptions options, Nanos within) {
  if (options.node.empty()) options.node = impl_->options.node;
  Impl* impl = impl_.get();
  using Handle = std::unique_ptr<ros::ShardHandle>;
  // The handle's open() ends by its deadline itself, and knows better why.
  Result<Handle> handle = impl->call<Handle>(
      [impl, options = std::move(options), within] {
        const Nanos deadline = deadline_after(impl->environment.runtime->now(), within);
        return ros::ShardHandle::open(impl->environment, options, deadline);
      },
      kForever, "open");
  if (!handle) return handle.error();
  return std::unique_ptr<WorkerHandle>(new WorkerHandle(this, std::move(handle).value()));
}

Result<net::ListResponse> Worker::list(std::string server, std::string model, Nanos within) {
  Impl* impl = impl_.get();
  return impl->call<net::ListResponse>(
      [impl, server = std::move(server), model = std::move(model), within] {
        const Nanos deadline = deadline_after(impl->environment.runtime->now(), within);
        return ros::list_replicas(impl->environment, server, model, deadline);
      },
      kForever, "list");
}

Result<net::Content> Worker::wait(std::string server, std::string model, net::VersionSpec version,
                                  Nanos within) {
  Impl* impl = impl_.get();
  return impl->call<net::Content>(
      [impl, server = std::move(server), model = std::move(model), version, within] {
        return ros::wait_for_version(impl->environment, server, model, version, within);
      },
      kForever, "wait");
}

Result<Generation> Worker::rewind(std::string server, std::string model, Generation expected,
                                  Nanos within) {
  Impl* impl = impl_.get();
  return impl->call<Generation>(
      [impl, server = std::move(server), model = std::move(model), expected, within] {
        return ros::rewind_model(impl->environment, server, model, expected, within);
      },
      kForever, "rewind");
}

uint64_t Worker::offload_bytes() const {
  return impl_->look<uint64_t>([this] { return impl_->offloads->bytes(); });
}

Result<Done> Worker::hand_over(Nanos within) {
  Impl* impl = impl_.get();
  return impl->call<Done>(
      [impl, within] {
        return close_offloads(impl->offloads,
                              deadline_after(impl->environment.runtime->now(), within));
      },
      kForever, "hand over");
}

// ---------------------------------------------------------------- handles

WorkerHandle::WorkerHandle(Worker* worker, std::unique_ptr<ros::ShardHandle> handle)
    : worker_(worker), handle_(std::move(handle)) {
  worker_->impl_->look<bool>([this] {
    worker_->impl_->handles.push_back(handle_.get());
    return true;
  });
}

WorkerHandle::~WorkerHandle() {
  worker_->impl_->look<bool>([this] {
    std::erase(worker_->impl_->handles, handle_.get());
    handle_.reset();
    return true;
  });
}

Result<Done> WorkerHandle::register_tensors(std::vector<ros::TensorSpec> tensors, Nanos within) {
  return worker_->impl_->call<Done>(
      [handle = handle_.get(), tensors = std::move(tensors)] {
        return handle->register_tensors(tensors);
      },
      within, "register");
}
Result<Done> WorkerHandle::unregister_tensors(Nanos within) {
  return worker_->impl_->call<Done>(
      [handle = handle_.get()] { return handle->unregister_tensors(); }, within, "unregister");
}
Result<Done> WorkerHandle::publish(VersionId version, Nanos within) {
  return worker_->impl_->call<Done>(
      [handle = handle_.get(), version] { return handle->publish(version); }, within, "publish");
}
Result<Done> WorkerHandle::unpublish(Nanos within) {
  return worker_->impl_->call<Done>([handle = handle_.get()] { return handle->unpublish(); },
                                    within, "unpublish");
}
Result<VersionId> WorkerHandle::replicate(net::VersionSpec version, Nanos timeout) {
  return worker_->impl_->call<VersionId>(
      [handle = handle_.get(), version, timeout] { return handle->replicate(version, timeout); },
      kForever, "replicate");
}
Result<std::optional<VersionId>> WorkerHandle::update(net::VersionSpec version, Nanos timeout) {
  return worker_->impl_->call<std::optional<VersionId>>(
      [handle = handle_.get(), version, timeout] { return handle->update(version, timeout); },
      kForever, "update");
}
void WorkerHandle::give_up(std::string why) {
  worker_->impl_->look<bool>([this, why = std::move(why)] {
    handle_->give_up(why);
    return true;
  });
}
Result<Done> WorkerHandle::close(Nanos within) {
  return worker_->impl_->call<Done>([handle = handle_.get()] { return handle->close(); }, within,
                                    "close");
}

Result<Done> WorkerHandle::close_by(Nanos within) {
  Worker::Impl* impl = worker_->impl_.get();
  return impl->call<Done>(
      [impl, handle = handle_.get(), within] {
        return handle->close(deadline_after(impl->environment.runtime->now(), within));
      },
      kForever, "close");
}

ros::HandleState WorkerHandle::state() const {
  return worker_->impl_->look<ros::HandleState>([this] { return handle_->state(); });
}
std::optional<VersionId> WorkerHandle::holds() const {
  return worker_->impl_->look<std::optional<VersionId>>([this] { return handle_->holds(); });
}
bool WorkerHandle::rewound() const {
  return worker_->impl_->look<bool>([this] { return handle_->rewound(); });
}
ros::Progress WorkerHandle::progress() const {
  return worker_->impl_->look<ros::Progress>([this] { return handle_->progress(); });
}
uint64_t WorkerHandle::registered_bytes() const {
  return worker_->impl_->look<uint64_t>([this] { return handle_->registered_bytes(); });
}

}  // namespace weightlane::prod
