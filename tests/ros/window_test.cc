// Goal: a window that is small where round trips are short, grows to what a long link holds, stays
// within its bounds, and admits what it should. Method: a link of given rate and round trip in a
// few lines, which a window fills as a reader does; and tables of single cases.
#include "ros/window.h"

#include <gtest/gtest.h>

#include <deque>

namespace weightlane::ros {
namespace {

constexpr uint64_t kKiB = 1 << 10;
constexpr uint64_t kMiB = 1 << 20;

struct Link {
  uint64_t bytes_per_ms = 0;
  Nanos round_trip{0};
};

struct Transfer {
  Nanos took{0};
  uint64_t bytes = 0;  // the window at the end
  uint64_t bytes_most = 0;
};

// Reads `total` in slices; a look comes first, as a reader's does.
Transfer fill(Link link, Window window, uint64_t total, uint64_t slice) {
  struct InFlight {
    uint64_t id;
    uint64_t length;
    Nanos ends;
  };
  std::deque<InFlight> in_flight;
  Nanos now = seconds(1);
  Nanos link_free = now;
  Transfer result;
  uint64_t next_id = 0;
  uint64_t posted = 0;
  uint64_t delivered = 0;
  const auto post = [&](uint64_t length) {
    const Nanos sending = std::max(link_free, now + link.round_trip / 2);
    link_free = sending + nanos(static_cast<int64_t>(length * 1'000'000 / link.bytes_per_ms));
    window.posted(next_id, length, now);
    in_flight.push_back({next_id++, length, link_free + link.round_trip / 2});
  };
  const auto take = [&] {
    const InFlight first = in_flight.front();
    in_flight.pop_front();
    now = first.ends;
    window.completed(first.id, now);
    delivered += first.length;
    result.bytes_most = std::max(result.bytes_most, window.bytes());
  };
  post(0);
  take();
  while (delivered < total) {
    while (posted < total && window.admits(slice)) {
      post(slice);
      posted += slice;
    }
    take();
  }
  result.took = now - seconds(1);
  result.bytes = window.bytes();
  return result;
}

TEST(Window, StaysSmallWhereRoundTripsAreShort) {
  // 400 Mbit/s and 200 us; 100 Gbit/s and 10 us.
  for (const Link link : {Link{50'000, micros(200)}, Link{12'500'000, micros(10)}}) {
    const Transfer transfer = fill(link, Window(kMiB, 64 * kMiB), 256 * kMiB, 256 * kKiB);
    EXPECT_EQ(transfer.bytes_most, kMiB) << link.bytes_per_ms;
    const auto ideal = static_cast<int64_t>(256 * kMiB * 1'000'000 / link.bytes_per_ms);
    EXPECT_LT(transfer.took.count, ideal * 101 / 100) << link.bytes_per_ms;
  }
}

TEST(Window, GrowsToWhatALongLinkHoldsAndNotFarBeyond) {
  // 10 Gbit/s over 50 ms hold 62.5 MB: a fixed window of 1 MiB would need 12.8 s for this.
  const Link link{1'250'000, millis(50)};
  const uint64_t holds = 62'500'000;
  const Transfer transfer = fill(link, Window(kMiB, 256 * kMiB), 1024 * kMiB, 256 * kKiB);
  EXPECT_GT(transfer.bytes, holds);
  EXPECT_LT(transfer.bytes_most, holds * 5 / 2);
  EXPECT_LT(transfer.took, millis(1400)) << transfer.took.count;  // ideal 859 ms
}

TEST(Window, KeepsItsBounds) {
  const Link link{1'250'000, millis(50)};
  EXPECT_EQ(fill(link, Window(kMiB, 2 * kMiB), 64 * kMiB, 256 * kKiB).bytes_most, 2 * kMiB);
  EXPECT_EQ(Window(8, 4).bytes(), 4u);
  EXPECT_EQ(Window(4, 8).bytes(), 4u);
}

TEST(Window, OneReadAloneAlwaysFits) {
  Window window(100, 100);
  EXPECT_TRUE(window.admits(1000));
  window.posted(1, 1000, nanos(1));
  EXPECT_FALSE(window.admits(1));
  window.completed(1, nanos(1));  // in no time at all
  EXPECT_TRUE(window.admits(100));
  window.posted(2, 60, nanos(2));
  EXPECT_TRUE(window.admits(40));
  EXPECT_FALSE(window.admits(41));
}

TEST(Window, CompletionsInAnyOrderAndAClockThatStandsStill) {
  Window window(kMiB, 64 * kMiB);
  for (uint64_t id = 0; id < 4; ++id) window.posted(id, 256 * kKiB, seconds(5));
  for (const uint64_t id : {3, 0, 2, 1}) window.completed(id, seconds(5));
  EXPECT_EQ(window.bytes(), kMiB);
  EXPECT_TRUE(window.admits(kMiB));
}

// Waiting behind one's own data is no reason to have more of it in flight.
TEST(Window, QueuesDoNotMakeItGrow) {
  const Link link{50'000, micros(500)};
  const Transfer transfer = fill(link, Window(4 * kMiB, 64 * kMiB), 64 * kMiB, kMiB);
  EXPECT_EQ(transfer.bytes_most, 4 * kMiB);  // each READ takes 80 ms of it, the look half a one
}

}  // namespace
}  // namespace weightlane::ros
