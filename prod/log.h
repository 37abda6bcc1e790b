// Log: one line per event, key=value or JSON, to standard error.
//
//     log->info("rpc.listening", {{"address", address}});
//     time=2026-07-31T09:12:44.123456Z level=info event=rpc.listening address=[::1]:7000
//
// An event has a constant name with dots and a few fields; numbers stay numbers in JSON. main makes
// the Log and hands it down; there is no global one. Thread-safe. Nothing secret goes in here.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <variant>

#include "flow/runtime.h"

namespace weightlane::prod {

enum class LogLevel : uint8_t { kDebug, kInfo, kWarning, kError };
enum class LogFormat : uint8_t { kKeyValue, kJson };

class LogField {
 public:
  LogField(std::string_view key, std::string_view value) : key_(key), value_(value) {}
  LogField(std::string_view key, const char* value) : key_(key), value_(std::string_view(value)) {}
  LogField(std::string_view key, const std::string& value)
      : key_(key), value_(std::string_view(value)) {}
  LogField(std::string_view key, bool value) : key_(key), value_(value) {}
  LogField(std::string_view key, double value) : key_(key), value_(value) {}
  template <std::signed_integral Integer>
  LogField(std::string_view key, Integer value) : key_(key), value_(static_cast<int64_t>(value)) {}
  template <std::unsigned_integral Integer>
    requires(!std::same_as<Integer, bool>)
  LogField(std::string_view key, Integer value) : key_(key), value_(static_cast<uint64_t>(value)) {}

  std::string_view key() const { return key_; }
  const std::variant<std::string_view, int64_t, uint64_t, double, bool>& value() const {
    return value_;
  }

 private:
  std::string_view key_;
  std::variant<std::string_view, int64_t, uint64_t, double, bool> value_;
};
using LogFields = std::initializer_list<LogField>;

// One line without its end: for the sink below, and for tests.
std::string format_log_line(LogFormat format, std::string_view time, LogLevel level,
                            std::string_view event, LogFields fields);

class Log {
 public:
  struct Options {
    LogLevel level = LogLevel::kInfo;
    LogFormat format = LogFormat::kKeyValue;
    std::function<void(std::string_view line)> sink;  // empty: standard error
  };
  explicit Log(Options options);
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  bool enabled(LogLevel level) const { return level >= level_; }
  void write(LogLevel level, std::string_view event, LogFields fields);
  void debug(std::string_view event, LogFields fields) { write(LogLevel::kDebug, event, fields); }
  void info(std::string_view event, LogFields fields) { write(LogLevel::kInfo, event, fields); }
  void warning(std::string_view event, LogFields fields) {
    write(LogLevel::kWarning, event, fields);
  }
  void error(std::string_view event, LogFields fields) { write(LogLevel::kError, event, fields); }

  // Flow's story at debug level: for EventLoop::Options::on_trace. The Log outlives the loop.
  std::function<void(const flow::TraceEvent&)> trace_sink();

 private:
  struct Impl;
  const LogLevel level_;
  const LogFormat format_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weightlane::prod
