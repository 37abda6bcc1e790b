// A child takes the next index, makes the candidate and runs it; what it ended with, and every
// choice that was not 0, it leaves in its slot of the shared board. When it dies, a signal handler
// leaves the choices drawn so far, and the parent reads the place of the assertion from what the
// child printed.
#include "sim/judge.h"

#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <climits>
#include <csignal>
#include <cstring>

#include "sim/hash.h"
#include "sim/schedule.h"

namespace weightlane::sim {
namespace {

constexpr size_t kChoicesMost = 1 << 15;
constexpr size_t kTextMost = 512;
constexpr int kJobsMost = 16;
constexpr size_t kNone = SIZE_MAX;

// The schedule that runs in this child, for the signal handler.
Schedule* running_schedule = nullptr;
std::array<Deviation, kChoicesMost>* running_choices = nullptr;
volatile size_t* running_count = nullptr;

void keep_choices() {
  const std::vector<Deviation>& drawn = running_schedule->deviations();
  const size_t count = std::min(drawn.size(), kChoicesMost);
  std::copy_n(drawn.begin(), count, running_choices->begin());
  *running_count = count;
}

void on_death(int signal) {
  if (running_schedule != nullptr) keep_choices();
  _exit(signal == SIGALRM ? 3 : 4);
}

// SIGALRM after so long; 0: not at all.
void set_alarm(int64_t ms) {
  const itimerval limit{{0, 0}, {ms / 1000, ms % 1000 * 1000}};
  setitimer(ITIMER_REAL, &limit, nullptr);
}

void lower(std::atomic<size_t>& best, size_t index) {
  size_t known = best.load();
  while (index < known && !best.compare_exchange_weak(known, index)) {
  }
}

void write_text(char* into, const std::string& text, size_t most) {
  const size_t count = std::min(text.size(), most - 1);
  std::memcpy(into, text.data(), count);
  into[count] = '\0';
}

}  // namespace

int64_t monotonic_ms() {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();  // lint: wall clock
  return std::chrono::duration_cast<std::chrono::milliseconds>(since).count();
}

// Written by a child, read by the parent when the child has gone.
struct Judge::Slot {
  size_t at = kNone;       // the candidate that is being run
  size_t found = kNone;    // the one that fits
  size_t doubt = kNone;    // one that fits but for the run without the bug
  bool clean_run = false;  // the run under way is the one without the bug
  bool done = false;       // the run under way has ended by itself
  bool fired = false;
  char promise[16] = {};
  char text[kTextMost] = {};
  uint64_t site = 0;
  uint64_t hash = 0;
  uint64_t events = 0;
  int64_t at_ns = 0;
  size_t choice_count = 0;
  std::array<Deviation, kChoicesMost> choices{};
};

struct Judge::Board {
  std::atomic<size_t> next{0};
  std::atomic<size_t> best{kNone};
  std::atomic<uint64_t> judged{0};
  std::array<Slot, kJobsMost> slots{};
};

struct Judge::Task {
  size_t count = 0;
  const Make* make = nullptr;
  const Verdict* wanted = nullptr;  // null: whatever it is
  int64_t deadline_ms = 0;
};

Judge::Judge(Options options)
    : options_(std::move(options)), board_(std::make_unique<Shared<Board>>()) {
  options_.jobs = std::clamp(options_.jobs, 1, kJobsMost);
  for (int job = 0; job < options_.jobs; ++job)
    stderr_files_.push_back(memfd_create("judge", MFD_CLOEXEC));
}

Judge::~Judge() {
  for (const int file : stderr_files_) close(file);
}

void Judge::run_here(const Candidate& candidate, Slot& slot, int64_t ms_most) {
  slot.done = false;
  slot.fired = false;
  slot.choice_count = 0;
  Schedule::Options options;
  options.mode = candidate.mode;
  options.overrides = candidate.choices;
  options.record = true;
  Schedule schedule(candidate.plan, options);
  running_choices = &slot.choices;
  running_count = &slot.choice_count;
  running_schedule = &schedule;
  set_alarm(ms_most);
  const Outcome outcome = schedule.run();
  set_alarm(0);
  keep_choices();
  running_schedule = nullptr;
  slot.hash = outcome.hash;
  slot.events = outcome.events;
  slot.fired = outcome.violation.has_value();
  if (slot.fired) {
    slot.site = outcome.violation->site;
    slot.at_ns = outcome.violation->at.count;
    write_text(slot.promise, outcome.violation->promise, sizeof slot.promise);
    write_text(slot.text, outcome.violation->text, sizeof slot.text);
  }
  slot.done = true;
}

// In the child: the candidate has ended as wanted, and without the bug it ends well.
bool Judge::fits(const Slot& slot, const Candidate& candidate, const Task& task) {
  if (task.wanted == nullptr) return true;
  const bool same =
      slot.fired && task.wanted->promise == slot.promise && task.wanted->site == slot.site;
  return same && (!options_.plant || clean_without_bug(candidate));
}

bool Judge::clean_without_bug(const Candidate& candidate) {
  options_.plant(false);
  set_alarm(options_.candidate_ms_most);
  const Outcome outcome = run_plan_with(candidate.plan, candidate.mode, candidate.choices);
  set_alarm(0);
  options_.plant(true);
  return !outcome.violation;
}

int Judge::work(int job, const Task& task) {
  Board& board = **board_;
  Slot& slot = board.slots[static_cast<size_t>(job)];
  const int file = stderr_files_[static_cast<size_t>(job)];
  dup2(file, STDERR_FILENO);
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGALRM})
    std::signal(signal, &on_death);
  if (slot.doubt != kNone) {
    // The child before this one died as it should; does it live without the bug?
    slot.clean_run = true;
    const bool clean = clean_without_bug((*task.make)(slot.doubt));
    slot.clean_run = false;
    if (clean) lower(board.best, slot.found = slot.doubt);
    slot.doubt = kNone;
    if (clean) return 0;
  }
  for (;;) {
    const size_t index = board.next.fetch_add(1);
    if (index >= task.count || index > board.best.load()) break;
    if (monotonic_ms() > task.deadline_ms) break;
    slot.at = index;
    ++board.judged;
    if (ftruncate(file, 0) != 0 || lseek(file, 0, SEEK_SET) != 0) return 1;
    const Candidate candidate = (*task.make)(index);
    // Whatever a run ends with may take longer than one that is only a try.
    run_here(candidate, slot, options_.candidate_ms_most * (task.wanted == nullptr ? 6 : 1));
    slot.clean_run = true;
    const bool fitting = fits(slot, candidate, task);
    slot.clean_run = false;
    if (!fitting) continue;
    lower(board.best, slot.found = index);
    break;
  }
  slot.at = kNone;
  return 0;
}

