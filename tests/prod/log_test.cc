// Goal: a line is one line that machines can split, whatever is in its fields; levels filter;
// flow's story is at debug. Method: the formatter by table, the Log with a sink of our own.
#include "prod/log.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "prod/event_log.h"

namespace weightlane::prod {
namespace {

TEST(Log, KeyValue) {
  EXPECT_EQ(format_log_line(LogFormat::kKeyValue, "T", LogLevel::kInfo, "rpc.listening",
                            {{"address", "[::1]:7000"},
                             {"bytes", uint64_t{1} << 63},
                             {"delta", -5},
                             {"ratio", 0.25},
                             {"ok", true}}),
            "time=T level=info event=rpc.listening address=[::1]:7000 bytes=9223372036854775808 "
            "delta=-5 ratio=0.25 ok=true");
  EXPECT_EQ(format_log_line(LogFormat::kKeyValue, "T", LogLevel::kError, "x",
                            {{"why", "two words"}, {"q", "a\"b=c\\d\ne\x01"}, {"none", ""}}),
            "time=T level=error event=x why=\"two words\" q=\"a\\\"b=c\\\\d\\ne\\u0001\" "
            "none=\"\"");
}

TEST(Log, Json) {
  EXPECT_EQ(format_log_line(LogFormat::kJson, "T", LogLevel::kWarning, "x",
                            {{"why", "a \"b\"\n"}, {"n", 7}, {"no", false}}),
            "{\"time\":\"T\",\"level\":\"warning\",\"event\":\"x\",\"why\":\"a "
            "\\\"b\\\"\\n\",\"n\":7,\"no\":false}");
}

TEST(Log, LevelsFilterAndTraceIsDebug) {
  std::vector<std::string> lines;
  const auto sink = [&](std::string_view line) { lines.emplace_back(line); };
  flow::TraceEvent event;
  event.what = "handle.published";
  event.a = 12;
  {
    Log log({LogLevel::kInfo, LogFormat::kKeyValue, sink});
    EXPECT_FALSE(log.trace_sink());
    log.debug("hidden", {});
    log.info("shown", {});
  }
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_NE(lines[0].find(" level=info event=shown"), std::string::npos);
  Log log({LogLevel::kDebug, LogFormat::kKeyValue, sink});
  log.trace_sink()(event);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_NE(lines[1].find("level=debug event=handle.published a=12 b=0"), std::string::npos);
}

TEST(Log, LinesOfManyThreadsStayWhole) {
  std::vector<std::string> lines;
  Log log({LogLevel::kInfo, LogFormat::kKeyValue,
           [&](std::string_view line) { lines.emplace_back(line); }});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&log, t] {
      for (int i = 0; i < 200; ++i) log.info("tick", {{"thread", t}, {"i", i}});
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(lines.size(), 800U);
  for (const std::string& line : lines) EXPECT_NE(line.find(" event=tick thread="), line.npos);
}

class CountingObserver final : public ros::HandleObserver {
 public:
  void on_call_ended(ros::HandleName, CallNumber, net::CallKind, bool, ErrorCode, net::Content,
                     Nanos) override {
    ++calls;
  }
  void on_bytes_read(ros::HandleName, uint64_t count, std::string_view) override { bytes += count; }
  int calls = 0;
  uint64_t bytes = 0;
};

TEST(EventLog, WritesAndPassesOn) {
  std::vector<std::string> lines;
  Log log({LogLevel::kInfo, LogFormat::kKeyValue,
           [&](std::string_view line) { lines.emplace_back(line.substr(line.find("level"))); }});
  CountingObserver counter;
  HandleLog handles(&log, &counter);
  const ros::HandleName name{"m", "r 1", ShardIndex{2}};
  handles.on_bytes_read(name, 7, "tcp");
  handles.on_call_ended(name, CallNumber{4}, net::CallKind::kReplicate, true, {},
                        {Generation{1}, VersionId{12}, ContentId{9}}, millis(1500));
  handles.on_call_ended(name, CallNumber{5}, net::CallKind::kUpdate, true, {}, {}, millis(1));
  handles.on_call_ended(name, CallNumber{6}, net::CallKind::kUpdate, false, ErrorCode::kTimeout, {},
                        seconds(2));
  EXPECT_EQ(counter.calls, 3);
  EXPECT_EQ(counter.bytes, 7U);
  const std::string timeout = error_code_name(ErrorCode::kTimeout);
  EXPECT_EQ(lines, (std::vector<std::string>{
                       "level=info event=handle.call_ended model=m replica=\"r 1\" shard=2 "
                       "call=replicate number=4 outcome=ok version=12 seconds=1.5",
                       "level=warning event=handle.call_ended model=m replica=\"r 1\" shard=2 "
                       "call=update number=6 outcome=" +
                           timeout + " version=0 seconds=2"}));
  ServerLog server(&log, nullptr);
  server.on_evicted("m", "r", ShardIndex{1});
  EXPECT_EQ(lines.back(), "level=warning event=server.evicted model=m replica=r shard=1");
}

}  // namespace
}  // namespace weightlane::prod
