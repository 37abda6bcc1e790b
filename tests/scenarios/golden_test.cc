// Goal: the same seeds give the same runs in every build: -O2, -O0, sanitizers, zeroed and
// patterned locals. Method: 20 seeds, their hashes in tests/sim/golden.txt. After a change of
// protocol, simulator or plans the file is made anew: WL_WRITE_GOLDEN=1
// build/bin/tests/golden_test.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "sim/schedule.h"

namespace weightlane::sim {
namespace {

constexpr uint64_t kGoldenSeeds = 20;

std::string golden_path() {
  const char* source = std::getenv("WL_SOURCE_DIR");
  return std::string(source != nullptr ? source : ".") + "/tests/sim/golden.txt";
}

TEST(Golden, TwentySeedsHaveTheirHashes) {
  if (std::getenv("WL_WRITE_GOLDEN") != nullptr) {
    std::ofstream out(golden_path());
    for (uint64_t seed = 1; seed <= kGoldenSeeds; ++seed) {
      out << seed << " " << run_plan(draw_plan(Scenario::kDefault, seed)).hash << "\n";
    }
    ASSERT_TRUE(out.good());
  }
  std::ifstream in(golden_path());
  ASSERT_TRUE(in.good()) << golden_path();
  uint64_t seed = 0;
  uint64_t hash = 0;
  uint64_t checked = 0;
  while (in >> seed >> hash) {
    EXPECT_EQ(run_plan(draw_plan(Scenario::kDefault, seed)).hash, hash) << "seed " << seed;
    ++checked;
  }
  EXPECT_EQ(checked, kGoldenSeeds);
}

}  // namespace
}  // namespace weightlane::sim
