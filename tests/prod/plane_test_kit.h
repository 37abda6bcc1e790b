// What the tests of the production planes share: an acceptor that keeps its pairs, memory, and
// waiting.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "flow/signal.h"
#include "net/data_plane.h"
#include "prod/event_loop.h"

namespace weightlane::prod {

class KeepingAcceptor final : public net::Acceptor {
 public:
  net::AcceptDecision on_connect(std::span<const uint8_t>,
                                 std::unique_ptr<net::PassiveQueuePair> pair) override {
    pairs.push_back(std::move(pair));
    return net::Accept{};
  }
  std::vector<std::unique_ptr<net::PassiveQueuePair>> pairs;
};

// Memory of the test, registered with a plane until it goes.
struct Registered {
  Registered(EventLoop& loop, net::DataPlane& plane, size_t bytes) : data(bytes) {
    std::iota(data.begin(), data.end(), uint8_t{1});
    net::MemoryRange range;
    range.address = reinterpret_cast<uint64_t>(data.data());
    range.length = bytes;
    const Result<net::RegionId> id = loop.run(plane.register_memory(range));
    EXPECT_TRUE(id.ok());
    if (id) region = *id;
  }
  std::vector<uint8_t> data;
  net::RegionId region;
};

struct TestLink {
  explicit TestLink(EventLoop& loop) : wake(loop.runtime()) {}
  flow::Signal wake;
  std::unique_ptr<net::QueuePair> pair;
};

inline Result<Done> connect_link(EventLoop& loop, net::DataPlane& plane,
                                 const std::string& endpoint, TestLink& link,
                                 Nanos patience = seconds(10)) {
  Result<net::Connected> connected =
      loop.run(plane.connect(endpoint, Bytes{1}, &link.wake, loop.runtime().now() + patience));
  if (!connected) return connected.error();
  link.pair = std::move(connected->pair);
  return Done{};
}

inline flow::Task<std::optional<net::Completion>> next_completion(flow::Runtime* runtime,
                                                                  TestLink* link, Nanos patience) {
  const Nanos deadline = runtime->now() + patience;
  for (;;) {
    std::optional<net::Completion> completion = link->pair->poll();
    if (completion || runtime->now() >= deadline) co_return completion;
    co_await link->wake.wait_until(deadline);
  }
}

inline std::optional<net::Completion> next_of(EventLoop& loop, TestLink& link,
                                              Nanos patience = seconds(10)) {
  return loop.run(next_completion(&loop.runtime(), &link, patience));
}

// Ends when `holds` does, looked at every millisecond; false after ten seconds.
inline flow::Task<bool> until_task(flow::Runtime* runtime, std::function<bool()> holds) {
  for (int i = 0; i < 10'000; ++i) {
    if (holds()) co_return true;
    co_await runtime->sleep_for(millis(1));
  }
  co_return false;
}
inline bool until(EventLoop& loop, std::function<bool()> holds) {
  return loop.run(until_task(&loop.runtime(), std::move(holds)));
}

inline flow::Task<bool> pause_task(flow::Runtime* runtime, Nanos span) {
  co_await runtime->sleep_for(span);
  co_return true;
}
// Lets the loop run for so long: for what must not happen.
inline void run_for(EventLoop& loop, Nanos span) { loop.run(pause_task(&loop.runtime(), span)); }

inline net::ReadWork work_of(const Registered& into, net::RemoteRegion from, uint64_t length) {
  net::ReadWork work;
  work.work_id = 1;
  work.into = into.region;
  work.from = from;
  work.length = length;
  return work;
}

inline bool destroy_link(EventLoop& loop, TestLink& link, Nanos patience = seconds(10)) {
  const Result<Done> destroyed = loop.run(link.pair->destroy(loop.runtime().now() + patience));
  return destroyed.ok();
}

}  // namespace weightlane::prod
