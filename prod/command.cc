// The commands' common parts.
#include "prod/command.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "prod/kj_runtime.h"

namespace weightlane::prod {
namespace {

struct Unit {
  std::string_view name;
  double factor;
};

// The number at the front of `text` times its unit; nothing if it is not a number >= 0 with one of
// `units`.
template <size_t N>
bool parse_amount(std::string_view text, const std::array<Unit, N>& units, double* amount) {
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, *amount, std::chars_format::fixed);
  if (error != std::errc() || *amount < 0) return false;
  const std::string_view unit(rest, static_cast<size_t>(end - rest));
  for (const Unit& known : units) {
    if (known.name != unit) continue;
    *amount *= known.factor;
    return std::isfinite(*amount);
  }
  return false;
}

std::string formatted(const char* format, double value, std::string_view unit) {
  std::array<char, 64> buffer{};
  std::snprintf(buffer.data(), buffer.size(), format, value);
  return std::string(buffer.data()) + " " + std::string(unit);
}

template <typename T>
CLI::Option* add_parsed(CLI::App* app, const std::string& flags, T* into, const std::string& help,
                        Result<T> (*parse)(std::string_view), const char* type) {
  CLI::Option* option = app->add_option_function<std::string>(
      flags,
      [into, flags, parse](const std::string& text) {
        Result<T> value = parse(text);
        if (!value.ok()) throw CLI::ValidationError(flags, value.error().message);
        *into = *value;
      },
      help);
  return option->type_name(type);
}

// What a signal handler may touch: plain words.
std::atomic<int> stop_count{0};
std::array<int, 2> stop_pipe{-1, -1};

void on_stop_signal(int number) {
  if (stop_count.fetch_add(1) > 0) _exit(128 + number);
  const char byte = 1;
  [[maybe_unused]] const ssize_t written = ::write(stop_pipe[1], &byte, 1);
}

std::array<int, 2> waits_pipe{-1, -1};

void on_waits_signal(int) {
  const char byte = 1;
  [[maybe_unused]] const ssize_t written = ::write(waits_pipe[1], &byte, 1);
}

}  // namespace

int report(std::string_view command, const Error& error) {
  std::string line = error.message;
  std::replace(line.begin(), line.end(), '\n', ' ');
  std::fprintf(stderr, "weightlane %.*s: %s\n", static_cast<int>(command.size()), command.data(),
               line.c_str());
  return error.code == ErrorCode::kInvalidArgument ? kExitWrongArguments : kExitFailed;
}

Result<uint64_t> parse_size(std::string_view text) {
  static constexpr std::array<Unit, 10> kUnits{{{"", 1},
                                                {"B", 1},
                                                {"KiB", 1024.0},
                                                {"MiB", 1048576.0},
                                                {"GiB", 1073741824.0},
                                                {"TiB", 1099511627776.0},
                                                {"KB", 1e3},
                                                {"MB", 1e6},
                                                {"GB", 1e9},
                                                {"TB", 1e12}}};
  double amount = 0;
  if (!parse_amount(text, kUnits, &amount) || amount > 1e18) {
    return Error{ErrorCode::kInvalidArgument,
                 "'" + std::string(text) + "' is no size; write 64MiB, 1.5GiB or 4096"};
  }
  return static_cast<uint64_t>(amount);
}

Result<Nanos> parse_duration(std::string_view text) {
  static constexpr std::array<Unit, 6> kUnits{
      {{"", 1e9}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {"m", 60e9}, {"h", 3600e9}}};
  double amount = 0;
  if (!parse_amount(text, kUnits, &amount) || amount > 9e18) {
    return Error{ErrorCode::kInvalidArgument,
                 "'" + std::string(text) + "' is no duration; write 500ms, 2s or 1m"};
  }
  return nanos(static_cast<int64_t>(amount));
}

