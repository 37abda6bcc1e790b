// Forking and reaping. The parent sleeps in short naps between looks at its children: this is the
// harness around the simulator, which has real time and nothing to hide from it.
#include "sim/pool.h"

#include <csignal>
#include <cstdio>
#include <ctime>
#include <vector>

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace weightlane::sim {

void* map_shared(size_t bytes) {
  void* block = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  WL_ASSERT(block != MAP_FAILED);
  return block;
}

void unmap_shared(void* block, size_t bytes) { munmap(block, bytes); }

namespace {

pid_t start_child(const PoolOptions& options, int job) {
  std::fflush(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  WL_ASSERT(pid >= 0);
  if (pid != 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  const int status = options.work(job);
  std::fflush(nullptr);
  _exit(status);
}

}  // namespace

void run_pool(const PoolOptions& options) {
  std::vector<pid_t> children(static_cast<size_t>(options.jobs), 0);
  size_t alive = 0;
  for (size_t job = 0; job < children.size(); ++job) {
    children[job] = start_child(options, static_cast<int>(job));
    ++alive;
  }
  int naps = 0;
  while (alive > 0) {
    bool reaped = false;
    for (size_t job = 0; job < children.size(); ++job) {
      int status = 0;
      if (children[job] == 0 || waitpid(children[job], &status, WNOHANG) != children[job]) continue;
      reaped = true;
      ChildEnd end;
      end.job = static_cast<int>(job);
      end.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
      end.status = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
      end.crashed = end.signal != 0 || WEXITSTATUS(status) != 0;
      children[job] = 0;
      --alive;
      if (!options.on_end(end)) continue;
      children[job] = start_child(options, end.job);
      ++alive;
    }
    if (reaped || alive == 0) continue;
    // Short at first: some pools have little to do.
    const timespec nap{0, naps < 20 ? 100'000 : 2'000'000};
    nanosleep(&nap, nullptr);  // lint: wall clock
    if (++naps % 100 != 0) continue;
    if (options.on_tick) options.on_tick();
    for (size_t job = 0; options.hangs && job < children.size(); ++job) {
      if (children[job] != 0 && options.hangs(static_cast<int>(job))) kill(children[job], SIGKILL);
    }
  }
}

}  // namespace weightlane::sim
