// What the commands of the binary share: how a command is declared and run, how amounts are read
// and shown, how a command is told to stop, and the progress line.
//
// The rules for all of them: exit 0 only on success, 1 when what was asked for could not be done, 2
// when the arguments were wrong; an error is one line on stderr that names the thing and says what
// would be right; results go to stdout, everything else to stderr; progress is shown only when it
// takes over two seconds and stderr is a terminal.
#pragma once

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "flow/result.h"
#include "flow/time.h"
#include "net/messages.h"

namespace weightlane::prod {

constexpr int kExitFailed = 1;
constexpr int kExitWrongArguments = 2;

class Command {
 public:
  virtual ~Command() = default;
  // Declares name, options and the example in the help text. The options' variables are members.
  virtual CLI::App* declare(CLI::App& program) = 0;
  // After parsing. Returns the exit status.
  virtual int run() = 0;
};

std::unique_ptr<Command> make_server_command();
std::unique_ptr<Command> make_publish_command();
std::unique_ptr<Command> make_pull_command();
std::unique_ptr<Command> make_list_command();
std::unique_ptr<Command> make_watch_command();
std::unique_ptr<Command> make_wait_command();
std::unique_ptr<Command> make_rewind_command();
std::unique_ptr<Command> make_demo_command();
std::unique_ptr<Command> make_demo_worker_command();
std::unique_ptr<Command> make_bench_command();

// The error of a command as its one line; returns kExitFailed, or kExitWrongArguments where the
// caller's arguments were at fault.
int report(std::string_view command, const Error& error);

// "4096", "64KiB", "1.5GiB", "2GB".
Result<uint64_t> parse_size(std::string_view text);
// "500ms", "2s", "1m", "0.5": a bare number is seconds. Not negative.
Result<Nanos> parse_duration(std::string_view text);
// "7", "latest", "latest-2".
Result<net::VersionSpec> parse_version(std::string_view text);
// A name of a model or replica: 1-200 printable characters without blanks or '#'.
Result<Done> check_name(std::string_view what, std::string_view name);

// Options with a unit: a wrong value is refused while arguments are parsed, in one line.
CLI::Option* add_size(CLI::App* app, const std::string& flags, uint64_t* into,
                      const std::string& help);
CLI::Option* add_duration(CLI::App* app, const std::string& flags, Nanos* into,
                          const std::string& help);
CLI::Option* add_version(CLI::App* app, const std::string& flags, net::VersionSpec* into,
                         const std::string& help);

std::string show_bytes(uint64_t bytes);                // "1.50 GiB"
std::string show_rate(uint64_t bytes, Nanos elapsed);  // "3.21 GiB/s"
std::string show_duration(Nanos span);                 // "12.3 ms"
// `values`, padded to `widths` and separated by two blanks; no blanks at the end.
std::string show_row(const std::vector<std::string>& values, const std::vector<size_t>& widths);

std::string host_name();

// SIGINT and SIGTERM as a request to stop; the second one ends the process at once, with the
// customary status. One object a process.
class StopRequest {
 public:
  StopRequest();
  ~StopRequest();
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;

  bool requested() const;
  // Until a stop is requested or `span` has passed; true: stop.
  bool wait(Nanos span) const;
  int descriptor() const;  // readable once a stop is requested
};

// SIGUSR1 asks a process what its calls wait for; the answer goes to stderr. One at a time.
class WaitsRequest {
 public:
  WaitsRequest();
  ~WaitsRequest();
  WaitsRequest(const WaitsRequest&) = delete;
  WaitsRequest& operator=(const WaitsRequest&) = delete;
  int descriptor() const;  // readable once it was asked
  // After that: takes the question, and tells.
  static void answer(int descriptor, const std::vector<std::string>& lines);
};

// A line on stderr that is written over; silent for the first two seconds, and throughout when
// stderr is no terminal.
class ProgressLine {
 public:
  ProgressLine();
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  void show(const std::string& text);
  void clear();

 private:
  Nanos started_;
  bool shown_ = false;
};

}  // namespace weightlane::prod
