// Goal: what is counted appears under its name; the port answers scrapers, and bad clients get
// nothing out of it. Method: the observers called by hand; a scrape over loopback by raw socket.
#include "prod/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <string>
#include <thread>
#include <vector>

#include "prod/control_address.h"
#include "prod/metrics_port.h"

namespace weightlane::prod {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr ros::HandleName kName{"m", "r", ShardIndex{2}};
constexpr net::Content kContent{Generation{1}, VersionId{12}, ContentId{5}};

TEST(Metrics, HandlesAreCounted) {
  Metrics metrics;
  ros::HandleObserver& handles = metrics.handles();
  handles.on_bytes_read(kName, 1000, "tcp");
  handles.on_bytes_read(kName, 24, "tcp");
  handles.on_bytes_read(kName, 7, "verbs");
  handles.on_call_ended(kName, CallNumber{1}, net::CallKind::kReplicate, true, {}, kContent,
                        millis(3));
  handles.on_call_ended(kName, CallNumber{2}, net::CallKind::kUpdate, false, ErrorCode::kTimeout,
                        {}, seconds(3));
  handles.on_stamp(kName, Stamp{77}, kContent);
  handles.on_registered_bytes(kName, 4096);
  handles.on_registered_bytes({"m", "r", ShardIndex{3}}, 100);
  const std::string text = metrics.text();
  EXPECT_THAT(text, HasSubstr("weightlane_read_bytes_total{transport=\"tcp\"} 1024\n"));
  EXPECT_THAT(text, HasSubstr("weightlane_read_bytes_total{transport=\"verbs\"} 7\n"));
  EXPECT_THAT(text, HasSubstr("weightlane_calls_total{call=\"replicate\",outcome=\"ok\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("weightlane_call_seconds_bucket{call=\"replicate\",le=\"0.004\"} 1"));
  EXPECT_THAT(text, HasSubstr("weightlane_call_seconds_count{call=\"replicate\"} 1\n"));
  EXPECT_THAT(text, Not(HasSubstr("weightlane_call_seconds_count{call=\"update\"}")));
  EXPECT_THAT(text,
              HasSubstr("weightlane_held_version{model=\"m\",replica=\"r\",shard=\"2\"} 12\n"));
  EXPECT_THAT(text, HasSubstr("weightlane_registered_bytes 4196\n"));
}

TEST(Metrics, WhatIsReturnedIsGone) {
  Metrics metrics;
  ros::HandleObserver& handles = metrics.handles();
  handles.on_stamp(kName, Stamp{77}, kContent);
  handles.on_registered_bytes(kName, 4096);
  handles.on_stamp(kName, Stamp{}, kContent);
  handles.on_registered_bytes(kName, 0);
  EXPECT_THAT(metrics.text(), HasSubstr("weightlane_registered_bytes 0\n"));
  EXPECT_THAT(metrics.text(), Not(HasSubstr("weightlane_held_version{")));
}

TEST(Metrics, TheServerIsCounted) {
  Metrics metrics;
  ros::ServerObserver& server = metrics.server();
  server.on_request({{}, net::PollRequest{}}, false);
  server.on_request({{}, net::PollRequest{}}, true);
  server.on_request({{}, net::ListRequest{}}, false);
  server.on_visible("m", "a", kContent);
  server.on_visible("m", "b", kContent);
  server.on_hidden("m", "a", kContent);
  server.on_evicted("m", "a", ShardIndex{0});
  server.on_decided("m", "a", CallNumber{1}, net::CallKind::kPublish, true, {}, kContent);
  server.on_assigned("b", "a", ShardIndex{0}, kContent);
  const std::string text = metrics.text();
  EXPECT_THAT(text,
              HasSubstr("weightlane_server_requests_total{kind=\"poll\",repeated=\"yes\"} 1"));
  EXPECT_THAT(text, HasSubstr("weightlane_server_requests_total{kind=\"list\",repeated=\"no\"} 1"));
  EXPECT_THAT(text, HasSubstr("weightlane_server_visible_replicas 1\n"));
  EXPECT_THAT(text, HasSubstr("weightlane_server_evictions_total 1\n"));
  EXPECT_THAT(text,
              HasSubstr("weightlane_server_decisions_total{call=\"publish\",outcome=\"ok\"} 1"));
  EXPECT_THAT(text, HasSubstr("weightlane_server_assignments_total 1\n"));
}

TEST(Metrics, ObserversMayBeCalledFromManyThreads) {
  Metrics metrics;
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&metrics, t] {
      for (uint64_t i = 0; i < 500; ++i) {
        metrics.handles().on_bytes_read(kName, 1, "tcp");
        metrics.handles().on_registered_bytes({"m", "r", ShardIndex{t}}, i);
        if (i % 100 == 0) (void)metrics.text();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(metrics.text(), HasSubstr("{transport=\"tcp\"} 2000\n"));
  EXPECT_THAT(metrics.text(), HasSubstr("weightlane_registered_bytes 1996\n"));
}

// Blocking, on a thread of its own: what the port answers until it closes.
std::string ask(const std::string& address, const std::string& request) {
  const SocketName name = resolve(*parse_control_address(address), false).value().front();
  const FileDescriptor socket_fd(socket(name.family(), SOCK_STREAM, 0));
  if (connect(socket_fd.get(), name.get(), name.length) != 0) return "cannot connect";
  (void)send(socket_fd.get(), request.data(), request.size(), MSG_NOSIGNAL);
  std::string answer;
  char piece[4096];
  for (;;) {
    const ssize_t count = recv(socket_fd.get(), piece, sizeof piece, 0);
    if (count <= 0) return answer;
    answer.append(piece, static_cast<size_t>(count));
  }
}

class MetricsPortTest : public testing::TestWithParam<const char*> {
 protected:
  std::string asked(const std::string& request) {
    std::string answer;
    std::thread client([&] {
      answer = ask(port_->address(), request);
      loop_.stop();
    });
    loop_.run();
    client.join();
    return answer;
  }
  EventLoop loop_;
  Metrics metrics_;
  std::unique_ptr<MetricsPort> port_ =
      MetricsPort::serve(&loop_, GetParam(), [this] { return metrics_.text(); }).value();
};

TEST_P(MetricsPortTest, Answers) {
  metrics_.handles().on_bytes_read(kName, 5, "tcp");
  const std::string answer = asked("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(answer, HasSubstr("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("weightlane_read_bytes_total{transport=\"tcp\"} 5\n"));
  EXPECT_THAT(asked("GET / HTTP/1.1\r\n\r\n"), HasSubstr("404 Not Found"));
  EXPECT_THAT(asked("POST /metrics HTTP/1.1\r\n\r\n"), HasSubstr("400 Bad Request"));
  EXPECT_EQ(asked(std::string(9'000, 'x')), "");
  EXPECT_THAT(asked(std::string("\x16\x03\x01\r\n\r\n")), HasSubstr("400 Bad Request"));
}

TEST_P(MetricsPortTest, APortInUseIsOneClearLine) {
  const auto second = MetricsPort::serve(&loop_, port_->address(), [] { return ""; });
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, ErrorCode::kResourceExhausted);
  EXPECT_THAT(second.error().message, HasSubstr("is in use"));
}

INSTANTIATE_TEST_SUITE_P(All, MetricsPortTest, testing::Values("127.0.0.1:0", "[::1]:0"));

}  // namespace
}  // namespace weightlane::prod
