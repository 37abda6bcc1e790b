// Random programs for flow: a tree of sleeps, yields, awaited promises, races, timeouts, spawns and
// throws; and two ways to run one. run_tree() runs it as coroutines; Model (model.h) runs it as
// plain callbacks over its own queue. Both write the same log, one line per start, end and
// cancellation with the time, and take the same steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace weightlane::flow::testing {

struct Node {
  enum class Kind {
    kReturn,
    kThrow,
    kSleep,
    kYield,
    kAwaitSet,
    kAwaitBroken,
    kAwaitUntil,
    kSequence,
    kCatch,
    kRace,
    kAllVector,
    kAllTuple,
    kTimeout,
    kSpawn,
  };
  Kind kind = Kind::kReturn;
  int id = 0;
  int64_t span = 0;  // nanoseconds, or how often to yield
  std::vector<Node> children;
};

constexpr int kTimedOut = -7;
constexpr int kBroken = -9;

using Log = std::vector<std::string>;

inline std::string log_line(const char* what, int id, int64_t now) {
  return std::string(what) + " " + std::to_string(id) + " @" + std::to_string(now);
}

// Reads a tree from bytes, so that RapidCheck shrinks a vector of bytes; no bytes left: a leaf.
class TreeReader {
 public:
  explicit TreeReader(std::vector<uint8_t> bytes) : bytes_(std::move(bytes)) {}
  Node read(int depth = 0) {
    constexpr int kLeaves = 7;
    constexpr int kKinds = 14;
    Node node;
    node.id = next_id_++;
    const bool only_inner = depth == 0 && position_ < bytes_.size();
    const int choice = only_inner   ? kLeaves + draw(kKinds - kLeaves)
                       : depth >= 5 ? draw(kLeaves)
                                    : draw(kKinds);
    node.kind = static_cast<Node::Kind>(choice);
    if (node.kind == Node::Kind::kThrow && draw(3) != 0) node.kind = Node::Kind::kReturn;
    node.span = draw(6);
    if (choice < kLeaves) return node;
    const int children = node.kind == Node::Kind::kCatch || node.kind == Node::Kind::kTimeout ? 1
                         : node.kind == Node::Kind::kRace                                     ? 3
                         : node.kind == Node::Kind::kAllTuple                                 ? 2
                                                              : draw(4);
    for (int i = 0; i < children; ++i) node.children.push_back(read(depth + 1));
    return node;
  }

 private:
  int draw(int n) {
    if (position_ >= bytes_.size()) return 0;
    return bytes_[position_++] % n;
  }
  std::vector<uint8_t> bytes_;
  size_t position_ = 0;
  int next_id_ = 1;
};

}  // namespace weightlane::flow::testing
