// The loop's turn, over one epoll descriptor and kj's event queue.
//
// kj::EventLoop is a guest: its EventPort is only asked whether there is something to run, and
// never waits, because nothing here calls Promise::wait(). Descriptors are edge-triggered: one
// system call per wait, none to re-arm.
#include "prod/event_loop.h"

#include <errno.h>
#include <kj/async.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "flow/assert.h"
#include "prod/helper_threads.h"
#include "prod/kj_runtime.h"

namespace weightlane::prod {
namespace {

constexpr size_t kResumesPerRound = 1024;
constexpr unsigned kKjTurnsPerRound = 1024;
constexpr int kRoundsPerTurn = 16;  // flow and kj hand work to each other; then descriptors are due
constexpr int kEventsPerWait = 64;

[[noreturn]] void system_call_failed(const char* what) {
  assertion_failed(what, __FILE__, __LINE__, std::string(": ") + std::strerror(errno));
}

}  // namespace

struct FdWatch::Node {
  EventLoop::Impl* loop = nullptr;
  int fd = -1;
  std::function<void(FdReady)> on_ready;
  bool dead = false;
};

struct EventLoop::Impl final : kj::EventPort {
  explicit Impl(Options options)
      : runtime(std::move(options.on_trace)),
        helpers(std::make_unique<HelperThreads>(options.helper_threads)),
        kj_loop(*this),
        kj_scope(kj_loop) {
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (epoll_fd < 0) system_call_failed("epoll_create1");
    wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (wake_fd < 0) system_call_failed("eventfd");
    add(wake_fd, nullptr);
  }
  ~Impl() {
    runtime.cancel_spawned();
    helpers.reset();
    posted.clear();
    running.clear();
    buried.clear();
    WL_ASSERT_OP(watches, ==, size_t{0});
    close(wake_fd);
    close(epoll_fd);
  }

  // kj::EventPort
  bool wait() override {
    WL_ASSERT(!"no kj promise is waited for inside the loop");
    return false;
  }
  bool poll() override { return wait(); }
  void setRunnable(bool runnable) override { kj_runnable = runnable; }

  void add(int fd, FdWatch::Node* node) {
    epoll_event event{};
    event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
    event.data.ptr = node;
    if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0) system_call_failed("epoll_ctl");
  }
  void wake() const override {
    const uint64_t one = 1;
    // The descriptor is never read: with an edge each write wakes. It overflows in 2^64 of them.
    if (write(wake_fd, &one, sizeof one) != sizeof one) system_call_failed("write to the eventfd");
  }
  bool idle() const { return !runtime.has_ready() && !kj_runnable && !posted_any.load(); }

