// What the demo shows: one row a replica (who holds what, progress, rate, stall), repainted in
// place on a terminal; plain lines elsewhere; and the summary at the end.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "flow/time.h"

namespace weightlane::prod {

// One shard's process, as it last told.
struct DemoShardView {
  std::string state = "starting";
  uint64_t version = 0;
  bool holds = false;
  uint64_t sealed_bytes = 0;
  uint64_t total_bytes = 0;
  std::string source;
  Nanos transfer{0};  // so far, or what the last update took
  Nanos moving_since{0};
  Nanos stall{0};
  uint64_t verified = 0;  // updates whose every byte was as it must be
};

struct DemoReplicaView {
  std::string name;
  bool trainer = false;
  std::vector<DemoShardView> shards;
};

// What one step took; the summary's line.
struct DemoStepView {
  uint64_t version = 0;
  Nanos train{0};    // slowest trainer: memory changes
  Nanos publish{0};  // slowest trainer: unpublish (with its drain) and publish
  Nanos update{0};   // until the last rollout had the version
  Nanos stall_mean{0};
  Nanos stall_max{0};
  uint64_t bytes = 0;  // into all rollouts
  std::string remark;  // of chaos
};

class DemoTable {
 public:
  // live: repaint in place on stdout.
  explicit DemoTable(bool live) : live_(live), started_(now()) {}

  bool live() const { return live_; }
  void paint(const std::string& title, const std::vector<DemoReplicaView>& replicas);
  // An event: a line of its own, above the table if there is one.
  void line(const std::string& text);
  // Leaves the last painting where it is.
  void finish() { painted_lines_ = 0; }

  static void summary(const std::vector<DemoStepView>& steps);

 private:
  static Nanos now();
  void erase();

  bool live_;
  Nanos started_;
  size_t painted_lines_ = 0;
};

}  // namespace weightlane::prod
