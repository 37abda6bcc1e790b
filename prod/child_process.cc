// Starting, talking to and stopping child processes.
#include "prod/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "prod/kj_runtime.h"

namespace weightlane::prod {
namespace {

constexpr size_t kLineBytesMax = 64 * 1024;  // an event is far shorter

Error system_error(const std::string& what) {
  return Error{ErrorCode::kResourceExhausted, what + ": " + std::strerror(errno)};
}

// Between fork and exec: only calls that are safe there.
[[noreturn]] void become(const char* const* arguments, int input, int output, int errors,
                         pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);  // it died before the line above
  ::setpgid(0, 0);
  ::signal(SIGINT, SIG_DFL);
  ::signal(SIGTERM, SIG_DFL);
  ::signal(SIGPIPE, SIG_DFL);
  ::dup2(input, STDIN_FILENO);
  ::dup2(output, STDOUT_FILENO);
  ::dup2(errors, STDERR_FILENO);
  ::execv("/proc/self/exe", const_cast<char* const*>(arguments));
  ::_exit(127);
}

}  // namespace

Result<ChildProcess> ChildProcess::start(const std::vector<std::string>& arguments, int errors) {
  std::array<int, 2> input{-1, -1};
  std::array<int, 2> output{-1, -1};
  if (::pipe2(input.data(), O_CLOEXEC) != 0) return system_error("pipe");
  if (::pipe2(output.data(), O_CLOEXEC) != 0) {
    const Error error = system_error("pipe");
    ::close(input[0]);
    ::close(input[1]);
    return error;
  }
  std::vector<const char*> words{"weightlane"};
  for (const std::string& word : arguments) words.push_back(word.c_str());
  words.push_back(nullptr);
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child == 0) become(words.data(), input[0], output[1], errors, parent);
  const Error error = system_error("cannot start a process");
  ::close(input[0]);
  ::close(output[1]);
  ChildProcess process;
  process.pid_ = child > 0 ? child : 0;
  process.to_child_ = input[1];
  process.from_child_ = output[0];
  if (child < 0) return error;
  ::fcntl(process.from_child_, F_SETFL, O_NONBLOCK);
  return process;
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept { *this = std::move(other); }

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  if (this == &other) return *this;
  stop(kZeroNanos);
  pid_ = std::exchange(other.pid_, 0);
  to_child_ = std::exchange(other.to_child_, -1);
  from_child_ = std::exchange(other.from_child_, -1);
  partial_ = std::exchange(other.partial_, {});
  return *this;
}

ChildProcess::~ChildProcess() { stop(kZeroNanos); }

void ChildProcess::close_pipes() {
  if (to_child_ >= 0) ::close(std::exchange(to_child_, -1));
  if (from_child_ >= 0) ::close(std::exchange(from_child_, -1));
}

bool ChildProcess::send(const std::string& line) {
  const std::string text = line + "\n";
  return to_child_ >= 0 &&
         ::write(to_child_, text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

std::vector<std::string> ChildProcess::receive(bool* ended) {
  std::vector<std::string> lines;
  *ended = from_child_ < 0;
  std::array<char, 16384> buffer{};
  while (from_child_ >= 0) {
    const ssize_t got = ::read(from_child_, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) break;
    if (got <= 0 || partial_.size() > kLineBytesMax) {
      *ended = true;
      break;
    }
    partial_.append(buffer.data(), static_cast<size_t>(got));
    size_t begin = 0;
    for (size_t end = partial_.find('\n'); end != std::string::npos;
         end = partial_.find('\n', begin)) {
      lines.push_back(partial_.substr(begin, end - begin));
      begin = end + 1;
    }
    partial_.erase(0, begin);
  }
  return lines;
}

int ChildProcess::stop(Nanos patience) {
  close_pipes();
  if (pid_ == 0) return 0;
  const pid_t pid = std::exchange(pid_, 0);
  // Waits on the process itself, so there is no polling and no race with a pid used again.
  const int handle = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  pollfd watched{handle, POLLIN, 0};
  if (patience > kZeroNanos) {
    ::kill(pid, SIGTERM);
    if (handle >= 0) ::poll(&watched, 1, static_cast<int>(patience.count / 1'000'000));
  }
  int status = 0;
  pid_t ended = ::waitpid(pid, &status, WNOHANG);
  if (ended == 0) {
    ::kill(pid, SIGKILL);
    while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
  }
  if (handle >= 0) ::close(handle);
  return status;
}

std::string show_wait_status(int status) {
  if (WIFSIGNALED(status)) return "killed by signal " + std::to_string(WTERMSIG(status));
  return "exited with status " + std::to_string(WIFEXITED(status) ? WEXITSTATUS(status) : -1);
}

}  // namespace weightlane::prod
