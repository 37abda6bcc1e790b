// Goal: the benchmark of the planes runs, reads the right bytes and tells every figure it promises.
// Method: every case once with little memory. The figures are printed; what they must be is checked
// by whoever has a quiet machine:
//   WL_BENCH_MIB=1024 WL_BENCH_ROUNDS=5 build/bin/tests/plane_bench_test
#include "prod/plane_bench.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <sstream>

namespace weightlane::prod {
namespace {

uint64_t setting(const char* name, uint64_t otherwise) {
  const char* text = getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

TEST(PlaneBench, EveryCaseIsMeasuredBesidePlainCode) {
  PlaneBenchOptions options;
  options.bytes = setting("WL_BENCH_MIB", 64) << 20;
  options.slice_bytes = setting("WL_BENCH_SLICE_KIB", 4096) << 10;
  options.rounds = static_cast<unsigned>(setting("WL_BENCH_ROUNDS", 1));
  options.tcp_streams = static_cast<unsigned>(setting("WL_BENCH_STREAMS", 0));
  options.copy_threads = static_cast<unsigned>(setting("WL_BENCH_COPIES", 0));
  if (const char* cases = getenv("WL_BENCH_CASES")) {
    std::istringstream words(cases);
    for (std::string word; words >> word;) options.cases.push_back(word);
  }
  if (getenv("WL_BENCH_VERBOSE") != nullptr) {
    options.progress = [](const std::string& line) { fprintf(stderr, "%s\n", line.c_str()); };
  }
  const Result<std::vector<PlaneBenchResult>> results = run_plane_bench(options);
  ASSERT_TRUE(results.ok()) << results.error().message;
  EXPECT_GE(results->size(), options.cases.empty() ? plane_bench_cases().size() : 1);
  for (const PlaneBenchResult& result : *results) {
    printf("%-28s %6.2f GiB/s   %-38s %6.2f GiB/s   ratio %.2f\n", result.name.c_str(),
           result.gib_per_s, result.limit.c_str(), result.limit_gib_per_s, result.ratio);
    EXPECT_GT(result.gib_per_s, 0);
    EXPECT_GT(result.limit_gib_per_s, 0);
    EXPECT_FALSE(result.limit.empty());
    EXPECT_EQ(result.median_of, options.rounds);
  }
}

TEST(PlaneBench, AnUnknownCaseIsNamed) {
  PlaneBenchOptions options;
  options.cases = {"carrier-pigeon"};
  const Result<std::vector<PlaneBenchResult>> results = run_plane_bench(options);
  ASSERT_FALSE(results.ok());
  EXPECT_NE(results.error().message.find("carrier-pigeon"), std::string::npos);
}

}  // namespace
}  // namespace weightlane::prod
