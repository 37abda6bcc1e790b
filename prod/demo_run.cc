// The demo's director. A worker is told what to do in lines ("publish 3", "update 3", "strike ...")
// and answers with JSON events; everything else is bookkeeping of who still owes an answer.
#include "prod/demo_run.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <vector>

#include "prod/child_process.h"
#include "prod/demo_table.h"
#include "prod/demo_weights.h"
#include "prod/kj_runtime.h"

namespace weightlane::prod {
namespace {

constexpr Nanos kRepaint = millis(100);
constexpr Nanos kStartWithin = seconds(30);
constexpr Nanos kStopWithin = seconds(5);
constexpr uint32_t kChaosVersion = 2;
constexpr uint32_t kServerVersion = 2;  // of the step in which the first server dies
constexpr uint32_t kBlows = 2;

// One shard's process.
struct Member {
  size_t replica = 0;
  uint32_t shard = 0;
  ChildProcess process;
  bool ready = false;
  bool owes = false;  // an answer to the command of this phase
  bool gone = false;  // killed and not started again
  uint64_t verified_version = 0;
  std::string name;  // "rollout-0/1"
};

class DemoRun {
 public:
  DemoRun(const DemoOptions& options, const StopRequest& stop)
      : options_(options), stop_(stop), table_(!options.plain && ::isatty(STDOUT_FILENO) != 0) {}

  int run();

 private:
  Result<Done> prepare();
  Result<Done> start_server();
  Result<Done> start_member(Member& member);
  Result<Done> step(uint64_t version);
  void arm(uint64_t version);
  void tell_waits() const;
  Result<Done> command(bool trainers, const std::string& line, const std::string& doing);
  // Until nobody owes an answer and all are ready.
  Result<Done> wait_for_all(const std::string& doing, Nanos within);
  Result<Done> pump(const std::string& doing);
  Result<Done> receive(Member& member);
  Result<Done> on_event(Member& member, const nlohmann::json& event);
  void call_again(size_t replica);
  void strike_server();
  Result<Done> on_updated(Member& member, const nlohmann::json& event);
  Result<Done> on_end(Member& member);
  Result<Done> verdict() const;
  void stop_all();
  void repaint(const std::string& doing);
  std::string introduction() const;

  bool is_trainer(const Member& member) const { return views_[member.replica].trainer; }
  DemoShardView& view(const Member& member) { return views_[member.replica].shards[member.shard]; }

