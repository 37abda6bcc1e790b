// Goal: the loop's contract. Timers fire in time; descriptors call back; helpers and other threads
// come back on the loop's thread; a watch may die in its own callback; stopping is orderly.
// Method: real pipes, sockets and threads; no sleeps but the loop's own timers.
#include "prod/event_loop.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <thread>
#include <vector>

#include "flow/combinators.h"
#include "flow/task_set.h"

namespace weightlane::prod {
namespace {

using flow::Task;

struct SocketPair {
  SocketPair() {
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()) != 0) abort();
  }
  ~SocketPair() {
    close(ends[0]);
    close(ends[1]);
  }
  std::array<int, 2> ends{};
};

Task<Nanos> sleep_task(flow::Runtime* runtime, Nanos span) {
  const Nanos before = runtime->now();
  co_await runtime->sleep_for(span);
  const Nanos after = runtime->now();
  co_return after - before;
}

TEST(EventLoop, SleepsAreNotShortAndNotMuchLonger) {
  EventLoop loop;
  Nanos best = kForever;
  for (int i = 0; i < 20; ++i) {
    const Nanos slept = loop.run(sleep_task(&loop.runtime(), micros(300)));
    EXPECT_GE(slept, micros(300));
    best = std::min(best, slept);
  }
  EXPECT_LT(best, millis(5));
}

Task<int> yield_task(flow::Runtime* runtime, int times) {
  for (int i = 0; i < times; ++i) co_await runtime->yield();
  co_return times;
}

