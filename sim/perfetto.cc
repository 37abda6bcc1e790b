// Lines of the story become spans and marks; READs and messages come from the events. Times are in
// microseconds, as the format wants them, with the nanoseconds behind the point.
#include "sim/perfetto.h"

#include <cstdio>

namespace weightlane::sim {
namespace {

constexpr uint32_t kMessages = 1;  // number of the track of messages in each process
constexpr uint32_t kMarks = 2;     // and of what is of no shard
constexpr uint32_t kFirstShard = 10;
constexpr uint64_t kPoll = 2;    // index of PollRequest in net::RequestBody: the heartbeat
constexpr uint64_t kEvents = 3;  // of its answer in net::ResponseBody

constexpr const char* kRequests[] = {"open", "call", "poll", "release", "abort", "close", "list"};

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += ' ';
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string micros_text(Nanos at) {
  char text[40];
  std::snprintf(text, sizeof text, "%lld.%03lld", static_cast<long long>(at.count / 1000),
                static_cast<long long>(at.count % 1000));
  return text;
}

std::string head(const char* phase, Nanos at, uint32_t process, uint32_t number) {
  return std::string("{\"ph\":\"") + phase + "\",\"ts\":" + micros_text(at) +
         ",\"pid\":" + std::to_string(process) + ",\"tid\":" + std::to_string(number);
}

bool is(const std::string& what, const char* wanted) { return what == wanted; }

}  // namespace

PerfettoTrace::PerfettoTrace(World& world, StoryTeller* next) : world_(world), next_(next) {}

void PerfettoTrace::add(const std::string& event) {
  if (!events_.empty()) events_ += ",\n";
  events_ += event;
}

uint32_t PerfettoTrace::process(const std::string& host) {
  const auto known = processes_.find(host);
  if (known != processes_.end()) return known->second;
  const auto number = static_cast<uint32_t>(processes_.size() + 1);
  processes_.emplace(host, number);
  const std::string place = ",\"pid\":" + std::to_string(number);
  add("{\"ph\":\"M\",\"name\":\"process_name\"" + place + ",\"args\":{\"name\":" + quoted(host) +
      "}}");
  add("{\"ph\":\"M\",\"name\":\"process_sort_index\"" + place +
      ",\"args\":{\"sort_index\":" + std::to_string(number) + "}}");
  for (const auto& [track, name] :
       {std::pair{kMessages, "messages"}, std::pair{kMarks, "process"}}) {
    add("{\"ph\":\"M\",\"name\":\"thread_name\"" + place + ",\"tid\":" + std::to_string(track) +
        ",\"args\":{\"name\":\"" + name + "\"}}");
  }
  return number;
}

PerfettoTrace::Track& PerfettoTrace::track(const std::string& host, const std::string& shard) {
  const uint32_t number = process(host);
  const auto [at, fresh] = tracks_.try_emplace({host, shard});
  Track& track = at->second;
  if (!fresh) return track;
  track.process = number;
  track.number = kFirstShard + static_cast<uint32_t>(tracks_.size()) * 2;
  for (const bool transfers : {false, true}) {
    add("{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":" + std::to_string(number) +
        ",\"tid\":" + std::to_string(track.number + transfers) +
        ",\"args\":{\"name\":" + quoted("shard " + shard + (transfers ? " transfers" : "")) + "}}");
  }
  return track;
}

void PerfettoTrace::begin(Nanos at, const Track& track, const std::string& name,
                          const std::string& detail) {
  add(head("B", at, track.process, track.number) + ",\"name\":" + quoted(name) +
      ",\"args\":{\"detail\":" + quoted(detail) + "}}");
}

void PerfettoTrace::end(Nanos at, const Track& track) {
  add(head("E", at, track.process, track.number) + "}");
}

void PerfettoTrace::mark(Nanos at, uint32_t process, uint32_t number, const std::string& name,
                         const std::string& detail, char scope) {
  add(head("i", at, process, number) + ",\"s\":\"" + scope + "\",\"name\":" + quoted(name) +
      ",\"args\":{\"detail\":" + quoted(detail) + "}}");
}

void PerfettoTrace::end_open(Nanos at, Track& track) {
  Track transfers = track;
  ++transfers.number;
  if (track.transfer_open) end(at, transfers);
  if (track.call_open) end(at, track);
  track.transfer_open = track.call_open = false;
}

void PerfettoTrace::line(Nanos at, const std::string& who, const std::string& what,
                         const std::string& detail) {
  if (next_ != nullptr) next_->line(at, who, what, detail);
  const uint32_t number = process(who);
  if (is(what, "crashed")) {
    for (auto& [name, track] : tracks_) {
      if (name.first == who) end_open(at, track);
    }
  }
  if (is(what, "fault") || is(what, "crashed") || is(what, "healed") || who == "checker") {
    mark(at, number, kMarks, is(what, "fault") ? detail : what, detail,
         who == "world" || who == "checker" ? 'g' : 'p');
    return;
  }
  // What a shard does begins with the shard's name.
  const size_t blank = detail.find(' ');
  const std::string shard = detail.substr(0, blank);
  if (is(what, "assigned")) {
    add(head("X", at, number, kMarks) +
        ",\"dur\":1,\"name\":\"assigned\",\"args\":{\"detail\":" + quoted(detail) + "}}");
    const uint64_t id = ++next_arrow_;
    arrow(at, number, kMarks, id, true);
    arrows_[shard] = id;
    return;
  }
  if (shard.find('/') == std::string::npos || who == "server") {
    mark(at, number, kMarks, what, detail, 't');
    return;
  }
  Track& own = track(who, shard);
  Track transfers = own;
  ++transfers.number;
  const std::string rest = blank == std::string::npos ? "" : detail.substr(blank + 1);
  if (is(what, "call began")) {
    end_open(at, own);
    begin(at, own, rest, detail);
    own.call_open = true;
  } else if (is(what, "call ended")) {
    end_open(at, own);
    mark(at, own.process, own.number, what, detail, 't');
  } else if (is(what, "source connected")) {
    if (own.transfer_open) end(at, transfers);
    begin(at, transfers, "transfer, " + rest, detail);
    own.transfer_open = true;
    const auto assigned = arrows_.find(shard);
    if (assigned != arrows_.end())
      arrow(at, own.process, transfers.number, assigned->second, false);
    if (assigned != arrows_.end()) arrows_.erase(assigned);
  } else if (is(what, "source failed") && own.transfer_open) {
    end(at, transfers);
    own.transfer_open = false;
    mark(at, own.process, transfers.number, what, detail, 't');
  } else {
    mark(at, own.process, own.number, what, detail, 't');
  }
}

void PerfettoTrace::message(const EventRecord& record) {
  const bool request = record.kind == EventKind::kRequest;
  if (record.c == (request ? kPoll : kEvents)) return;
  const uint32_t number = process(world_.host(record.host).place().name);
  const std::string kind =
      request && record.c < std::size(kRequests) ? kRequests[record.c] : "request";
  add(head("X", record.at, number, kMessages) +
      ",\"dur\":1,\"name\":" + quoted(request ? kind : "answer") + "}");
}

// An arrow from the server's decision to the reader that follows it.
void PerfettoTrace::arrow(Nanos at, uint32_t process, uint32_t number, uint64_t id, bool begins) {
  add(head(begins ? "s" : "f", at, process, number) + ",\"id\":" + std::to_string(id) +
      ",\"cat\":\"assignment\",\"name\":\"assigned\"" + (begins ? "" : ",\"bp\":\"e\"") + "}");
}

void PerfettoTrace::on_event(const EventRecord& record) {
  switch (record.kind) {
    case EventKind::kRequest:
    case EventKind::kResponse:
      return message(record);
    case EventKind::kReadPosted:
    case EventKind::kCompletion:
      break;
    default:
      return;
  }
  const ReadKey key{record.a, record.b};
  const uint32_t number = process(world_.host(record.host).place().name);
  const auto known = reads_.find(key);
  if (known != reads_.end()) {
    end_read(record.at, known->second);
    reads_.erase(known);
  }
  if (record.kind == EventKind::kCompletion) return;
  const Read read{++next_read_, number, record.a};
  reads_.emplace(key, read);
  add(read_head("b", record.at, read) + ",\"args\":{\"bytes\":" + std::to_string(record.c) + "}}");
}

void PerfettoTrace::end_read(Nanos at, const Read& read) { add(read_head("e", at, read) + "}"); }

std::string PerfettoTrace::read_head(const char* phase, Nanos at, const Read& read) {
  return head(phase, at, read.process, kMessages) +
         ",\"cat\":\"read\",\"id\":" + std::to_string(read.id) + ",\"name\":\"READ, queue pair " +
         std::to_string(read.pair) + "\"";
}

std::string PerfettoTrace::finish(Nanos at) {
  for (auto& [name, track] : tracks_) end_open(at, track);
  for (const auto& [key, read] : reads_) end_read(at, read);
  reads_.clear();
  return "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n" + events_ + "\n]}\n";
}

}  // namespace weightlane::sim
