// Judge: runs candidates for a smaller failure, each in a forked child, so that one that dies of an
// assertion or never ends costs its child and no more.
//
// Two runs fail in the same way when the same check fired: the same promise, at the same line of
// the checkers (or the same assertion). With a planted bug there is one more condition: with the
// bug switched off the same candidate must run without a violation, or it would show something
// else.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sim/choices.h"
#include "sim/plan.h"
#include "sim/pool.h"

namespace weightlane::sim {

struct Candidate {
  Plan plan;
  std::vector<Deviation> choices;
  ChoiceMode mode = ChoiceMode::kReplay;
};

// How a candidate ended.
struct Verdict {
  bool fired = false;
  std::string promise;  // "assertion" when the process died, "hang" when it had to be killed
  uint64_t site = 0;    // of the check or the assertion
  std::string text;
  uint64_t hash = 0;
  uint64_t events = 0;
  Nanos at;
  std::vector<Deviation> choices;  // those that were drawn and not 0; names are set

  bool same_as(const Verdict& other) const {
    return fired && other.fired && promise == other.promise && site == other.site;
  }
};

class Judge final {
 public:
  struct Options {
    int jobs = 1;
    int64_t candidate_ms_most = 10'000;  // of real time
    // Switches the planted bug on or off in this process; empty: there is none.
    std::function<void(bool on)> plant;
  };
  explicit Judge(Options options);
  ~Judge();
  Judge(const Judge&) = delete;
  Judge& operator=(const Judge&) = delete;

  using Make = std::function<Candidate(size_t index)>;
  // Whatever this one ends with.
  Verdict run(const Candidate& candidate);
  // The first of `count` candidates that ends like `wanted`, and its verdict. It does not depend on
  // the number of jobs. None is begun after `deadline_ms` of monotonic_ms().
  std::optional<size_t> first_same(size_t count, const Make& make, const Verdict& wanted,
                                   int64_t deadline_ms, Verdict& verdict);
  uint64_t judged() const { return judged_; }

 private:
  struct Slot;
  struct Board;
  struct Task;
  int work(int job, const Task& task);
  bool bury(const ChildEnd& end, const Task& task);
  void run_here(const Candidate& candidate, Slot& slot, int64_t ms_most);
  bool fits(const Slot& slot, const Candidate& candidate, const Task& task);
  bool clean_without_bug(const Candidate& candidate);
  Verdict verdict_of(const Slot& slot) const;
  std::string last_words(int job) const;

  Options options_;
  std::unique_ptr<Shared<Board>> board_;
  std::vector<int> stderr_files_;  // of each job, in memory
  uint64_t judged_ = 0;
};

int64_t monotonic_ms();

}  // namespace weightlane::sim
