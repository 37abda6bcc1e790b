// Playing a script: one process per shard, which makes the calls it is given, one after the other,
// and uses its memory the moment it may; a stage director who steps the world between the lines.
#include <algorithm>
#include <memory>

#include "flow/signal.h"
#include "ros/server.h"
#include "ros/shard_handle.h"
#include "sim/script.h"
#include "sim/world.h"

namespace weightlane::sim {
namespace {

using Kind = ScriptStep::Kind;

constexpr Nanos kPatience = seconds(60);   // of replicate and update
constexpr Nanos kStepMost = seconds(300);  // that an await or until may take
constexpr uint64_t kEventsMost = 4'000'000;

class Stage;

// The directory is looked at for as long as it is there.
class ServerLife {
 public:
  explicit ServerLife(Checkers* checkers) : checkers_(checkers) {}
  ~ServerLife() { checkers_->server_stopped(0); }
  ServerLife(const ServerLife&) = delete;
  ServerLife& operator=(const ServerLife&) = delete;

 private:
  Checkers* checkers_;
};

struct Actor {
  Stage* stage = nullptr;
  WorkerId worker;
  std::string replica;
  std::string name;  // t0/1
  uint32_t shard = 0;
  Host* host = nullptr;
  TensorRow row;
  std::vector<std::vector<std::string>> calls;  // still to be made
  uint32_t under_way = 0;                       // those and the one being made
  flow::Signal* called = nullptr;               // of this life
};

// Lines of the story without what changes from build to build: ids of contents become letters.
class Transcript final : public StoryTeller {
 public:
  void line(Nanos at, const std::string& who, const std::string& what,
            const std::string& detail) override {
    if (what.find('.') != std::string::npos) return;  // the server's own trace says the same again
    char head[64];
    std::snprintf(head, sizeof head, "%11.3f ms  %-8s ", static_cast<double>(at.count) * 1e-6,
                  who.c_str());
    const std::string rest = what + " " + lettered(detail);
    lines.push_back(head + rest);
    last.push_back(rest);
  }
  std::vector<std::string> lines;
  std::vector<std::string> last;  // since the step began, without time and host

 private:
  std::string lettered(std::string text) {
    for (size_t at = text.find(" ("); at != std::string::npos; at = text.find(" (", at + 1)) {
      const std::string id = text.substr(at + 2, 8);
      if (text.size() < at + 11 || text[at + 10] != ')' ||
          id.find_first_not_of("0123456789abcdef") != std::string::npos)
        continue;
      const auto known = std::find(ids_.begin(), ids_.end(), id);
      const auto letter = static_cast<char>('a' + (known - ids_.begin()) % 26);
      if (known == ids_.end()) ids_.push_back(id);
      text.replace(at + 1, 10, std::string(1, letter));
    }
    return text;
  }
  std::vector<std::string> ids_;
};

class Stage {
 public:
  Stage(const Script& script, const PlayOptions& options)
      : script_(script),
        choices_(1, ChoiceMode::kReplay, options),
        world_(script.plan.world, choices_),
        checkers_(world_, script_.plan) {
    checkers_.tell(&transcript_);
    HostPlace place;
    place.name = "server";
    server_ = &world_.add_host(place);
    checkers_.add_server(server_->id(), server_->address(7000));
    server_->start(serve(this), "server");
  }
  ~Stage() {
    checkers_.tell(nullptr);
    for (uint32_t h = 1; h < world_.host_count(); ++h)
      world_.host({h}).crash(CrashKind::kMemoryFirst);
  }
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  Played play();

 private:
  struct Choices final : ChoiceSource {
    Choices(uint64_t seed, ChoiceMode mode, const PlayOptions& options) : ChoiceSource(seed, mode) {
      set_overrides(options.overrides);
      set_census(options.census);
    }
  };
  void step(const ScriptStep& step);
  void add_replica(const std::string& name);
  void call(const ScriptStep& step);
  void cut(const ScriptStep& step);
  bool busy(const std::string& who) const;
  bool told(const std::vector<std::string>& words) const;
  template <typename Predicate>
  bool run_for(Nanos span, Predicate stop) {
    return world_.run_until(world_.now() + span, kEventsMost, stop) == StopReason::kPredicate;
  }
  Host* host_named(const std::string& name);
  bool is(const Actor& actor, const std::string& who) const {
    return actor.replica == who || actor.name == who;
  }
  void write(Actor* actor, uint64_t bits);

  static flow::Task<void> serve(Stage* self);
  static flow::Task<void> live(Actor* actor);
  static flow::Task<void> make_call(Actor* actor, ros::ShardHandle* handle,
                                    std::vector<std::string> words);

