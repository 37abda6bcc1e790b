// Lines are put together here and written whole by spdlog's standard-error sink, under its lock.
#include "prod/log.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <time.h>

#include <array>
#include <cstdio>
#include <mutex>
#include <utility>

namespace weightlane::prod {
namespace {

const char* level_name(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kError:
      return "error";
  }
  return "error";
}

spdlog::level::level_enum spdlog_level(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

// Backslashes, quotes and control characters, so that a line stays a line.
void append_quoted(std::string& line, std::string_view text) {
  line += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      line += '\\';
      line += c;
    } else if (c == '\n') {
      line += "\\n";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      std::array<char, 8> escape{};
      std::snprintf(escape.data(), escape.size(), "\\u%04x", static_cast<unsigned>(c) & 0xff);
      line += escape.data();
    } else {
      line += c;
    }
  }
  line += '"';
}

bool plain(std::string_view text) {
  if (text.empty()) return false;
  for (const char c : text) {
    if (static_cast<unsigned char>(c) <= 0x20 || c == '"' || c == '\\' || c == '=' || c == 0x7f) {
      return false;
    }
  }
  return true;
}

void append_value(std::string& line, LogFormat format, const LogField& field) {
  if (const auto* text = std::get_if<std::string_view>(&field.value())) {
    if (format == LogFormat::kKeyValue && plain(*text)) {
      line += *text;
    } else {
      append_quoted(line, *text);
    }
  } else if (const auto* number = std::get_if<int64_t>(&field.value())) {
    line += std::to_string(*number);
  } else if (const auto* natural = std::get_if<uint64_t>(&field.value())) {
    line += std::to_string(*natural);
  } else if (const auto* real = std::get_if<double>(&field.value())) {
    std::array<char, 32> digits{};
    std::snprintf(digits.data(), digits.size(), "%.9g", *real);
    line += digits.data();
  } else {
    line += std::get<bool>(field.value()) ? "true" : "false";
  }
}

void append_field(std::string& line, LogFormat format, const LogField& field) {
  if (format == LogFormat::kJson) {
    if (line.size() > 1) line += ',';
    append_quoted(line, field.key());
    line += ':';
  } else {
    if (!line.empty()) line += ' ';
    line += field.key();
    line += '=';
  }
  append_value(line, format, field);
}

std::string wall_clock_text() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  tm parts{};
  gmtime_r(&now.tv_sec, &parts);
  std::array<char, 40> text{};
  const size_t length = strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%S", &parts);
  std::snprintf(text.data() + length, text.size() - length, ".%06ldZ", now.tv_nsec / 1000);
  return text.data();
}

class FunctionSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit FunctionSink(std::function<void(std::string_view)> write) : write_(std::move(write)) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    write_(std::string_view(message.payload.data(), message.payload.size()));
  }
  void flush_() override {}

 private:
  std::function<void(std::string_view)> write_;
};

spdlog::sink_ptr make_sink(std::function<void(std::string_view)> write) {
  if (write) return std::make_shared<FunctionSink>(std::move(write));
  return std::make_shared<spdlog::sinks::stderr_sink_mt>();
}

}  // namespace

std::string format_log_line(LogFormat format, std::string_view time, LogLevel level,
                            std::string_view event, LogFields fields) {
  std::string line;
  line.reserve(160);
  if (format == LogFormat::kJson) line += '{';
  append_field(line, format, LogField("time", time));
  append_field(line, format, LogField("level", level_name(level)));
  append_field(line, format, LogField("event", event));
  for (const LogField& field : fields) append_field(line, format, field);
  if (format == LogFormat::kJson) line += '}';
  return line;
}

struct Log::Impl {
  explicit Impl(spdlog::sink_ptr sink) : logger("weightlane", std::move(sink)) {}
  spdlog::logger logger;
};

Log::Log(Options options)
    : level_(options.level),
      format_(options.format),
      impl_(std::make_unique<Impl>(make_sink(std::move(options.sink)))) {
  impl_->logger.set_pattern("%v");
  impl_->logger.set_level(spdlog::level::trace);
}

Log::~Log() = default;

void Log::write(LogLevel level, std::string_view event, LogFields fields) {
  if (!enabled(level)) return;
  const std::string line = format_log_line(format_, wall_clock_text(), level, event, fields);
  impl_->logger.log(spdlog_level(level), spdlog::string_view_t(line.data(), line.size()));
}

std::function<void(const flow::TraceEvent&)> Log::trace_sink() {
  if (!enabled(LogLevel::kDebug)) return {};
  return [this](const flow::TraceEvent& event) {
    debug(event.what, {{"a", event.a}, {"b", event.b}, {"c", event.c}, {"detail", event.detail}});
  };
}

}  // namespace weightlane::prod
