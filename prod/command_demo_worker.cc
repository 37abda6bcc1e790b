// weightlane demo-worker (hidden): one shard's process of the demo, and what the process-level
// tests use to make things happen half-way.
//
// It obeys lines on stdin and tells what happened as JSON objects on stdout:
//   publish V                     take the memory back, train to version V, publish it
//   update V                      hold version V, verified; asks again until it is there
//   fetch V                       the same, and verify only when told to
//   verify                        compare every byte of the version held with what it must be
//   stats                         memory beyond the tensors
//   strike self|source SIG NAME=PID...   once half of a transfer is sealed, send the signal to this
//                                 process, or to the one of these that it is reading from
//   scribble                      break the promise: change published memory
//   quit                          hand the memory back and end
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <thread>

#include "prod/command.h"
#include "prod/command_peer.h"
#include "prod/demo_weights.h"
#include "prod/kj_runtime.h"
#include "prod/shared_memory.h"

namespace weightlane::prod {
namespace {

constexpr Nanos kOpenWithin = seconds(30);
constexpr Nanos kUpdateWithin = seconds(60);  // one call
constexpr Nanos kGiveUp = seconds(90);        // all calls of one update
constexpr Nanos kTellEvery = millis(100);
constexpr Nanos kLookEvery = millis(1);

// Events, from several threads, one a line.
class Events {
 public:
  void tell(const nlohmann::json& event) {
    const std::string line =
        event.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
    const std::lock_guard<std::mutex> lock(mutex_);
    // One write, so that a line is whole even if this process is killed next.
    [[maybe_unused]] const ssize_t written = ::write(STDOUT_FILENO, line.data(), line.size());
  }

 private:
  std::mutex mutex_;
};

// Strikes on the loop's thread, at the seal that passes the half.
class Striker final : public ros::HandleObserver {
 public:
  Striker(Events* events, std::string own_name) : events_(events), own_name_(std::move(own_name)) {}

  // `token`: a file, if not empty; of several who are armed, the one that removes it strikes.
  void arm(int signal, std::map<std::string, pid_t> victims, std::string token) {
    const std::lock_guard<std::mutex> lock(mutex_);
    token_ = std::move(token);
    signal_ = signal;
    victims_ = std::move(victims);
    armed_ = true;
  }
  // A transfer of so many bytes begins; 0: it has ended.
  void receiving(uint64_t total) { total_ = total; }
  void reading_from(const std::string& source) {
    const std::lock_guard<std::mutex> lock(mutex_);
    source_ = source;
  }
  std::string source() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return source_;
  }

  void on_proven(ros::HandleName, Stamp, net::Content, uint64_t proven) override {
    const uint64_t total = total_;
    if (total == 0 || proven < total / 2 || proven >= total) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!armed_) return;
    pid_t pid = ::getpid();
    std::string victim = own_name_;
    if (!victims_.empty()) {
      const auto found = victims_.find(source_.substr(0, source_.find(' ')));
      if (found == victims_.end() || ::kill(found->second, 0) != 0) return;
      pid = found->second;
      // The source of a shard is the same shard of another replica.
      victim = found->first + own_name_.substr(own_name_.rfind('/'));
    }
    armed_ = false;
    if (!token_.empty() && ::unlink(token_.c_str()) != 0) return;
    events_->tell({{"event", "strike"},
                   {"victim", victim},
                   {"pid", pid},
                   {"signal", signal_},
                   {"sealed", proven},
                   {"total", total}});
    ::kill(pid, signal_);
  }

 private:
  Events* events_;
  std::string own_name_;
  std::atomic<uint64_t> total_{0};
  mutable std::mutex mutex_;
  std::string token_;   // guarded by mutex_
  bool armed_ = false;  // guarded by mutex_, as are the next three
  int signal_ = 0;
  std::map<std::string, pid_t> victims_;  // empty: itself
  std::string source_;
};

class DemoWorkerCommand final : public Command {
 public:
  CLI::App* declare(CLI::App& program) override;
  int run() override;