Result<net::VersionSpec> parse_version(std::string_view text) {
  net::VersionSpec spec;
  const std::string_view prefix = "latest-";
  const bool back = text.starts_with(prefix);
  const std::string_view number = back ? text.substr(prefix.size()) : text;
  if (text == "latest") return spec;
  uint64_t value = 0;
  const auto [rest, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  if (error != std::errc() || rest != number.data() + number.size() || number.empty() ||
      (back && value > 1'000'000)) {
    return Error{
        ErrorCode::kInvalidArgument,
        "'" + std::string(text) + "' is no version; write a number such as 7, latest, or latest-2"};
  }
  if (back) {
    spec.back = static_cast<uint32_t>(value);
  } else {
    spec.kind = net::VersionKind::kExact;
    spec.exact = VersionId{value};
  }
  return spec;
}

Result<Done> check_name(std::string_view what, std::string_view name) {
  const bool printable = std::all_of(
      name.begin(), name.end(), [](unsigned char c) { return c > ' ' && c != 0x7f && c != '#'; });
  if (!name.empty() && name.size() <= 200 && printable) return Done{};
  return Error{ErrorCode::kInvalidArgument,
               std::string(what) + " needs a name of 1 to 200 characters without blanks and '#'"};
}

CLI::Option* add_size(CLI::App* app, const std::string& flags, uint64_t* into,
                      const std::string& help) {
  return add_parsed<uint64_t>(app, flags, into, help, &parse_size, "SIZE");
}
CLI::Option* add_duration(CLI::App* app, const std::string& flags, Nanos* into,
                          const std::string& help) {
  return add_parsed<Nanos>(app, flags, into, help, &parse_duration, "TIME");
}
CLI::Option* add_version(CLI::App* app, const std::string& flags, net::VersionSpec* into,
                         const std::string& help) {
  return add_parsed<net::VersionSpec>(app, flags, into, help, &parse_version, "VERSION");
}

std::string show_bytes(uint64_t bytes) {
  static constexpr std::array<std::string_view, 5> kUnits{"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return formatted(unit == 0 ? "%.0f" : "%.2f", value, kUnits[unit]);
}

std::string show_rate(uint64_t bytes, Nanos elapsed) {
  if (elapsed.count <= 0) return "-";
  return formatted("%.2f", static_cast<double>(bytes) / 1073741824.0 / to_seconds(elapsed),
                   "GiB/s");
}

std::string show_duration(Nanos span) {
  const double s = to_seconds(span);
  if (s >= 1) return formatted("%.2f", s, "s");
  if (s >= 1e-3) return formatted("%.1f", s * 1e3, "ms");
  return formatted("%.0f", s * 1e6, "us");
}

std::string show_row(const std::vector<std::string>& values, const std::vector<size_t>& widths) {
  std::string row;
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) row += "  ";
    row += values[i];
    const size_t width = i < widths.size() ? widths[i] : 0;
    if (values[i].size() < width) row.append(width - values[i].size(), ' ');
  }
  row.erase(row.find_last_not_of(' ') + 1);
  return row;
}

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "host";
  return name.data();
}

StopRequest::StopRequest() {
  if (stop_pipe[0] < 0 && ::pipe2(stop_pipe.data(), O_CLOEXEC | O_NONBLOCK) != 0)
    stop_pipe = {-1, -1};
  struct sigaction action{};
  action.sa_handler = &on_stop_signal;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
}

StopRequest::~StopRequest() {
  ::signal(SIGINT, SIG_DFL);
  ::signal(SIGTERM, SIG_DFL);
}

bool StopRequest::requested() const { return stop_count.load() > 0; }
int StopRequest::descriptor() const { return stop_pipe[0]; }

bool StopRequest::wait(Nanos span) const {
  const Nanos end = deadline_after(monotonic_now(), span);
  while (!requested()) {
    const int64_t left_ms = (end - monotonic_now()).count / 1'000'000;
    if (left_ms <= 0) break;
    pollfd watched{stop_pipe[0], POLLIN, 0};
    ::poll(&watched, 1, static_cast<int>(std::min<int64_t>(left_ms, 60'000)));
  }
  return requested();
}

WaitsRequest::WaitsRequest() {
  if (waits_pipe[0] < 0 && ::pipe2(waits_pipe.data(), O_CLOEXEC | O_NONBLOCK) != 0)
    waits_pipe = {-1, -1};
  struct sigaction action{};
  action.sa_handler = &on_waits_signal;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGUSR1, &action, nullptr);
}

WaitsRequest::~WaitsRequest() { ::signal(SIGUSR1, SIG_IGN); }

int WaitsRequest::descriptor() const { return waits_pipe[0]; }

void WaitsRequest::answer(int descriptor, const std::vector<std::string>& lines) {
  std::array<char, 64> asked{};
  if (::read(descriptor, asked.data(), asked.size()) <= 0) return;
  for (const std::string& line : lines) std::fprintf(stderr, "waits: %s\n", line.c_str());
  if (lines.empty()) std::fprintf(stderr, "waits: for nothing\n");
}

ProgressLine::ProgressLine() : started_(monotonic_now()) {}
ProgressLine::~ProgressLine() { clear(); }

void ProgressLine::show(const std::string& text) {
  if (monotonic_now() - started_ < seconds(2) || ::isatty(STDERR_FILENO) == 0) return;
  winsize window{};
  size_t columns = 80;
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 1)
    columns = window.ws_col;
  const std::string cut = text.substr(0, columns - 1);
  std::fprintf(stderr, "\r\033[K%s", cut.c_str());
  std::fflush(stderr);
  shown_ = true;
}

void ProgressLine::clear() {
  if (!shown_) return;
  std::fputs("\r\033[K", stderr);
  std::fflush(stderr);
  shown_ = false;
}

}  // namespace weightlane::prod
