// The story of a run, for people: one fixed-column line per state transition, and a legend.
#pragma once

#include <cstdio>
#include <string>

#include "sim/checkers.h"

namespace weightlane::sim {

// What the columns and words of a story mean.
const char* story_legend();

class PrintedStory final : public StoryTeller {
 public:
  // `out` outlives it.
  explicit PrintedStory(std::FILE* out) : out_(out) {}
  void line(Nanos at, const std::string& who, const std::string& what,
            const std::string& detail) override;
  uint64_t lines() const { return lines_; }

 private:
  std::FILE* out_;
  uint64_t lines_ = 0;
};

}  // namespace weightlane::sim
