// Goal: the most instructive schedules stand as text that people can read, and what happens in them
// stays what it says. Method: each tests/scenarios/*.txt is played; no promise may be violated,
// every `until` and `await` comes true, and the story must be the one below its dashes. After a
// change of protocol or simulator they are written anew, to be looked at as a diff:
// WL_WRITE_SCENARIOS=1 build/bin/tests/scenario_files_test.
//
// Then the small ones are explored: every schedule that differs from FIFO in one choice.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "sim/explore.h"
#include "sim/script.h"

namespace weightlane::sim {
namespace {

std::vector<std::string> files() {
  const char* source = std::getenv("WL_SOURCE_DIR");
  const std::string folder = std::string(source != nullptr ? source : ".") + "/tests/scenarios";
  std::vector<std::string> paths;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    if (entry.path().extension() == ".txt" && entry.path().filename() != "CMakeLists.txt")
      paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::string name_of(const ::testing::TestParamInfo<std::string>& info) {
  return std::filesystem::path(info.param).stem();
}

class ScenarioFile : public ::testing::TestWithParam<std::string> {};

TEST_P(ScenarioFile, HappensAsItSays) {
  const Result<Script> script = read_script(GetParam());
  ASSERT_TRUE(script.ok()) << script.error().message;
  EXPECT_EQ(script->text.rfind("# ", 0), 0u) << "it begins with what it shows";
  const Played played = play(*script, {});
  EXPECT_FALSE(played.violation) << played.violation->promise << ": " << played.violation->text;
  EXPECT_EQ(played.stuck, "");
  std::string happened;
  for (const std::string& line : played.transcript) happened += line + "\n";
  if (std::getenv("WL_WRITE_SCENARIOS") != nullptr) {
    std::ofstream out(GetParam(), std::ios::trunc);
    out << script->text << "----\n" << happened;
    ASSERT_TRUE(out.good());
    return;
  }
  EXPECT_EQ(happened, script->expected)
      << GetParam() << ": if this is meant, write it anew with WL_WRITE_SCENARIOS=1";
}

TEST_P(ScenarioFile, KeepsEveryPromiseOneChoiceAwayFromFifo) {
  const Result<Script> script = read_script(GetParam());
  ASSERT_TRUE(script.ok()) << script.error().message;
  const Explored explored = explore(*script, {.depth = 1, .jobs = 1});
  EXPECT_EQ(explored.violations, 0u) << explored.promise << ": " << explored.text;
  EXPECT_GT(explored.schedules, 20u);
}

INSTANTIATE_TEST_SUITE_P(Files, ScenarioFile, ::testing::ValuesIn(files()), name_of);

TEST(Script, BadLinesAreNamed) {
  for (const char* text :
       {"shards\n", "replica\n", "t0 fly\n", "run 5\n", "cut t0-0 all\n", "set nothing 1\n",
        "begin t0 publish\n", "pause t0-0 5 h\n", "fault 1\n", "until\n"}) {
    const Result<Script> script = parse_script(std::string("# what it shows\n") + text);
    ASSERT_FALSE(script.ok()) << text;
    EXPECT_NE(script.error().message.find("line 2"), std::string::npos) << script.error().message;
  }
}

TEST(Script, TheSameTwice) {
  for (const std::string& path : files()) {
    const Result<Script> script = read_script(path);
    ASSERT_TRUE(script.ok());
    EXPECT_EQ(play(*script, {}).hash, play(*script, {}).hash) << path;
  }
}

}  // namespace
}  // namespace weightlane::sim