  DemoOptions options_;
  const StopRequest& stop_;
  DemoTable table_;
  std::vector<DemoShard> model_;
  std::string log_path_;
  int log_ = -1;
  std::vector<ChildProcess> servers_;
  std::string addresses_;  // of the servers, as the workers are told
  std::vector<DemoReplicaView> views_;
  std::vector<Member> members_;
  std::vector<DemoStepView> steps_;
  std::string command_;  // of this phase; told again to a rollout that was started again
  bool command_for_trainers_ = false;
  Nanos painted_{0};
  uint32_t deaths_ = 0;  // by SIGKILL, under chaos
  bool rollout_struck_ = false;
  bool source_struck_ = false;
  bool server_struck_ = false;
  uint64_t verified_ = 0;
  uint64_t verified_bytes_ = 0;
  uint64_t reroutes_ = 0;
};

std::string DemoRun::introduction() const {
  uint64_t bytes = 0;
  size_t tensors = 0;
  for (const DemoShard& shard : model_) {
    bytes += shard.bytes;
    tensors += shard.tensors.size();
  }
  return (options_.weights.empty() ? "made weights" : options_.weights) + ": " +
         std::to_string(tensors) + " tensors, " + show_bytes(bytes) + "; " +
         std::to_string(options_.trainers) + " trainer(s) and " +
         std::to_string(options_.rollouts) + " rollout(s) of " + std::to_string(options_.shards) +
         " shard(s), each a process; transport " + options_.transport +
         (options_.checksums ? ", checksums end to end" : "");
}

Result<Done> DemoRun::prepare() {
  Result<std::vector<DemoShard>> model =
      options_.weights.empty() ? demo_shards_of_size(options_.size, options_.shards)
                               : demo_shards_of_file(options_.weights, options_.shards);
  if (!model) return model.error();
  model_ = std::move(*model);
  std::error_code error;
  std::string pattern = std::filesystem::temp_directory_path(error) / "weightlane-demo-XXXXXX";
  log_ = ::mkostemp(pattern.data(), O_CLOEXEC | O_APPEND);
  if (log_ < 0)
    return Error{ErrorCode::kResourceExhausted, "cannot create a log file in " + pattern};
  log_path_ = pattern;

  for (uint32_t i = 0; i < options_.trainers + options_.rollouts; ++i) {
    DemoReplicaView replica;
    replica.trainer = i < options_.trainers;
    replica.name = replica.trainer ? "trainer-" + std::to_string(i)
                                   : "rollout-" + std::to_string(i - options_.trainers);
    replica.shards.resize(options_.shards);
    for (uint32_t shard = 0; shard < options_.shards; ++shard) {
      replica.shards[shard].total_bytes = replica.trainer ? 0 : model_[shard].bytes;
      Member member;
      member.replica = i;
      member.shard = shard;
      member.name = replica.name + "/" + std::to_string(shard);
      members_.push_back(std::move(member));
    }
    views_.push_back(std::move(replica));
  }
  return Done{};
}

Result<Done> DemoRun::start_server() {
  const std::string lease_ms = std::to_string(options_.lease.count / 1'000'000) + "ms";
  const std::string heartbeat_ms = std::to_string(options_.lease.count / 8'000'000) + "ms";
  Result<ChildProcess> started = ChildProcess::start(
      {"server", "--listen", "127.0.0.1:0", "--lease", lease_ms, "--heartbeat", heartbeat_ms},
      log_);
  if (!started) return started.error();
  ChildProcess& server = servers_.emplace_back(std::move(*started));
  const Nanos end = deadline_after(monotonic_now(), kStartWithin);
  const std::string prefix = "listening on ";
  while (monotonic_now() < end && !stop_.requested()) {
    pollfd watched{server.descriptor(), POLLIN, 0};
    ::poll(&watched, 1, 100);
    bool ended = false;
    for (const std::string& line : server.receive(&ended)) {
      if (!line.starts_with(prefix)) continue;
      addresses_ += (addresses_.empty() ? "" : ",") + line.substr(prefix.size());
      return Done{};
    }
    if (ended)
      return Error{ErrorCode::kServerLost, "the server " + show_wait_status(server.reap())};
  }
  return Error{ErrorCode::kTimeout, "the server did not start"};
}

// The first server dies in the middle of a step; who was with it goes on with the next.
void DemoRun::strike_server() {
  const bool due = options_.chaos && options_.servers > 1 && !server_struck_ && !steps_.empty() &&
                   steps_.back().version >= kServerVersion && !command_for_trainers_;
  if (!due) return;
  server_struck_ = true;
  const pid_t pid = servers_.front().pid();
  ::kill(pid, SIGKILL);
  const std::string what = "kill -9 the first server (pid " + std::to_string(pid) + ")";
  steps_.back().remark += (steps_.back().remark.empty() ? "" : "; ") + what;
  table_.line(what);
}

Result<Done> DemoRun::start_member(Member& member) {
  std::vector<std::string> arguments{"demo-worker",
                                     "--role",
                                     is_trainer(member) ? "trainer" : "rollout",
                                     "--replica",
                                     views_[member.replica].name,
                                     "--shard",
                                     std::to_string(member.shard),
                                     "--shards",
                                     std::to_string(options_.shards),
                                     "--server",
                                     addresses_,
                                     "--transport",
                                     options_.transport,
                                     "--size",
                                     std::to_string(options_.size)};
  if (!options_.weights.empty()) arguments.insert(arguments.end(), {"--weights", options_.weights});
  if (options_.checksums) arguments.emplace_back("--checksums");
  Result<ChildProcess> process = ChildProcess::start(arguments, log_);
  if (!process) return process.error();
  member.process = std::move(*process);
  member.ready = false;
  member.owes = false;
  view(member) = DemoShardView{};
  view(member).total_bytes = is_trainer(member) ? 0 : model_[member.shard].bytes;
  return Done{};
}

// ---------------------------------------------------------------- events

Result<Done> DemoRun::on_updated(Member& member, const nlohmann::json& event) {
  DemoShardView& shard = view(member);
  DemoStepView& step = steps_.back();
  const uint64_t wrong = event.at("wrong_bytes");
  if (wrong != 0 || event.at("hash") != event.at("expected")) {
    return Error{ErrorCode::kCorrupt,
                 member.name + ": version " + std::to_string(event.at("version").get<uint64_t>()) +
                     " arrived with " + std::to_string(wrong) + " wrong bytes, the first at " +
                     std::to_string(event.at("first_wrong").get<uint64_t>())};
  }
  shard.state = "holds";
  shard.holds = true;
  shard.version = event.at("version");
  shard.sealed_bytes = shard.total_bytes;
  shard.source = event.at("source");
  shard.transfer = nanos(event.at("transfer_ns"));
  shard.stall = nanos(event.at("stall_ns"));
  member.owes = false;
  if (member.verified_version == shard.version) return Done{};  // asked again for its group's sake
  member.verified_version = shard.version;
  ++shard.verified;
  ++verified_;
  verified_bytes_ += model_[member.shard].bytes;
  reroutes_ += event.at("reroutes").get<uint64_t>();
  step.bytes += model_[member.shard].bytes;
  step.stall_max = std::max(step.stall_max, shard.stall);
  step.stall_mean += shard.stall / static_cast<int64_t>(options_.rollouts * options_.shards);
  if (!table_.live()) {
    table_.line(
        member.name + " updated to v" + std::to_string(shard.version) + " from " + shard.source +
        ": " + show_bytes(model_[member.shard].bytes) + " in " + show_duration(shard.transfer) +
        ", " + show_rate(model_[member.shard].bytes, shard.transfer) + ", stall " +
        show_duration(shard.stall) + ", hash " + event.at("hash").get<std::string>() + " verified");
  }
  return Done{};
}

// A member was started again in the middle of a phase. Calls are the group's: the others take part,
// those too that have answered already (the replica lost what they hold when it lost a member).
void DemoRun::call_again(size_t replica) {
  for (Member& member : members_) {
    if (member.replica != replica || !member.ready || member.owes) continue;
    member.owes = true;
    member.process.send(command_);
  }
}

Result<Done> DemoRun::on_event(Member& member, const nlohmann::json& event) {
  const std::string kind = event.at("event");
  DemoShardView& shard = view(member);
  if (kind == "ready") {
    member.ready = true;
    shard.state = "ready";
    if (!command_.empty() && is_trainer(member) == command_for_trainers_)
      call_again(member.replica);
  } else if (kind == "progress") {
    const std::string state = event.at("state");
    const bool moving = state == "receiving" || state == "waiting";
    const bool was_moving = shard.state == "receiving" || shard.state == "waiting";
    if (moving && !was_moving) shard.moving_since = monotonic_now();
    if (moving) shard.transfer = monotonic_now() - shard.moving_since;
    shard.state = state;
    shard.holds = shard.holds && shard.state != "receiving";
    shard.sealed_bytes = event.at("sealed");
    if (moving && shard.sealed_bytes * 2 >= shard.total_bytes) strike_server();
    shard.source = event.at("source");
  } else if (kind == "published") {
    shard.state = "holds";
    shard.holds = true;
    shard.version = event.at("version");
    steps_.back().train = std::max(steps_.back().train, nanos(event.at("train_ns")));
    steps_.back().publish = std::max(steps_.back().publish, nanos(event.at("publish_ns")));
    member.owes = false;
    if (!table_.live()) table_.line(member.name + " published v" + std::to_string(shard.version));
  } else if (kind == "updated") {
    strike_server();  // too fast for a report half-way
    return on_updated(member, event);
  } else if (kind == "note") {
    table_.line(member.name + ": " + event.at("text").get<std::string>());
  } else if (kind == "strike") {
    const std::string victim = event.at("victim");
    (victim == member.name ? rollout_struck_ : source_struck_) = true;
    const std::string what =
        "kill -9 " + victim + " (pid " + std::to_string(event.at("pid").get<int64_t>()) +
        ") when " + member.name + " had " +
        std::to_string(event.at("sealed").get<uint64_t>() * 100 / model_[member.shard].bytes) +
        " %";
    steps_.back().remark += (steps_.back().remark.empty() ? "" : "; ") + what;
    table_.line(what);
  } else if (kind == "failed") {
    return Error{ErrorCode::kReplicaLost,
                 member.name + ": " + event.at("message").get<std::string>()};
  }
  return Done{};
}

Result<Done> DemoRun::on_end(Member& member) {
  const int status = member.process.reap();
  const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  if (!options_.chaos || !killed || ++deaths_ > kBlows) {
    return Error{ErrorCode::kReplicaLost, member.name + " " + show_wait_status(status)};
  }
  view(member).holds = false;
  if (is_trainer(member)) {
    // A trainer's group is of no use without its member; the demo goes on with the other trainers.
    for (Member& other : members_) {
      if (other.replica != member.replica) continue;
      if (&other != &member) other.process.stop(kZeroNanos);
      other.gone = true;
      other.owes = false;
      view(other).state = "dead";
      view(other).holds = false;
    }
    table_.line(views_[member.replica].name + " is gone");
    return Done{};
  }
  table_.line(member.name + " is dead; started again as a new process");
  return start_member(member);
}

Result<Done> DemoRun::receive(Member& member) {
  bool ended = false;
  for (const std::string& line : member.process.receive(&ended)) {
    const nlohmann::json event = nlohmann::json::parse(line, nullptr, false);
    if (!event.is_object()) continue;  // a line that a library printed
    Result<Done> done = on_event(member, event);
    if (!done) return done;
  }
  if (ended) return on_end(member);
  return Done{};
}

Result<Done> DemoRun::pump(const std::string& doing) {
  std::vector<pollfd> watched{{stop_.descriptor(), POLLIN, 0}};
  for (const ChildProcess& server : servers_) watched.push_back({server.descriptor(), POLLIN, 0});
  const size_t first = watched.size();
  std::vector<Member*> whose;
  for (Member& member : members_) {
    if (member.gone || member.process.pid() == 0) continue;
    watched.push_back({member.process.descriptor(), POLLIN, 0});
    whose.push_back(&member);
  }
  ::poll(watched.data(), watched.size(), static_cast<int>(kRepaint.count / 1'000'000));
  if (stop_.requested()) return Error{ErrorCode::kClosed, "stopped"};
  for (size_t i = 0; i < servers_.size(); ++i) {
    if (watched[i + 1].revents == 0) continue;
    bool ended = false;
    servers_[i].receive(&ended);
    if (!ended) continue;
    const std::string status = show_wait_status(servers_[i].reap());
    if (i != 0 || !server_struck_) return Error{ErrorCode::kServerLost, "the server " + status};
    table_.line("the first server " + status);
  }
  for (size_t i = 0; i < whose.size(); ++i) {
    if (watched[i + first].revents == 0 || whose[i]->gone) continue;
    Result<Done> done = receive(*whose[i]);
    if (!done) return done;
  }
  repaint(doing);
  return Done{};
}

Result<Done> DemoRun::wait_for_all(const std::string& doing, Nanos within) {
  const Nanos end = deadline_after(monotonic_now(), within);
  while (true) {
    const auto late = std::find_if(members_.begin(), members_.end(),
                                   [](const Member& m) { return !m.gone && (!m.ready || m.owes); });
    if (late == members_.end()) return Done{};
    if (monotonic_now() >= end) {
      return Error{ErrorCode::kTimeout,
                   doing + ": no answer from " + late->name + " within " + show_duration(within)};
    }
    Result<Done> done = pump(doing);
    if (!done) return done;
  }
}

void DemoRun::repaint(const std::string& doing) {
  if (!table_.live() || monotonic_now() - painted_ < kRepaint) return;
  painted_ = monotonic_now();
  table_.paint(doing, views_);
}

// ---------------------------------------------------------------- steps

Result<Done> DemoRun::command(bool trainers, const std::string& line, const std::string& doing) {
  command_ = line;
  command_for_trainers_ = trainers;
  for (Member& member : members_) {
    if (member.gone || is_trainer(member) != trainers) continue;
    member.owes = true;
    member.process.send(line);
  }
  // A gigabyte a second is slow; a lease or two may pass on the way.
  const Nanos within =
      seconds(60) + options_.lease * 10 + seconds(static_cast<int64_t>(options_.size >> 27));
  Result<Done> done = wait_for_all(doing, within);
  if (!done && done.error().code == ErrorCode::kTimeout) tell_waits();
  command_.clear();
  return done;
}

// A step that is not done in time has a reason: everybody is asked whom they wait for.
void DemoRun::tell_waits() const {
  std::vector<pid_t> processes;
  for (const ChildProcess& server : servers_) processes.push_back(server.pid());
  for (const Member& member : members_) {
    if (!member.gone) processes.push_back(member.process.pid());
  }
  for (const pid_t pid : processes) {
    if (pid > 0) ::kill(pid, SIGUSR1);
  }
  std::this_thread::sleep_for(std::chrono::seconds(1));  // what has not answered by then won't
  std::ifstream log(log_path_);
  for (std::string line; std::getline(log, line);) {
    if (line.starts_with("waits: ")) std::fprintf(stderr, "%s\n", line.c_str());
  }
}

// One rollout kills itself at its half; of the others, the first that gets half-way while it reads
// from somebody who may die kills that one: a file stands for the right to do so, and who removes
// it strikes. What has not been struck stays due in the next step.
void DemoRun::arm(uint64_t version) {
  if (!options_.chaos || version < kChaosVersion) return;
  const std::string token = log_path_ + ".strike";
  std::string victims = " token=" + token;
  for (const Member& member : members_) {
    // A copy must survive.
    const bool last_trainer = is_trainer(member) && options_.trainers < 2;
    if (member.gone || last_trainer || member.shard != 0) continue;
    victims += " " + views_[member.replica].name + "=" + std::to_string(member.process.pid());
  }
  const int file =
      source_struck_ ? -1 : ::open(token.c_str(), O_CREAT | O_CLOEXEC | O_WRONLY, 0600);
  if (file >= 0) ::close(file);
  for (Member& member : members_) {
    if (is_trainer(member) || member.shard != 0) continue;
    const bool first_rollout = member.replica == options_.trainers;
    if (first_rollout && !rollout_struck_) member.process.send("strike self 9");
    if (!first_rollout && !source_struck_) member.process.send("strike source 9" + victims);
  }
}

Result<Done> DemoRun::step(uint64_t version) {
  const std::string number = std::to_string(version);
  steps_.emplace_back();
  steps_.back().version = version;
  Result<Done> done = command(true, "publish " + number,
                              "step " + number + ": trainers train and publish v" + number);
  if (!done) return done;
  arm(version);
  const Nanos begin = monotonic_now();
  done = command(false, "update " + number, "step " + number + ": rollouts update to v" + number);
  steps_.back().update = monotonic_now() - begin;
  return done;
}

Result<Done> DemoRun::verdict() const {
  const uint64_t expected = uint64_t{options_.steps} * options_.rollouts * options_.shards;
  if (verified_ < expected) {
    return Error{ErrorCode::kCorrupt, std::to_string(verified_) + " of " +
                                          std::to_string(expected) + " updates were verified"};
  }
  if (options_.chaos && !rollout_struck_)
    return Error{ErrorCode::kTimeout,
                 "chaos: no rollout was killed half-way; give it a larger --size"};
  if (options_.chaos && !source_struck_)
    return Error{ErrorCode::kTimeout,
                 "chaos: no source was killed half-way; give it a larger --size"};
  if (options_.chaos && options_.servers > 1 && !server_struck_)
    return Error{ErrorCode::kTimeout, "chaos: the server was not killed"};
  return Done{};
}

void DemoRun::stop_all() {
  for (Member& member : members_) member.process.send("quit");
  for (Member& member : members_) member.process.stop(kStopWithin);
  for (ChildProcess& server : servers_) server.stop(kStopWithin);
}

int DemoRun::run() {
  Result<Done> done = prepare();
  if (done.ok()) {
    std::printf("%s\n", introduction().c_str());
    std::fflush(stdout);
  }
  for (uint32_t i = 0; i < options_.servers; ++i) {
    if (done.ok()) done = start_server();
  }
  for (Member& member : members_) {
    if (done.ok()) done = start_member(member);
  }
  if (done.ok())
    done =
        wait_for_all("starting", kStartWithin + seconds(static_cast<int64_t>(options_.size >> 27)));
  for (uint32_t version = 1; done.ok() && version <= options_.steps; ++version)
    done = step(version);
  painted_ = kZeroNanos;
  if (done.ok()) repaint("done");
  table_.finish();
  stop_all();
  if (done.ok()) DemoTable::summary(steps_);
  if (done.ok()) done = verdict();
  if (log_ >= 0) ::close(log_);
  ::unlink((log_path_ + ".strike").c_str());
  if (done.ok() || stop_.requested()) {
    if (!log_path_.empty()) ::unlink(log_path_.c_str());
  }
  if (!done.ok()) {
    Error error = done.error();
    if (!stop_.requested() && !log_path_.empty())
      error.message += "; the processes' logs: " + log_path_;
    return report("demo", error);
  }
  std::printf("every byte verified: %llu updates, %s%s\n",
              static_cast<unsigned long long>(verified_), show_bytes(verified_bytes_).c_str(),
              options_.chaos ? ("; one rollout and one source killed half-way, " +
                                std::to_string(reroutes_) + " re-route(s)")
                                   .c_str()
                             : "");
  return 0;
}

}  // namespace

int run_demo(const DemoOptions& options, const StopRequest& stop) {
  return DemoRun(options, stop).run();
}

}  // namespace weightlane::prod
