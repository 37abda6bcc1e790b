// A child process of the demo or the benchmark: this program again with a hidden subcommand, spoken
// to in lines.
//
// Commands go to its stdin, events come from its stdout, one JSON object a line; its stderr is
// ours. A child lives in a process group of its own, so that Ctrl-C reaches only us and we stop
// every child by its pid; if we are killed, the kernel kills it (PR_SET_PDEATHSIG). Dropping the
// object kills the child and waits for it.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "flow/result.h"
#include "flow/time.h"

namespace weightlane::prod {

class ChildProcess {
 public:
  ChildProcess() = default;
  // `errors`: a descriptor for the child's stderr.
  static Result<ChildProcess> start(const std::vector<std::string>& arguments, int errors);
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  ~ChildProcess();

  pid_t pid() const { return pid_; }  // 0: there is none
  int descriptor() const { return from_child_; }
  // False when the child is gone.
  bool send(const std::string& line);
  // Whole lines that have come. `ended`: the child closed its stdout.
  std::vector<std::string> receive(bool* ended);
  // The end of the child: asks (closes its stdin, SIGTERM), waits up to `patience`, then kills.
  // Returns the status of waitpid.
  int stop(Nanos patience);
  // Waits for a child whose stdout has ended.
  int reap() { return stop(seconds(5)); }

 private:
  void close_pipes();

  pid_t pid_ = 0;
  int to_child_ = -1;
  int from_child_ = -1;
  std::string partial_;
};

// "exited with status 1", "killed by signal 9".
std::string show_wait_status(int status);

}  // namespace weightlane::prod