 private:
  Result<Done> prepare();
  Result<Done> obey(const std::string& line);
  Result<Done> publish(uint64_t version);
  Result<Done> update(uint64_t version, bool verify_it);
  Result<std::optional<VersionId>> update_once();
  void tell_fetched();
  Result<Done> tell_updated();
  void tell_stats();
  void sample_memory();
  Result<Done> strike(std::istringstream& words);
  void watch_progress(const std::stop_token& stop);
  Result<Done> serve(const StopRequest& stop);
  int fail(const Error& error);

  std::span<uint8_t> memory() const {
    return {memory_->data(), static_cast<size_t>(demo_memory_bytes(shard_.bytes))};
  }

  PeerOptions peer_;
  std::string role_;
  std::string weights_;
  uint64_t size_ = 0;
  uint32_t shards_ = 1;
  uint32_t index_ = 0;

  Events events_;
  DemoShard shard_;
  std::unique_ptr<Striker> striker_;
  std::optional<Log> log_;
  std::unique_ptr<Worker> worker_;
  std::optional<SharedMemory> memory_;
  std::unique_ptr<WorkerHandle> handle_;
  uint64_t content_ = 0;  // a trainer's memory: the weights' version, one behind the published one
  std::atomic<bool> receiving_{false};
  Nanos began_{0};  // the last update
  Nanos ended_{0};
  std::atomic<uint64_t> extra_bytes_{0};  // the most seen
};

CLI::App* DemoWorkerCommand::declare(CLI::App& program) {
  CLI::App* app = program.add_subcommand("demo-worker", "one shard of the demo")->group("");
  peer_.model = "demo";
  add_servers(app, &peer_.server);
  app->add_option("--replica", peer_.replica)->required();
  app->add_option("--transport", peer_.transport);
  app->add_option("--data-host", peer_.data_host);
  app->add_flag("--checksums", peer_.checksums);
  app->add_flag("--verbose", peer_.verbose);
  app->add_option("--role", role_)->required()->check(CLI::IsMember({"trainer", "rollout"}));
  app->add_option("--weights", weights_);
  add_size(app, "--size", &size_, "");
  app->add_option("--shards", shards_);
  app->add_option("--shard", index_);
  return app;
}

Result<Done> DemoWorkerCommand::prepare() {
  Result<std::vector<DemoShard>> model = weights_.empty() ? demo_shards_of_size(size_, shards_)
                                                          : demo_shards_of_file(weights_, shards_);
  if (!model) return model.error();
  if (index_ >= shards_) return Error{ErrorCode::kInvalidArgument, "--shard is out of range"};
  shard_ = (*model)[index_];
  striker_ = std::make_unique<Striker>(&events_, peer_.replica + "/" + std::to_string(index_));
  log_.emplace(peer_log_options(peer_));
  Result<std::unique_ptr<Worker>> worker = start_worker(peer_, &*log_, striker_.get());
  if (!worker) return worker.error();
  worker_ = std::move(*worker);
  Result<SharedMemory> memory_result = worker_->allocate(demo_memory_bytes(shard_.bytes));
  if (!memory_result) return memory_result.error();
  memory_.emplace(std::move(*memory_result));
  if (role_ == "trainer") {
    Result<Done> loaded = demo_load(shard_, memory());
    if (!loaded) return loaded;
  }
  const ros::OpenOptions open =
      open_options(peer_, peer_.model, ShardIndex{index_}, shards_, shard_.bytes);
  Result<std::unique_ptr<WorkerHandle>> handle = worker_->open(open, kOpenWithin);
  if (!handle) return handle.error();
  handle_ = std::move(*handle);
  return handle_->register_tensors(tensors_of(shard_.tensors, memory_->data()));
}

Result<Done> DemoWorkerCommand::publish(uint64_t version) {
  const Nanos begin = monotonic_now();
  if (handle_->holds().has_value()) {
    Result<Done> done = handle_->unpublish();
    if (!done) return done;
  }
  const Nanos mine = monotonic_now();
  demo_train(memory(), content_, version - 1);
  content_ = version - 1;
  const Nanos trained = monotonic_now();
  Result<Done> done = handle_->publish(VersionId{version});
  if (!done) return done;
  events_.tell({{"event", "published"},
                {"version", version},
                {"train_ns", (trained - mine).count},
                {"publish_ns", (mine - begin + (monotonic_now() - trained)).count}});
  return Done{};
}