  const Script& script_;
  Choices choices_;
  World world_;
  Checkers checkers_;
  Transcript transcript_;
  Host* server_ = nullptr;
  uint32_t replicas_ = 0;
  std::vector<std::unique_ptr<Actor>> actors_;
  std::vector<CutId> cuts_;
  std::string stuck_;
};

flow::Task<void> Stage::serve(Stage* self) {
  auto server =
      ros::Server::start(self->server_, &self->server_->control(), self->server_->address(7000),
                         self->script_.plan.server, self->checkers_.watch_server(0));
  WL_ASSERT(server.ok());
  self->checkers_.server_started(0, &(*server)->directory());
  const ServerLife life(&self->checkers_);
  co_await self->server_->sleep_until(kForever);
}

void Stage::write(Actor* actor, uint64_t bits) {
  std::vector<uint64_t> tags(actor->row.count);
  for (uint64_t i = 0; i < tags.size(); ++i) tags[i] = bits | i;
  actor->host->memory().write(actor->row.address, tags);
}

flow::Task<void> Stage::live(Actor* actor) {
  Stage* self = actor->stage;
  Host* host = actor->host;
  const Plan& plan = self->script_.plan;
  const uint64_t granule = host->memory().granule_bytes();
  actor->row = {0, 0, plan.shard_granules(actor->shard)};
  actor->row.address = host->memory().allocate(actor->row.count * granule);
  self->checkers_.memory_laid_out(actor->worker, {actor->row}, actor->row.count);
  ros::OpenOptions options;
  options.model = kModel;
  options.replica = actor->replica;
  options.shard = {actor->shard};
  options.num_shards = plan.shards;
  options.node = host->place().name;
  options.servers = {self->server_->address(7000)};
  options.timing = plan.handle;
  ros::Environment environment{host, &host->control(), &host->data(),
                               self->checkers_.watch(actor->worker)};
  auto opened = co_await ros::ShardHandle::open(environment, options,
                                                deadline_after(host->now(), seconds(60)));
  if (!opened.ok()) co_return;
  std::unique_ptr<ros::ShardHandle> handle = std::move(opened).value();
  std::vector<ros::TensorSpec> tensors(1);
  tensors[0].name = "w";
  tensors[0].dtype = "U8";
  tensors[0].shape = {actor->row.count * granule};
  tensors[0].memory = {actor->row.address, actor->row.count * granule, net::Device::kHost, 0};
  const Result<Done> registered = co_await handle->register_tensors(std::move(tensors));
  if (!registered.ok()) co_return;
  flow::Signal called(*host);
  actor->called = &called;
  for (;;) {
    while (actor->calls.empty()) co_await called.wait();
    const std::vector<std::string> words = actor->calls.front();
    actor->calls.erase(actor->calls.begin());
    co_await make_call(actor, handle.get(), words);
    --actor->under_way;
  }
}

net::VersionSpec version_of(const std::string& text) {
  if (text.rfind("latest", 0) != 0)
    return {net::VersionKind::kExact, {std::strtoull(text.c_str(), nullptr, 10)}, 0};
  net::VersionSpec latest;
  if (text.size() > 7)
    latest.back = static_cast<uint32_t>(std::strtoul(text.c_str() + 7, nullptr, 10));
  return latest;
}

flow::Task<void> Stage::make_call(Actor* actor, ros::ShardHandle* handle,
                                  std::vector<std::string> words) {
  Stage* self = actor->stage;
  bool told = false;  // that it succeeded
  if (words[0] == "publish") {
    const VersionId version = version_of(words[1]).exact;
    const PublicationId publication = self->checkers_.new_publication();
    self->write(actor, make_tag(publication, actor->shard, 0));
    self->checkers_.will_publish(actor->worker, publication, version);
    const Result<Done> ended = co_await handle->publish(version);
    told = ended.ok();
  } else if (words[0] == "unpublish") {
    const Result<Done> ended = co_await handle->unpublish();
    told = ended.ok();
  } else if (words[0] == "replicate") {
    const Result<VersionId> ended = co_await handle->replicate(version_of(words[1]), kPatience);
    told = ended.ok();
    if (told) self->checkers_.receive_succeeded(actor->worker);
  } else if (words[0] == "update") {
    const Result<std::optional<VersionId>> ended =
        co_await handle->update(version_of(words[1]), kPatience);
    told = ended.ok();
    if (told) self->checkers_.receive_succeeded(actor->worker);
  } else {
    const Result<Done> ended = co_await handle->close();
    told = ended.ok();
    self->checkers_.handle_gone(actor->worker);
  }
  // Its own again: nothing in it is anybody's weights any more.
  const ros::HandleState state = handle->state();
  if (state == ros::HandleState::kRegistered || (state == ros::HandleState::kClosed && told))
    self->write(actor, kScribble);
}

void Stage::add_replica(const std::string& name) {
  const uint32_t index = replicas_++;
  for (uint32_t shard = 0; shard < script_.plan.shards; ++shard) {
    HostPlace place;
    place.name = name + "-" + std::to_string(shard);
    auto actor = std::make_unique<Actor>();
    actor->stage = this;
    actor->host = &world_.add_host(place);
    actor->worker = checkers_.add_worker(actor->host->id(), index, shard, name);
    actor->replica = name;
    actor->name = name + "/" + std::to_string(shard);
    actor->shard = shard;
    actor->host->start(live(actor.get()), "actor");
    actors_.push_back(std::move(actor));
  }
}

void Stage::call(const ScriptStep& step) {
  for (const auto& actor : actors_) {
    if (!is(*actor, step.who)) continue;
    actor->calls.push_back(step.words);
    ++actor->under_way;
    if (actor->host->alive() && actor->called != nullptr) actor->called->notify_all();
  }
}

bool Stage::busy(const std::string& who) const {
  return std::any_of(actors_.begin(), actors_.end(), [&](const auto& actor) {
    return is(*actor, who) && actor->host->state() == HostState::kUp && actor->under_way != 0;
  });
}

// Some line since the step began has all the words, in this order.
bool Stage::told(const std::vector<std::string>& words) const {
  std::string wanted;
  for (const std::string& word : words) wanted += (wanted.empty() ? "" : " ") + word;
  return std::any_of(
      transcript_.last.begin(), transcript_.last.end(),
      [&wanted](const std::string& line) { return line.find(wanted) != std::string::npos; });
}

Host* Stage::host_named(const std::string& name) {
  for (uint32_t h = 1; h < world_.host_count(); ++h) {
    if (world_.host({h}).place().name == name) return &world_.host({h});
  }
  return nullptr;
}

void Stage::cut(const ScriptStep& step) {
  const Host* host = host_named(step.who);
  if (host == nullptr) return;
  const uint64_t one = host_bit(host->id());
  Cut cut{.control = step.words[0] != "data",
          .data = step.words[0] != "control",
          .from = one,
          .to = ~one};
  cuts_.push_back(world_.cut(cut));
  std::swap(cut.from, cut.to);
  cuts_.push_back(world_.cut(cut));
}

void Stage::step(const ScriptStep& step) {
  const auto idle = [this, &step] { return !busy(step.who); };
  Host* host = host_named(step.who);
  bool done = true;
  switch (step.kind) {
    case Kind::kReplica:
      add_replica(step.who);
      break;
    case Kind::kCall:
      call(step);
      done = run_for(kStepMost, idle);
      break;
    case Kind::kBegin:
      call(step);
      break;
    case Kind::kAwait:
      done = run_for(kStepMost, idle);
      break;
    case Kind::kUntil:
      done = told(step.words) || run_for(kStepMost, [&] { return told(step.words); });
      break;
    case Kind::kCrash:
      if (host != nullptr && host->alive()) host->crash(CrashKind::kMemoryFirst);
      break;
    case Kind::kRestart:
      if (host == server_ && !host->alive()) host->start(serve(this), "server");
      for (const auto& actor : actors_) {
        if (actor->host != host || host->alive()) continue;
        actor->calls.clear();
        actor->under_way = 0;
        actor->called = nullptr;
        host->start(live(actor.get()), "actor");
      }
      break;
    case Kind::kPause:
      if (host != nullptr && host->state() == HostState::kUp) host->pause(step.span);
      break;
    case Kind::kCut:
      cut(step);
      break;
    case Kind::kMend:
      for (const CutId id : cuts_) world_.mend(id);
      cuts_.clear();
      break;
    case Kind::kRun:
      run_for(step.span, [] { return false; });
      break;
  }
  if (!done && !checkers_.violation() && stuck_.empty()) {
    stuck_ = "line " + std::to_string(step.line) + " does not come true";
  }
  if (step.kind != Kind::kBegin) transcript_.last.clear();
}

Played Stage::play() {
  for (const ScriptStep& next : script_.steps) {
    if (checkers_.violation()) break;
    step(next);
  }
  const auto anyone = [this] {
    return std::none_of(actors_.begin(), actors_.end(),
                        [this](const auto& actor) { return busy(actor->name); });
  };
  // P6: with nothing broken any more, whatever was begun ends.
  if (!checkers_.violation() && !run_for(kStepMost, anyone) && !checkers_.violation())
    checkers_.violate("P6", "calls that were begun do not end");
  Played played;
  played.transcript = std::move(transcript_.lines);
  played.violation = checkers_.violation();
  played.stuck = stuck_;
  played.hash = world_.hash();
  for (uint32_t h = 0; h < world_.host_count(); ++h)
    played.hosts.push_back(world_.host({h}).place().name);
  return played;
}

}  // namespace

Played play(const Script& script, const PlayOptions& options) {
  Stage stage(script, options);
  return stage.play();
}

}  // namespace weightlane::sim