  void run_posted() {
    if (!posted_any.load()) return;
    {
      std::lock_guard lock(mutex);
      running.swap(posted);
      posted_any.store(false);
    }
    for (std::function<void()>& callback : running) callback();
    running.clear();
  }
  void run_hooks() {
    // A hook may hook itself again: that is for the next turn.
    flow::IntrusiveList<TurnHook> now;
    while (!hooks.empty()) {
      TurnHook& hook = hooks.front();
      hook.leave_list();
      now.push_back(hook);
    }
    while (!now.empty()) {
      TurnHook& hook = now.front();
      hook.leave_list();
      hook.end_of_turn();
    }
  }
  int wait_for_events(std::array<epoll_event, kEventsPerWait>& events, Nanos span) {
    if (!no_pwait2) {
      timespec timeout{};
      timeout.tv_sec = span.count / 1'000'000'000;
      timeout.tv_nsec = span.count % 1'000'000'000;
      const int count = epoll_pwait2(epoll_fd, events.data(), kEventsPerWait,
                                     span == kForever ? nullptr : &timeout, nullptr);
      if (count >= 0 || (errno != ENOSYS && errno != EPERM)) return count;
      no_pwait2 = true;  // a kernel before 5.11, or a sandbox: whole milliseconds
    }
    int milliseconds = -1;
    if (span != kForever) {
      milliseconds =
          static_cast<int>(std::min<int64_t>((span.count + 999'999) / 1'000'000, 1 << 30));
    }
    return epoll_wait(epoll_fd, events.data(), kEventsPerWait, milliseconds);
  }
  void look_at_descriptors() {
    Nanos span{0};
    if (idle() && !no_wait && hooks.empty()) {
      const Nanos next = runtime.next_timer_time();
      span = next == kForever ? kForever : std::max(next - runtime.now(), Nanos{0});
    }
    no_wait = false;
    std::array<epoll_event, kEventsPerWait> events;
    const int count = wait_for_events(events, span);
    if (count < 0 && errno != EINTR) system_call_failed("epoll_wait");
    for (int i = 0; i < count; ++i) {
      const epoll_event& event = events[static_cast<size_t>(i)];
      auto* node = static_cast<FdWatch::Node*>(event.data.ptr);
      if (node == nullptr || node->dead) continue;
      const uint32_t bits = event.events;
      const bool broken = (bits & (EPOLLHUP | EPOLLERR)) != 0;
      FdReady ready;
      ready.readable = broken || (bits & (EPOLLIN | EPOLLRDHUP)) != 0;
      ready.writable = broken || (bits & EPOLLOUT) != 0;
      ready.ended = broken || (bits & EPOLLRDHUP) != 0;
      node->on_ready(ready);
    }
    buried.clear();
  }
  void turn() {
    for (int round = 0; round < kRoundsPerTurn; ++round) {
      run_posted();
      runtime.turn(kResumesPerRound);
      if (kj_runnable) kj_loop.run(kKjTurnsPerRound);
      if (idle()) break;
    }
    run_hooks();
    look_at_descriptors();
  }

  KjRuntime runtime;
  std::unique_ptr<HelperThreads> helpers;
  bool kj_runnable = false;
  kj::EventLoop kj_loop;
  kj::WaitScope kj_scope;
  int epoll_fd = -1;
  int wake_fd = -1;
  bool no_pwait2 = false;
  bool no_wait = false;
  size_t watches = 0;
  std::vector<std::unique_ptr<FdWatch::Node>> buried;  // dead while their batch is looked at
  flow::IntrusiveList<TurnHook> hooks;
  std::vector<std::function<void()>> running;

  std::atomic<bool> stopping{false};
  std::atomic<bool> posted_any{false};
  std::mutex mutex;
  std::vector<std::function<void()>> posted;  // guarded by mutex
};

FdWatch::FdWatch(std::unique_ptr<Node> node) : node_(std::move(node)) {}

FdWatch::~FdWatch() {
  EventLoop::Impl& loop = *node_->loop;
  if (epoll_ctl(loop.epoll_fd, EPOLL_CTL_DEL, node_->fd, nullptr) != 0) {
    system_call_failed("a descriptor was closed before its watch");
  }
  node_->dead = true;
  --loop.watches;
  // Its callback may be what is running, and the batch may hold a pointer to it.
  loop.buried.push_back(std::move(node_));
}

EventLoop::EventLoop(Options options) : impl_(std::make_unique<Impl>(std::move(options))) {}
EventLoop::~EventLoop() = default;

flow::Runtime& EventLoop::runtime() { return impl_->runtime; }
void EventLoop::turn() { impl_->turn(); }
void EventLoop::skip_wait() { impl_->no_wait = true; }

void EventLoop::run() {
  while (!impl_->stopping.exchange(false)) impl_->turn();
}

void EventLoop::stop() {
  impl_->stopping.store(true);
  impl_->wake();
}

std::unique_ptr<FdWatch> EventLoop::watch(int fd, std::function<void(FdReady)> on_ready) {
  auto node = std::make_unique<FdWatch::Node>();
  node->loop = impl_.get();
  node->fd = fd;
  node->on_ready = std::move(on_ready);
  impl_->add(fd, node.get());
  ++impl_->watches;
  return std::unique_ptr<FdWatch>(new FdWatch(std::move(node)));
}

void EventLoop::post_work(std::function<void()> work, std::function<void()> done) {
  impl_->helpers->post([this, work = std::move(work), done = std::move(done)]() mutable {
    work();
    work = nullptr;
    post_to_loop(std::move(done));
  });
}

void EventLoop::post_to_loop(std::function<void()> callback) {
  bool first = false;
  {
    std::lock_guard lock(impl_->mutex);
    first = impl_->posted.empty();
    impl_->posted.push_back(std::move(callback));
    impl_->posted_any.store(true);
  }
  if (first) impl_->wake();
}

void EventLoop::call_at_end_of_turn(TurnHook& hook) {
  if (!hook.in_list()) impl_->hooks.push_back(hook);
}

}  // namespace weightlane::prod