TEST(EventLoop, YieldsManyTimes) {
  EventLoop loop;
  EXPECT_EQ(loop.run(yield_task(&loop.runtime(), 10'000)), 10'000);
}

TEST(EventLoop, ATaskThatEndsAtOnceEndsTheRun) {
  EventLoop loop;
  EXPECT_EQ(loop.run(yield_task(&loop.runtime(), 0)), 0);
}

TEST(EventLoop, RandomDiffersBetweenLoops) {
  EventLoop first;
  const uint64_t one = first.runtime().random();
  std::thread([one] {
    EventLoop second;
    EXPECT_NE(second.runtime().random(), one);
  }).join();
}

TEST(EventLoop, WatchTellsOfDataRoomAndEnd) {
  EventLoop loop;
  SocketPair pair;
  std::vector<std::string> seen;
  auto watch = loop.watch(pair.ends[0], [&](FdReady ready) {
    std::string what = ready.writable ? "w" : "-";
    if (ready.readable) {
      char byte = 0;
      const ssize_t count = read(pair.ends[0], &byte, 1);
      if (count == 1) what += byte;
      if (count == 0) what += "end";
    }
    seen.push_back(what);
    loop.stop();
  });
  loop.run();
  ASSERT_EQ(write(pair.ends[1], "x", 1), 1);
  loop.run();
  ASSERT_EQ(shutdown(pair.ends[1], SHUT_WR), 0);
  loop.run();
  EXPECT_EQ(seen, (std::vector<std::string>{"w", "wx", "wend"}));
}

TEST(EventLoop, AWatchMayDieInItsOwnCallbackAndTakeOthersAlong) {
  EventLoop loop;
  std::array<SocketPair, 8> pairs;
  std::vector<std::unique_ptr<FdWatch>> watches;
  int calls = 0;
  for (SocketPair& pair : pairs) {
    watches.push_back(loop.watch(pair.ends[0], [&](FdReady) {
      ++calls;
      watches.clear();
      loop.stop();
    }));
  }
  loop.run();
  EXPECT_EQ(calls, 1);
}

TEST(EventLoop, HelpersComeBackOnTheLoopsThread) {
  EventLoop loop;
  const std::thread::id here = std::this_thread::get_id();
  std::atomic<int> elsewhere{0};
  int done = 0;
  constexpr int kJobs = 200;
  for (int i = 0; i < kJobs; ++i) {
    loop.post_work([&, here] { elsewhere += std::this_thread::get_id() != here; },
                   [&, here] {
                     EXPECT_EQ(std::this_thread::get_id(), here);
                     if (++done == kJobs) loop.stop();
                   });
  }
  loop.run();
  EXPECT_EQ(elsewhere, kJobs);
}

Task<std::string> helper_task(EventLoop* loop) {
  std::string text = co_await loop->run_on_helper<std::string>([] { return std::string("done"); });
  co_return text;
}

TEST(EventLoop, HelperValuesAreAwaited) {
  EventLoop loop;
  for (int i = 0; i < 100; ++i) EXPECT_EQ(loop.run(helper_task(&loop)), "done");
}

Task<void> drop_helper_task(EventLoop* loop) {
  (void)co_await loop->run_on_helper<std::string>([] { return std::string("unheard"); });
}

TEST(EventLoop, ADroppedHelperTaskIsHarmless) {
  EventLoop loop;
  for (int i = 0; i < 50; ++i) {
    flow::TaskSet tasks(loop.runtime());
    tasks.spawn(drop_helper_task(&loop), "dropped");
    loop.run(yield_task(&loop.runtime(), 2));
  }
  EXPECT_EQ(loop.run(helper_task(&loop)), "done");
}

TEST(EventLoop, OtherThreadsPostInOrder) {
  EventLoop loop;
  constexpr int kPosts = 2'000;
  std::vector<int> seen;
  std::thread poster([&] {
    for (int i = 0; i < kPosts; ++i) {
      loop.post_to_loop([&, i] {
        seen.push_back(i);
        if (i + 1 == kPosts) loop.stop();
      });
    }
  });
  loop.run();
  poster.join();
  ASSERT_EQ(seen.size(), size_t{kPosts});
  for (int i = 0; i < kPosts; ++i) EXPECT_EQ(seen[static_cast<size_t>(i)], i);
}

TEST(EventLoop, StopFromAnotherThread) {
  EventLoop loop;
  std::thread stopper([&] { loop.stop(); });
  loop.run();
  stopper.join();
}

TEST(EventLoop, DestroyedWithWorkQueuedAndTasksWaiting) {
  std::atomic<int> begun{0};
  auto owned = std::make_shared<int>(7);
  {
    EventLoop loop(EventLoop::Options{.helper_threads = 1, .on_trace = {}});
    loop.runtime().spawn(
        [](flow::Runtime* runtime) -> Task<void> {
          (void)co_await sleep_task(runtime, kForever);
        }(&loop.runtime()),
        "sleeper");
    for (int i = 0; i < 100; ++i) loop.post_work([&begun, owned] { ++begun; }, [owned] {});
    loop.run(yield_task(&loop.runtime(), 1));
  }
  EXPECT_LE(begun, 100);
  EXPECT_EQ(owned.use_count(), 1);
}

class CountingHook final : public TurnHook {
 public:
  void end_of_turn() override { ++calls; }
  int calls = 0;
};

TEST(EventLoop, HooksRunOnceATurn) {
  EventLoop loop;
  CountingHook hook;
  loop.call_at_end_of_turn(hook);
  loop.call_at_end_of_turn(hook);
  (void)loop.run(sleep_task(&loop.runtime(), micros(1)));
  EXPECT_EQ(hook.calls, 1);
  {
    CountingHook gone;
    loop.call_at_end_of_turn(gone);
  }
  (void)loop.run(sleep_task(&loop.runtime(), micros(1)));
  EXPECT_EQ(hook.calls, 1);
}

TEST(EventLoop, TracesGoToTheSink) {
  std::vector<std::string> seen;
  EventLoop loop(EventLoop::Options{
      .helper_threads = 1,
      .on_trace = [&](const flow::TraceEvent& event) { seen.emplace_back(event.what); }});
  flow::TraceEvent event;
  event.what = "handle.published";
  loop.runtime().trace(event);
  EXPECT_EQ(seen, std::vector<std::string>{"handle.published"});
}

}  // namespace
}  // namespace weightlane::prod