std::string Judge::last_words(int job) const {
  char text[4096];
  const ssize_t got = pread(stderr_files_[static_cast<size_t>(job)], text, sizeof text, 0);
  return std::string(text, got > 0 ? static_cast<size_t>(got) : 0);
}

// In the parent: a child has died of its candidate. True: start another, which goes on.
bool Judge::bury(const ChildEnd& end, const Task& task) {
  Board& board = **board_;
  Slot& slot = board.slots[static_cast<size_t>(end.job)];
  if (!end.crashed || (slot.at == kNone && slot.doubt == kNone)) return false;
  const bool was_clean_run = slot.clean_run;
  slot.clean_run = false;
  slot.doubt = kNone;
  if (was_clean_run) return true;  // not of the bug, then
  const std::string words = last_words(end.job);
  const size_t place = words.find("  at ");
  const std::string where =
      place == std::string::npos ? "" : words.substr(place, words.find('\n', place) - place);
  uint64_t site = 0;
  for (const char c : where) site = mix64(site, static_cast<uint64_t>(c));
  slot.fired = true;
  slot.done = true;
  slot.site = site;
  write_text(slot.promise, end.status == 3 ? "hang" : "assertion", sizeof slot.promise);
  write_text(slot.text,
             end.status == 3 ? "the schedule does not end" : words.substr(0, words.find('\n')),
             sizeof slot.text);
  const bool same = task.wanted == nullptr ||
                    (task.wanted->promise == slot.promise && task.wanted->site == slot.site);
  if (!same) return true;
  if (task.wanted != nullptr && options_.plant) {
    slot.doubt = slot.at;
    return true;
  }
  lower(board.best, slot.found = slot.at);
  return false;
}

Verdict Judge::verdict_of(const Slot& slot) const {
  Verdict verdict;
  verdict.fired = slot.fired;
  verdict.promise = slot.fired ? slot.promise : "none";
  verdict.site = slot.site;
  verdict.text = slot.text;
  verdict.hash = slot.hash;
  verdict.events = slot.events;
  verdict.at = Nanos{slot.at_ns};
  verdict.choices.assign(slot.choices.begin(),
                         slot.choices.begin() + static_cast<ptrdiff_t>(slot.choice_count));
  return verdict;
}

Verdict Judge::run(const Candidate& candidate) {
  Board& board = **board_;
  board.next = 0;
  board.best = kNone;
  for (int job = 0; job < options_.jobs; ++job) {
    Slot& slot = board.slots[static_cast<size_t>(job)];
    slot.at = slot.found = slot.doubt = kNone;
  }
  const Make make = [&candidate](size_t) { return candidate; };
  const Task task{1, &make, nullptr, INT64_MAX};
  PoolOptions pool;
  pool.work = [&](int job) { return work(job, task); };
  pool.on_end = [&](const ChildEnd& end) { return bury(end, task); };
  run_pool(pool);
  judged_ += board.judged.exchange(0);
  return verdict_of(board.slots[0]);
}

std::optional<size_t> Judge::first_same(size_t count, const Make& make, const Verdict& wanted,
                                        int64_t deadline_ms, Verdict& verdict) {
  if (count == 0 || monotonic_ms() > deadline_ms) return std::nullopt;
  Board& board = **board_;
  board.next = 0;
  board.best = kNone;
  const int jobs = static_cast<int>(std::min(static_cast<size_t>(options_.jobs), count));
  for (int job = 0; job < jobs; ++job) {
    Slot& slot = board.slots[static_cast<size_t>(job)];
    slot.at = slot.found = slot.doubt = kNone;
  }
  const Task task{count, &make, &wanted, deadline_ms};
  PoolOptions pool;
  pool.jobs = jobs;
  pool.work = [&](int job) { return work(job, task); };
  pool.on_end = [&](const ChildEnd& end) { return bury(end, task); };
  run_pool(pool);
  judged_ += board.judged.exchange(0);
  const Slot* first = nullptr;
  for (int job = 0; job < jobs; ++job) {
    const Slot& slot = board.slots[static_cast<size_t>(job)];
    if (slot.found != kNone && (first == nullptr || slot.found < first->found)) first = &slot;
  }
  if (first == nullptr) return std::nullopt;
  verdict = verdict_of(*first);
  return first->found;
}

}  // namespace weightlane::sim