Result<std::optional<VersionId>> DemoWorkerCommand::update_once() {
  striker_->receiving(shard_.bytes);
  receiving_ = true;
  Result<std::optional<VersionId>> got = handle_->update(net::VersionSpec{}, kUpdateWithin);
  receiving_ = false;
  striker_->receiving(0);
  return got;
}

// What ends a call without ending the handle is tried again; the group's other shards do likewise.
Result<Done> DemoWorkerCommand::update(uint64_t version, bool verify_it) {
  const Nanos end = deadline_after(monotonic_now(), kGiveUp);
  while (true) {
    began_ = monotonic_now();
    Result<std::optional<VersionId>> got = update_once();
    ended_ = monotonic_now();
    if (got.ok() && handle_->holds() == VersionId{version}) {
      if (verify_it) {
        events_.tell({{"event", "progress"},
                      {"state", "verifying"},
                      {"sealed", shard_.bytes},
                      {"source", handle_->progress().source}});
        return tell_updated();
      }
      tell_fetched();
      return Done{};
    }
    if (got.ok()) {
      // Not there yet, or an older one: it shows when all shards of a trainer have published.
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    } else {
      const ErrorCode code = got.error().code;
      const bool passing = code == ErrorCode::kReplicaLost || code == ErrorCode::kTimeout ||
                           code == ErrorCode::kVersionUnavailable ||
                           code == ErrorCode::kCallMismatch;
      if (!passing) return got.error();
      events_.tell({{"event", "note"},
                    {"code", error_code_name(code)},
                    {"text", got.error().message + "; asking again"}});
    }
    if (monotonic_now() >= end) {
      return Error{ErrorCode::kTimeout, "version " + std::to_string(version) +
                                            " could not be had within " + show_duration(kGiveUp)};
    }
  }
}

void DemoWorkerCommand::tell_fetched() {
  events_.tell({{"event", "fetched"},
                {"version", handle_->holds()->value},
                {"began_ns", began_.count},
                {"ended_ns", ended_.count}});
}

Result<Done> DemoWorkerCommand::tell_updated() {
  if (!handle_->holds().has_value()) return Error{ErrorCode::kWrongState, "nothing is held"};
  const uint64_t version = handle_->holds()->value;
  const ros::Progress progress = handle_->progress();
  Result<DemoVerdict> verdict = demo_verify(shard_, memory(), version - 1);
  if (!verdict) return verdict.error();
  const auto hex = [](uint64_t value) {
    std::array<char, 17> text{};
    std::snprintf(text.data(), text.size(), "%016" PRIx64, value);
    return std::string(text.data());
  };
  const std::string source = progress.source.empty() ? striker_->source() : progress.source;
  events_.tell({{"event", "updated"},
                {"version", version},
                {"transfer_ns", (ended_ - began_).count},
                {"stall_ns", progress.stalled.count},
                {"source", source},
                {"reroutes", progress.reroutes},
                {"hash", hex(verdict->hash)},
                {"expected", hex(verdict->expected_hash)},
                {"wrong_bytes", verdict->wrong_bytes},
                {"first_wrong", verdict->first_wrong}});
  return Done{};
}

// Private memory and what is mapped of files; neither our tensors nor a peer's, which are shared.
void DemoWorkerCommand::sample_memory() {
  std::ifstream status("/proc/self/status");
  uint64_t bytes = 0;
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:") || line.starts_with("RssFile:"))
      bytes += std::strtoull(line.c_str() + 8, nullptr, 10) << 10;
  }
  if (bytes > extra_bytes_) extra_bytes_ = bytes;
}

void DemoWorkerCommand::tell_stats() {
  sample_memory();
  events_.tell(
      {{"event", "stats"}, {"extra_bytes", extra_bytes_.load()}, {"tensor_bytes", shard_.bytes}});
}

