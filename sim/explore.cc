// The first level of the tree is spread over processes; each walks its subtrees depth first and
// adds to its own slot of shared memory. A run that kills its process is a violation like any
// other.
#include "sim/explore.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <set>

#include "sim/pool.h"

namespace weightlane::sim {
namespace {

constexpr uint32_t kDepthMost = 8;
constexpr uint32_t kReadyMost = 3;  // other tasks than the first that may go next
constexpr int kJobsMost = 16;
constexpr size_t kTextMost = 512;

struct Slot {
  uint64_t schedules = 0;
  uint64_t same = 0;
  uint64_t violations = 0;
  uint64_t subtree = 0;     // 1 + its number; 0: none
  uint64_t failing_in = 0;  // the same, of the first violation
  uint32_t failing_count = 0;
  std::array<Deviation, kDepthMost> failing{};
  uint32_t running_count = 0;
  std::array<Deviation, kDepthMost> running{};
  char promise[16] = {};
  char text[kTextMost] = {};
};

struct Board {
  std::atomic<uint64_t> next{0};
  std::array<Slot, kJobsMost> slots{};
};

bool named(const Draw& draw, const char* name) { return std::strcmp(draw.name, name) == 0; }

// The other outcomes worth a look.
std::vector<uint32_t> alternatives(const Draw& draw) {
  std::vector<uint32_t> values;
  if (named(draw, "ready")) {
    for (uint32_t value = 1; value < draw.n && value <= kReadyMost; ++value)
      values.push_back(value);
  } else if (draw.possible != 0) {
    for (uint32_t value = 1; value < draw.n && value < 32; ++value) {
      if ((draw.possible >> value & 1) != 0) values.push_back(value);
    }
  } else {
    for (const char* late : {"message.delay", "connect.there", "connect.back", "read.latency",
                             "read.execute", "read.land", "fence.holds", "fence.outlived",
                             "fence.answer", "flush.later", "destroy", "register", "deregister"}) {
      if (named(draw, late)) values.push_back(draw.n - 1);
    }
  }
  return values;
}

// Every deviation of this run behind draw `from` of its census.
std::vector<std::pair<size_t, Deviation>> children(const std::vector<Draw>& draws, size_t from) {
  std::vector<std::pair<size_t, Deviation>> made;
  for (size_t i = from; i < draws.size(); ++i) {
    const Draw& draw = draws[i];
    if (draw.value != 0) continue;
    for (const uint32_t value : alternatives(draw))
      made.push_back({i + 1, {draw.stream, draw.index, draw.n, value, draw.name}});
  }
  return made;
}

class Walker {
 public:
  Walker(const Script& script, uint32_t depth, Slot& slot)
      : script_(script), depth_(depth), slot_(slot) {}

  void walk(std::vector<Deviation> path, size_t from) {
    std::copy(path.begin(), path.end(), slot_.running.begin());
    slot_.running_count = static_cast<uint32_t>(path.size());
    std::vector<Draw> draws;
    const bool leaf = path.size() >= depth_;
    const Played played = play(script_, {.overrides = path, .census = leaf ? nullptr : &draws});
    ++slot_.schedules;
    if (played.violation) {
      fail(played.violation->promise, played.violation->text);
      return;
    }
    if (leaf) return;
    if (!seen_.insert(played.hash).second) {
      ++slot_.same;
      return;
    }
    for (const auto& [next, deviation] : children(draws, from)) {
      path.push_back(deviation);
      walk(path, next);
      path.pop_back();
    }
  }

 private:
  void fail(const std::string& promise, const std::string& text) {
    if (++slot_.violations > 1) return;
    slot_.failing_in = slot_.subtree;
    slot_.failing = slot_.running;
    slot_.failing_count = slot_.running_count;
    std::strncpy(slot_.promise, promise.c_str(), sizeof slot_.promise - 1);
    std::strncpy(slot_.text, text.c_str(), sizeof slot_.text - 1);
  }

  const Script& script_;
  uint32_t depth_;
  Slot& slot_;
  std::set<uint64_t> seen_;
};

// The child died of the run that its slot names.
bool bury(Board& board, const ChildEnd& end) {
  Slot& slot = board.slots[static_cast<size_t>(end.job)];
  if (!end.crashed || slot.subtree == 0) return false;
  ++slot.schedules;
  if (++slot.violations == 1) {
    slot.failing_in = slot.subtree;
    slot.failing = slot.running;
    slot.failing_count = slot.running_count;
    std::strncpy(slot.promise, "assertion", sizeof slot.promise - 1);
    std::strncpy(slot.text, "the process died: see what it printed", sizeof slot.text - 1);
  }
  return true;
}

Explored sum_up(const Board& board) {
  Explored sum;
  const Slot* first = nullptr;
  for (const Slot& slot : board.slots) {
    sum.schedules += slot.schedules;
    sum.same += slot.same;
    sum.violations += slot.violations;
    if (slot.violations == 0) continue;
    if (first == nullptr || slot.failing_in < first->failing_in) first = &slot;
  }
  if (first == nullptr) return sum;
  sum.failing.assign(first->failing.begin(), first->failing.begin() + first->failing_count);
  sum.promise = first->promise;
  sum.text = first->text;
  return sum;
}

}  // namespace

Explored explore(const Script& script, const ExploreOptions& options) {
  auto board = std::make_unique<Shared<Board>>();
  Board& shared = **board;
  const uint32_t depth = std::min(options.depth, kDepthMost);
  const int jobs = std::clamp(options.jobs, 1, kJobsMost);
  std::vector<Draw> draws;
  std::vector<std::pair<size_t, Deviation>> first_level;
  // The root in a child first: it may die.
  const auto pool_of = [&](int count, auto work) {
    PoolOptions pool;
    pool.jobs = count;
    pool.work = work;
    pool.on_end = [&](const ChildEnd& end) { return bury(shared, end); };
    run_pool(pool);
  };
  pool_of(1, [&](int) {
    shared.slots[0].subtree = 1;
    Walker(script, 0, shared.slots[0]).walk({}, 0);
    shared.slots[0].subtree = 0;
    return 0;
  });
  if (shared.slots[0].violations == 0 && depth > 0) {
    play(script, {.overrides = {}, .census = &draws});
    first_level = children(draws, 0);
    pool_of(jobs, [&](int job) {
      Slot& slot = shared.slots[static_cast<size_t>(job)];
      Walker walker(script, depth, slot);
      for (uint64_t at = shared.next.fetch_add(1); at < first_level.size();
           at = shared.next.fetch_add(1)) {
        slot.subtree = at + 2;
        walker.walk({first_level[at].second}, first_level[at].first);
      }
      slot.subtree = 0;
      return 0;
    });
  }
  Explored explored = sum_up(shared);
  explored.choices = first_level.size();
  return explored;
}

}  // namespace weightlane::sim
