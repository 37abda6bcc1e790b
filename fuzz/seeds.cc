// Writes the seed corpora: fuzz_seeds FOLDER makes FOLDER/<target>/<name>.seed anew.
//
// Seeds are valid input, made by the code that makes it in life, so a fuzzer starts behind the
// first checks instead of in front of them. Files of other names (what fuzzers have found) stay.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "flow/assert.h"
#include "net/codec.h"
#include "prod/file_descriptor.h"
#include "prod/rpc.h"
#include "prod/safetensors.h"
#include "prod/tcp_wire.h"
#include "prod/unix_channel.h"
#include "prod/verbs_wire.h"
#include "sim/trace_file.h"

namespace weightlane {
namespace {

class Corpus {
 public:
  Corpus(const std::filesystem::path& root, const std::string& target) : folder_(root / target) {
    std::filesystem::create_directories(folder_);
  }
  void add(const std::string& name, std::span<const uint8_t> bytes) const {
    std::ofstream out(folder_ / (name + ".seed"), std::ios::binary | std::ios::trunc);
    out.write(reinterpret_cast<const char*>(bytes.data()),
              static_cast<std::streamsize>(bytes.size()));
    WL_ASSERT(static_cast<bool>(out.flush()));
  }
  void add(const std::string& name, const std::string& text) const {
    add(name, {reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  }

 private:
  std::filesystem::path folder_;
};

void append(Bytes& to, std::span<const uint8_t> bytes) {
  to.insert(to.end(), bytes.begin(), bytes.end());
}

// ---------------------------------------------------------------- messages

constexpr net::Content kContent{Generation{1}, VersionId{12}, ContentId{5}};
constexpr net::LayoutSummary kLayout{0x1122, 0x3344, 3, 4096};

std::vector<net::RequestBody> request_bodies() {
  const net::VersionSpec exact{net::VersionKind::kExact, VersionId{12}, 0};
  const net::VersionSpec latest{net::VersionKind::kLatest, VersionId{}, 1};
  return {
      net::OpenRequest{"model", "trainer-0", ShardIndex{1}, 2, "boot-id", "127.0.0.1:7000/ab"},
      net::GroupCallRequest{CallNumber{1}, net::CallKind::kPublish, exact, Nanos{}, kLayout},
      net::GroupCallRequest{CallNumber{2}, net::CallKind::kUpdate, latest, seconds(60), kLayout},
      net::PollRequest{7, 1 << 20, seconds(1)},
      net::ReleaseRequest{AssignmentId{9}, net::ReleaseKind::kFailed, 100, "no route"},
      net::AbortRequest{CallNumber{3}, ErrorCode::kTimeout, "gave up"},
      net::CloseRequest{},
      net::ListRequest{"model"}};
}

net::EventsResponse some_events() {
  const net::SourceDescription source{"model/trainer-0", Incarnation{77}, "127.0.0.1:7000/ab",
                                      "boot-id", true};
  net::EventsResponse events;
  events.events = {
      {1, net::AssignedEvent{CallNumber{2}, AssignmentId{9}, kContent, source}},
      {2, net::DrainedEvent{CallNumber{1}}},
      {3, net::DecidedEvent{CallNumber{2}, true, kContent, ErrorCode::kInvalidArgument, ""}},
      {4, net::YieldEvent{AssignmentId{9}}},
      {5, net::AbandonEvent{AssignmentId{9}, "the source is gone"}}};
  return events;
}

net::WelcomeMessage some_welcome() {
  net::WelcomeMessage welcome;
  welcome.stamp.value = 0xfeed;
  welcome.control = {3, 0x7000, 16};
  welcome.digests = {4, 0x8000, 64};
  welcome.slice_bytes = 1 << 20;
  welcome.regions = {{1, 0x1000, 4096}, {2, 0x9000, 8192}};
  welcome.tensors = {{0, 0}, {0, 2048}, {1, 0}};
  return welcome;
}

void make_codec(const std::filesystem::path& root) {
  const Corpus corpus(root, "codec");
  const net::RequestHeader header{Incarnation{77}, 1, 4};
  int number = 0;
  for (const net::RequestBody& body : request_bodies()) {
    corpus.add("request-" + std::to_string(number++), net::encode(net::Request{header, body}));
  }
  net::ListResponse list;
  list.replicas = {{"model", "rollout-1", kContent, net::ReplicaState::kReceiving, 2, 8192, 4096,
                    "trainer-0", false, false, false, "east"}};
  list.open_shards = 4;
  const net::Failure failure{net::FailureKind::kError, ErrorCode::kTimeout, "late", seconds(1),
                             Incarnation{5}};
  const net::OpenedResponse opened{CallNumber{1}, seconds(1), seconds(10), seconds(30)};
  number = 0;
  for (const net::ResponseBody& body : std::initializer_list<net::ResponseBody>{
           failure, opened, net::AcceptedResponse{}, some_events(), list}) {
    corpus.add("response-" + std::to_string(number++), net::encode(net::Response{BootId{3}, body}));
  }
  corpus.add("hello", net::encode(net::HelloMessage{Incarnation{77}, AssignmentId{9}, kContent,
                                                    kLayout, "model/rollout-1/0"}));
  corpus.add("welcome", net::encode(some_welcome()));
}

void make_verbs_wire(const std::filesystem::path& root) {
  const Corpus corpus(root, "verbs_wire");
  const auto add = [&corpus](const std::string& name, const Bytes& framed) {
    corpus.add(name, std::span(framed).subspan(prod::kVerbsFrameHeader));
  };
  const prod::PairAddress address{{0xfe, 0x80}, 1, 0x123456, 0x654321};
  const prod::PairLimits limits{5, 16, 1ull << 30};
  add("request", prod::encode(prod::ConnectRequest{7, address, limits, Bytes{1, 2, 3}}));
  add("reply", prod::encode(prod::ConnectReply{std::nullopt, address, limits, Bytes{4, 5}}));
  add("refusal", prod::encode(prod::ConnectReply{Error{ErrorCode::kRefused, "no"}, {}, {}, {}}));
}

// ---------------------------------------------------------------- text

void make_safetensors(const std::filesystem::path& root) {
  const Corpus corpus(root, "safetensors");
  prod::SafetensorsLayout layout;
  corpus.add("empty", prod::format_safetensors_header(layout));
  layout.metadata = {{"format", "pt"}, {"quote\"", "\\u00e9"}};
  layout.tensors = {{"wte", "BF16", {50257, 768}, 0, 77194752},
                    {"scalar", "F32", {}, 77194752, 77194756},
                    {"none", "I64", {0, 3}, 77194756, 77194756}};
  layout.data_bytes = 77194756;
  corpus.add("three", prod::format_safetensors_header(layout));
  corpus.add("wrong-size", R"({"a":{"dtype":"F8_E4M3","shape":[2,2],"data_offsets":[0,5]}})");
  corpus.add("wrapping",
             R"({"a":{"dtype":"F64","shape":[4294967296,4294967296],"data_offsets":[0,0]}})");
}

void make_trace(const std::filesystem::path& root) {
  const Corpus corpus(root, "trace");
  sim::TraceFile trace;
  corpus.add("bare", sim::format_trace(trace));
  trace.story = "P1 at 3.204 s, replica r2 shard 1: granule 17 has another publication's bytes";
  trace.build = "3f2c";
  trace.scenario = "default";
  trace.seed = 4711;
  trace.promise = "P1";
  trace.hash = 0x8c6e;
  trace.events = 5120;
  trace.config = {{"shards", "3"}, {"quiet", "1"}};
  trace.choices = {{sim::StreamId{35}, 12, 4, 2, "sim.data.delay"}};
  trace.faults = {"crash host 7 at 1.502 s"};
  corpus.add("full", sim::format_trace(trace));
}

void make_address(const std::filesystem::path& root) {
  const Corpus corpus(root, "address");
  int number = 0;
  for (const char* text :
       {"127.0.0.1:7000", "[::1]:7000", "[fe80::1%lo]:7000", "[::ffff:1.2.3.4]:80", "unix:/tmp/x",
        "localhost:0", "10.0.0.1:7000,[fd00::1]:7000/0123456789abcdef", "boot/123/456/@socket/ab12",
        "2605:340:cd51:4900:ff:ff:ff:ff:7000", "[fe80::1%lo]:7000/0"}) {
    corpus.add("address-" + std::to_string(number++), std::string(text));
  }
}

// ---------------------------------------------------------------- streams

Bytes hello_of(uint64_t service, std::span<const uint8_t> said) {
  prod::TcpHello hello;
  hello.id = service;
  hello.length = said.size();
  Bytes bytes;
  append(bytes, prod::frame_bytes(hello));
  append(bytes, said);
  return bytes;
}

void make_tcp_source(const std::filesystem::path& root) {
  const Corpus corpus(root, "tcp_source");
  const Bytes said{1, 2, 3};
  corpus.add("nobody", hello_of(99, said));
  corpus.add("refused", hello_of(0, Bytes{0xff}));
  Bytes reads = hello_of(0, said);
  // Two that may, one from beyond the end.
  for (const auto& [offset, length] : {std::pair{0, 1500}, {1499, 1}, {1499, 2}}) {
    prod::TcpRequest request;
    request.sequence = static_cast<uint64_t>(offset);
    request.region = 1;
    request.offset = static_cast<uint64_t>(offset);
    request.length = static_cast<uint64_t>(length);
    append(reads, prod::frame_bytes(request));
  }
  corpus.add("reads", reads);
  Bytes joins;
  prod::TcpHello join;
  join.kind = prod::TcpKind::kStream;
  join.id = 5;
  append(joins, prod::frame_bytes(join));
  corpus.add("joins-nobody", joins);
}

void make_unix_channel(const std::filesystem::path& root) {
  const Corpus corpus(root, "unix_channel");
  Bytes bytes{4};  // in pieces of 64 bytes
  for (const uint32_t kind : {1U, 2U, 3U}) {
    prod::UnixFrame frame;
    frame.kind = kind;
    frame.a = 7;
    frame.length = (kind - 1) * 100;
    append(bytes, prod::frame_bytes(frame));
    append(bytes, Bytes(frame.length, static_cast<uint8_t>(kind)));
  }
  corpus.add("three", bytes);
  prod::UnixFrame large;
  large.length = 1 << 30;
  Bytes claims{255};
  append(claims, prod::frame_bytes(large));
  corpus.add("claims-a-gibibyte", claims);
}

void make_metrics(const std::filesystem::path& root) {
  const Corpus corpus(root, "metrics");
  corpus.add("page", std::string("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"));
  corpus.add("other", std::string("GET / HTTP/1.0\r\n\r\n"));
  corpus.add("post", std::string("POST /metrics HTTP/1.1\r\nContent-Length: 1\r\n\r\nx"));
}

void make_tcp_reader(const std::filesystem::path& root) {
  const Corpus corpus(root, "tcp_reader");
  prod::TcpReply reply;
  reply.length = 4;
  Bytes bytes{1, 7, 0, 99, 0x80};  // two READs: 8 bytes, and 100 with a checksum
  append(bytes, prod::frame_bytes(reply));
  append(bytes, Bytes{1, 2, 3, 4});
  Bytes failing = bytes;
  for (const uint64_t length : {8, 100}) {
    prod::TcpResponse response;
    response.sequence = length == 8 ? 0 : 1;
    response.length = length;
    append(bytes, prod::frame_bytes(response));
    append(bytes, Bytes(length, static_cast<uint8_t>(length)));
  }
  corpus.add("two", bytes);
  prod::TcpResponse refused;
  refused.status = static_cast<uint32_t>(net::CompletionStatus::kRemoteAccess);
  append(failing, prod::frame_bytes(refused));
  corpus.add("refused-read", failing);
  reply.verdict = prod::TcpVerdict::kRefused;
  Bytes refusal{0, 0, 0};
  append(refusal, prod::frame_bytes(reply));
  append(refusal, Bytes{'b', 'u', 's', 'y'});
  corpus.add("refused", refusal);
}

// What a real client sends: it does not wait for the answer to its first message.
Bytes said_by_client(const std::vector<net::Request>& requests) {
  const std::string path = "/tmp/weightlane-fuzz-seeds-" + std::to_string(getpid());
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::memcpy(name.sun_path, path.c_str(), path.size());
  const prod::FileDescriptor listening(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  WL_ASSERT(bind(listening.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name) == 0);
  WL_ASSERT(listen(listening.get(), 1) == 0);
  {
    prod::Log log({prod::LogLevel::kError, prod::LogFormat::kKeyValue, [](std::string_view) {}});
    prod::EventLoop loop;
    prod::RpcControlPlane plane(&loop, &log);
    const auto soon = [&loop] { return loop.runtime().now() + millis(50); };
    auto connection = loop.run(plane.connect("unix:" + path, soon()));
    WL_ASSERT(connection.ok());
    for (const net::Request& request : requests) {
      (void)loop.run((*connection)->call(request, soon()));
    }
  }
  unlink(path.c_str());
  const prod::FileDescriptor peer(accept(listening.get(), nullptr, nullptr));
  Bytes bytes{255};  // in one piece
  std::array<uint8_t, 4096> piece;
  for (ssize_t got = 0; (got = recv(peer.get(), piece.data(), piece.size(), 0)) > 0;) {
    append(bytes, std::span(piece).first(static_cast<size_t>(got)));
  }
  return bytes;
}

void make_rpc(const std::filesystem::path& root) {
  const Corpus corpus(root, "rpc");
  std::vector<net::Request> requests;
  for (const net::RequestBody& body : request_bodies()) {
    requests.push_back({{Incarnation{77}, 1, requests.size()}, body});
  }
  corpus.add("one", said_by_client({requests.front()}));
  corpus.add("all", said_by_client(requests));
  corpus.add("no-rpc", std::string("\x01GET / HTTP/1.1\r\n\r\n"));
}

// ---------------------------------------------------------------- scripts

// See fuzz/directory_fuzz.cc: pairs of (what, handle), then what that takes.
void make_directory(const std::filesystem::path& root) {
  const Corpus corpus(root, "directory");
  // Handle 0 publishes version 1 as replica a; handle 1, replica b, replicates it.
  const Bytes publish{1, 0, 0, 0, 1, 2, 0, 0, 4, 5, 0};
  const Bytes replicate{0, 1, 1, 1, 2, 1, 130, 5, 5, 1, 7, 1, 0, 0, 5, 1};
  Bytes pair = publish;
  append(pair, replicate);
  corpus.add("publish", publish);
  corpus.add("replicate", pair);
  Bytes drain = publish;
  append(drain, Bytes{0, 1, 1, 1, 2, 1, 130, 5, 5, 1, 2, 0, 1, 5, 5, 0, 9, 0, 3, 5, 1});
  corpus.add("unpublish-under-a-reader", drain);
  Bytes lost = pair;
  append(lost, Bytes{14, 0, 2, 1, 131, 5, 9, 2, 2, 0, 2, 2, 1, 5, 2});
  corpus.add("close", lost);
  // Two shards of one replica, two calls that differ.
  corpus.add("two-shards",
             Bytes{1, 0, 0, 4, 1, 0, 1, 20, 1, 2, 0, 0, 4, 2, 1, 4, 4, 5, 0, 5, 1, 9, 0, 3});
}

}  // namespace
}  // namespace weightlane

int main(int argc, char** argv) {
  using namespace weightlane;
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s FOLDER: writes the seed corpora below it\n", argv[0]);
    return 2;
  }
  const std::filesystem::path root = argv[1];
  make_address(root);
  make_codec(root);
  make_directory(root);
  make_metrics(root);
  make_rpc(root);
  make_safetensors(root);
  make_tcp_reader(root);
  make_tcp_source(root);
  make_trace(root);
  make_unix_channel(root);
  make_verbs_wire(root);
  return 0;
}