Result<Done> DemoWorkerCommand::strike(std::istringstream& words) {
  std::string target;
  int number = SIGKILL;
  words >> target >> number;
  std::map<std::string, pid_t> victims;
  std::string token;
  for (std::string word; words >> word;) {
    const size_t equal = word.find('=');
    if (word.starts_with("token=")) {
      token = word.substr(equal + 1);
      continue;
    }
    if (equal == std::string::npos)
      return Error{ErrorCode::kInvalidArgument, "strike: NAME=PID, not " + word};
    victims[word.substr(0, equal)] =
        static_cast<pid_t>(std::strtol(word.c_str() + equal + 1, nullptr, 10));
  }
  if (target == "source" && victims.empty()) return Done{};
  striker_->arm(number, target == "self" ? std::map<std::string, pid_t>{} : std::move(victims),
                token);
  return Done{};
}

Result<Done> DemoWorkerCommand::obey(const std::string& line) {
  std::istringstream words(line);
  std::string word;
  words >> word;
  if (word == "strike") return strike(words);
  if (word == "scribble") {
    for (uint8_t& byte : memory().first(std::min<size_t>(memory().size(), 64)))
      byte = static_cast<uint8_t>(~byte);
    events_.tell({{"event", "scribbled"}});
    return Done{};
  }
  if (word == "verify") return tell_updated();
  if (word == "stats") {
    tell_stats();
    return Done{};
  }
  uint64_t version = 0;
  words >> version;
  if (version > 0 && word == "publish") return publish(version);
  if (version > 0 && (word == "update" || word == "fetch"))
    return update(version, word == "update");
  return Error{ErrorCode::kInvalidArgument, "no such command: " + line};
}

// Looks often, so that the striker knows whom it reads from; tells rarely.
void DemoWorkerCommand::watch_progress(const std::stop_token& stop) {
  Nanos told{0};
  while (!stop.stop_requested()) {
    std::this_thread::sleep_for(
        std::chrono::nanoseconds(receiving_ ? kLookEvery.count : kTellEvery.count / 2));
    if (!receiving_) continue;
    const ros::Progress progress = handle_->progress();
    if (!progress.source.empty()) striker_->reading_from(progress.source);
    if (monotonic_now() - told < kTellEvery) continue;
    told = monotonic_now();
    sample_memory();
    events_.tell({{"event", "progress"},
                  {"state", progress.source.empty() ? "waiting" : "receiving"},
                  {"sealed", progress.sealed_bytes},
                  {"source", progress.source}});
  }
}

Result<Done> DemoWorkerCommand::serve(const StopRequest& stop) {
  std::string pending;
  while (!stop.requested()) {
    std::array<pollfd, 2> watched{pollfd{STDIN_FILENO, POLLIN, 0},
                                  pollfd{stop.descriptor(), POLLIN, 0}};
    ::poll(watched.data(), watched.size(), -1);
    if (watched[0].revents == 0) continue;
    std::array<char, 4096> buffer{};
    const ssize_t got = ::read(STDIN_FILENO, buffer.data(), buffer.size());
    if (got <= 0) return Done{};
    pending.append(buffer.data(), static_cast<size_t>(got));
    for (size_t end = pending.find('\n'); end != std::string::npos; end = pending.find('\n')) {
      const std::string line = pending.substr(0, end);
      pending.erase(0, end + 1);
      if (line == "quit") return Done{};
      Result<Done> done = obey(line);
      if (!done) return done;
    }
  }
  return Done{};
}

int DemoWorkerCommand::fail(const Error& error) {
  events_.tell(
      {{"event", "failed"}, {"code", error_code_name(error.code)}, {"message", error.message}});
  return report("demo-worker", error);
}

int DemoWorkerCommand::run() {
  const StopRequest stop;
  Result<Done> done = prepare();
  if (!done) return fail(done.error());
  events_.tell({{"event", "ready"}});
  std::jthread progress([this](const std::stop_token& token) { watch_progress(token); });
  done = serve(stop);
  progress.request_stop();
  progress.join();
  if (!done) return fail(done.error());
  done = handle_->close();
  return done.ok() ? 0 : fail(done.error());
}

}  // namespace

std::unique_ptr<Command> make_demo_worker_command() {
  return std::make_unique<DemoWorkerCommand>();
}

}  // namespace weightlane::prod
