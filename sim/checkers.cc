// What the checkers see and how they judge it. One rule per function, named after its promise.
#include "sim/checkers.h"

#include <algorithm>
#include <memory>

#include "sim/data_plane.h"
#include "sim/hash.h"

namespace weightlane::sim {
namespace {

// Outcomes that shards can't agree on (DESIGN, P3): two generals, or the loss of one side alone.
bool is_lonely(ErrorCode code) {
  switch (code) {
    case ErrorCode::kReplicaLost:
    case ErrorCode::kTimeout:
    case ErrorCode::kServerLost:
    case ErrorCode::kDestinationPoisoned:
    case ErrorCode::kSuperseded:
    case ErrorCode::kClosed:
      return true;
    default:
      return false;
  }
}

bool receives(net::CallKind kind) {
  return kind == net::CallKind::kReplicate || kind == net::CallKind::kUpdate;
}

std::string describe_tag(uint64_t tag) {
  if (tag == 0) return "nothing, never written";
  if (tag >= kScribble) return "a scribble of a worker that had its memory back";
  return "publication " + std::to_string(tag >> 40) + ", shard " +
         std::to_string(tag >> 32 & 0xff) + ", place " + std::to_string(tag & 0xffffffff);
}

}  // namespace

std::string describe(net::Content content) {
  if (content.id.value == 0) return "nothing";
  char text[64];
  std::snprintf(text, sizeof text, "v%llu (%08x)",
                static_cast<unsigned long long>(content.version.value),
                static_cast<unsigned>(content.id.value >> 32));
  return text;
}

std::string seconds_text(Nanos span) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f s", to_seconds(span));
  return text;
}

// One handle's observer knows whose it is, so that no name is looked up.
class Checkers::Watch final : public ros::HandleObserver {
 public:
  Watch(Checkers& checkers, WorkerId worker) : checkers_(checkers), worker_(worker) {}
  void on_call_started(ros::HandleName, CallNumber number, net::CallKind kind) override {
    checkers_.handle_call_started(view(), number, kind);
  }
  void on_call_ended(ros::HandleName, CallNumber number, net::CallKind kind, bool ok,
                     ErrorCode code, net::Content content, Nanos) override {
    checkers_.handle_call_ended(view(), number, kind, ok, code, content);
  }
  void on_stamp(ros::HandleName, Stamp stamp, net::Content content) override {
    checkers_.handle_stamp(view(), stamp, content);
  }
  void on_proven(ros::HandleName, Stamp stamp, net::Content content, uint64_t proven) override {
    checkers_.handle_proven(view(), stamp, content, proven);
  }
  void on_seal_failed(ros::HandleName, AssignmentId assignment) override {
    tell("seal failed", assignment.value);
  }
  void on_source_connected(ros::HandleName, AssignmentId assignment, std::string_view) override {
    tell("source connected", assignment.value);
  }
  void on_source_failed(ros::HandleName, AssignmentId assignment,
                        std::string_view reason) override {
    checkers_.story(view().host, "source failed",
                    view().name + " assignment " + std::to_string(assignment.value) + ": " +
                        std::string(reason));
  }
  void on_fenced(ros::HandleName) override { tell("fenced its readers", 0); }
  void on_opened(ros::HandleName, std::string_view server, uint64_t lineage,
                 ros::Opening opening) override {
    checkers_.handle_opened(view(), server, lineage, opening);
    if (opening == ros::Opening::kFirst || checkers_.story_ == nullptr) return;
    checkers_.story(view().host, "server changed",
                    view().name + " is at " + std::string(server) +
                        (opening == ros::Opening::kRefused ? ", which refused what it held" : ""));
  }
  void on_server_left(ros::HandleName, std::string_view why) override {
    view().away = true;
    view().moved = view().in_call;  // whoever is asked next need not know of the readers there
    if (checkers_.story_ != nullptr)
      checkers_.story(view().host, "server left", view().name + ": " + std::string(why));
  }
  void on_server_lost(ros::HandleName) override {
    view().server_lost = true;
    tell("server lost", 0);
  }

 private:
  View& view() { return checkers_.views_[worker_.value]; }
  void tell(const char* what, uint64_t assignment) {
    if (checkers_.story_ == nullptr) return;
    checkers_.story(
        view().host, what,
        view().name + (assignment != 0 ? " assignment " + std::to_string(assignment) : ""));
  }
  Checkers& checkers_;
  WorkerId worker_;
};

Checkers::Checkers(World& world, const Plan& plan)
    : world_(world),
      plan_(plan),
      retention_(*this, world, plan),
      wide_(plan.datacenters > 1, plan.server.seed_patience) {
  publications_.resize(1);
  const FaultRates& rates = plan.world.faults;
  reads_lie_ = rates.of(Fault::kWrongPages) != 0 || rates.of(Fault::kNotVisible) != 0;
  world_.set_observer(this);
}

Checkers::~Checkers() { world_.set_observer(nullptr); }

void Checkers::violate(const char* promise, const std::string& text, uint32_t site) {
  if (violation_) return;
  violation_ = Violation{promise, text, world_.now(), site};
  std::replace(violation_->text.begin(), violation_->text.end(), '\n', ';');  // one line of story
  if (story_ != nullptr) story_->line(world_.now(), "checker", promise, text);
  world_.request_stop();
}

std::string Checkers::host_name(HostId host) const { return world_.host(host).place().name; }

void Checkers::story(HostId host, const char* what, const std::string& detail) {
  if (story_ != nullptr) story_->line(world_.now(), host_name(host), what, detail);
}

// ---------------------------------------------------------------- the cluster

WorkerId Checkers::add_worker(HostId host, uint32_t replica, uint32_t shard, std::string name) {
  const WorkerId worker{static_cast<uint32_t>(views_.size())};
  View view;
  view.replica = replica;
  view.shard = shard;
  view.host = host;
  if (replica >= replicas_.size()) {
    replicas_.resize(replica + 1);
    replicas_[replica].name = name;
    wide_.add_replica(name, world_.host(host).place().datacenter, plan_.is_spot(replica));
  }
  view.name = std::move(name) + "/" + std::to_string(shard);
  views_.push_back(std::move(view));
  watches_.push_back(std::make_unique<Watch>(*this, worker));
  replicas_[replica].shards.push_back(worker);
  return worker;
}

ros::HandleObserver* Checkers::watch(WorkerId worker) { return watches_[worker.value].get(); }

Checkers::Replica* Checkers::replica_named(std::string_view name) {
  for (Replica& replica : replicas_) {
    if (replica.name == name) return &replica;
  }
  return nullptr;
}

void Checkers::memory_laid_out(WorkerId worker, std::vector<TensorRow> rows, uint64_t granules) {
  View& view = views_[worker.value];
  view.rows = std::move(rows);
  view.granules = granules;
  view.control = {};
  view.stamp = {};
  view.proven = 0;
  view.in_call = false;
  view.untold = false;
  view.server_lost = false;
  view.noticed = false;
}

PublicationId Checkers::new_publication() {
  publications_.emplace_back();
  return {static_cast<uint32_t>(publications_.size() - 1)};
}

void Checkers::will_publish(WorkerId worker, PublicationId publication, VersionId version) {
  View& view = views_[worker.value];
  view.publication = publication;
  view.publishing = version;
}

void Checkers::handle_gone(WorkerId worker) {
  View& view = views_[worker.value];
  view.untold = false;
  view.server_lost = false;
  view.noticed = false;
  view.control = {};
  view.stamp = {};
  view.proven = 0;
  view.in_call = false;
}

// ---------------------------------------------------------------- P6 and the bounds of P2

Nanos Checkers::paused_total(HostId host) const {
  Nanos total = kZeroNanos;
  for (uint32_t h = 0; h < world_.host_count(); ++h) {
    if (h != host.value && (server_hosts_ & host_bit({h})) == 0) continue;
    total += paused_[h];
    if (is_paused_[h]) total += world_.now() - paused_since_[h];
  }
  return total;
}

void Checkers::call_began(WorkerId worker, const char* what, Nanos bound) {
  View& view = views_[worker.value];
  view.call = what;
  view.call_began = world_.now();
  view.call_bound = bound;
  view.paused_then = paused_total(view.host);
}

void Checkers::call_ended(WorkerId worker) {
  View& view = views_[worker.value];
  const Nanos took = world_.now() - view.call_began - (paused_total(view.host) - view.paused_then);
  if (took > view.call_bound) {
    violate("P6", view.name + ": " + view.call + " took " + seconds_text(took) + ", its bound is " +
                      seconds_text(view.call_bound));
  }
  view.untold = false;  // it did not even begin: it has told
  view.call = nullptr;
}

void Checkers::asked_and_got(WorkerId worker, VersionId asked, VersionId got) {
  if (asked == got) return;
  violate("P3", views_[worker.value].name + ": asked for version " + std::to_string(asked.value) +
                    " and was told of success with version " + std::to_string(got.value));
}

std::string Checkers::describe_worker(WorkerId worker) const {
  const View& view = views_[worker.value];
  if (view.call == nullptr) return view.name;
  return view.name + " in " + view.call + " since " + seconds_text(view.call_began);
}

void Checkers::check_bounds() {
  for (const View& view : views_) {
    if (view.call == nullptr || !world_.host(view.host).alive() || is_paused_[view.host.value])
      continue;
    const Nanos took =
        world_.now() - view.call_began - (paused_total(view.host) - view.paused_then);
    if (took <= view.call_bound) continue;
    violate("P6", view.name + ": " + view.call + " has not returned after " + seconds_text(took) +
                      ", its bound is " + seconds_text(view.call_bound));
  }
}

void Checkers::on_crashed(Nanos, HostId host, uint32_t life) {
  retention_.crashed(host);
  for (View& view : views_) {
    if (view.host != host) continue;
    view.stamp = {};
    view.proven = 0;
    view.untold = false;
    view.in_call = false;
    view.call = nullptr;
    view.rows.clear();
    view.granules = 0;
  }
  if (is_paused_[host.value]) paused_[host.value] += world_.now() - paused_since_[host.value];
  is_paused_[host.value] = false;
  if (story_ != nullptr) story(host, "crashed", "life " + std::to_string(life));
}

void Checkers::on_word_stored(Nanos, HostId host, net::RegionId region, uint32_t index,
                              uint64_t value) {
  if (index != 0 || value == 0) return;
  for (View& view : views_) {
    if (view.host == host && view.stamp.value == value) {
      if (view.control.value == 0) view.control = region;  // later: the digests' own stamp word
    }
  }
}

void Checkers::check_control(const View& view, const char* call) {
  if (view.control.value == 0 || !world_.host(view.host).alive()) return;
  SimDataPlane& data = world_.host(view.host).sim_data();
  if (data.find(view.control) == nullptr || data.load_word(view.control, 0) == 0) return;
  violate("P2", view.name + ": " + call +
                    " has handed the memory back, but its control block still shows a stamp");
}

void Checkers::on_started(Nanos, HostId host, uint32_t life) {
  if (story_ != nullptr) story(host, "started", "life " + std::to_string(life));
}

void Checkers::on_paused(Nanos at, HostId host) {
  is_paused_[host.value] = true;
  paused_since_[host.value] = at;
  if (story_ != nullptr) story(host, "paused", "");
}

void Checkers::on_resumed(Nanos at, HostId host) {
  if (is_paused_[host.value]) paused_[host.value] += at - paused_since_[host.value];
  is_paused_[host.value] = false;
  if (story_ != nullptr) story(host, "resumed", "");
}

void Checkers::on_fault(Nanos at, Fault fault, HostId host, HostId other) {
  if (story_ == nullptr && !record_faults_) return;
  std::string who = host.value != 0 ? host_name(host) : "world";
  const std::string whom = other.value != 0 ? " and " + host_name(other) : "";
  if (record_faults_)
    faults_seen_.push_back(seconds_text(at) + " " + who + whom + ": " + fault_name(fault));
  if (story_ != nullptr) story_->line(at, who, "fault", fault_name(fault) + whom);
}

void Checkers::on_healed(Nanos at) {
  if (record_faults_) faults_seen_.push_back(seconds_text(at) + " healed");
  if (story_ != nullptr) story_->line(at, "world", "healed", "");
}

void Checkers::on_trace(Nanos at, HostId host, const flow::TraceEvent& event) {
  if (story_ == nullptr) return;
  story_->line(at, host_name(host), event.what,
               std::to_string(event.a) + " " + std::to_string(event.b) + " " +
                   std::to_string(event.c) + " " + std::string(event.detail));
}

// ---------------------------------------------------------------- P1

bool Checkers::tag_is_of(uint32_t shard, net::Content content, uint64_t tag, uint64_t place) {
  constexpr uint64_t kPlace = (uint64_t{1} << 40) - 1;
  if ((tag & kPlace) != (uint64_t{shard} << 32 | place)) return false;
  const uint64_t publication = tag >> 40;
  if (publication == fitting_tag_ && content.id.value == fitting_content_) return true;
  if (publication == 0 || publication >= publications_.size()) return false;
  const std::vector<uint64_t>& contents = publications_[publication].contents;
  if (std::find(contents.begin(), contents.end(), content.id.value) == contents.end()) return false;
  fitting_tag_ = publication;
  fitting_content_ = content.id.value;
  return true;
}

bool Checkers::check_granules(const View& view, net::Content content, uint64_t from, uint64_t to,
                              const char* when) {
  const Memory& memory = world_.host(view.host).memory();
  const uint64_t granule = memory.granule_bytes();
  for (const TensorRow& row : view.rows) {
    const uint64_t begin = std::max(from, row.first);
    const uint64_t end = std::min(to, row.first + row.count);
    if (begin >= end) continue;
    const uint32_t found = memory.find(row.address, row.count * granule);
    WL_ASSERT(found != Memory::kNoRange);
    const Memory::Range& range = memory.range(found);
    const uint64_t shift = (row.address - range.address) / granule;
    for (uint64_t place = begin; place < end; ++place) {
      const uint64_t tag = range.tags[shift + place - row.first];
      if (tag_is_of(view.shard, content, tag, place)) continue;
      violate("P1", view.name + " " + when + " " + describe(content) + ": granule " +
                        std::to_string(place) + " of " + std::to_string(view.granules) + " holds " +
                        describe_tag(tag));
      return false;
    }
  }
  return true;
}

void Checkers::handle_stamp(View& view, Stamp stamp, net::Content content) {
  if (story_ != nullptr) {
    story(view.host, stamp.value == 0 ? "stamp zero" : "stamp set",
          view.name + " " + describe(content));
  }
  if (stamp.value == 0 && view.stamp.value != 0 && view.received && !reads_lie_) {
    check_granules(view, view.content, 0, view.proven, "at the end of");
  }
  const bool half = view.received && view.proven != 0 && view.proven != view.granules;
  if (stamp.value == 0 && half)
    world_.probe_outcome(Fault::kMixedAfterFailure, WorkOutcome::kHappened);
  // A publisher learns the id of its content later.
  view.received = content.id.value != 0;
  if (stamp.value == 0) check_drained(view);
  if (stamp.value == 0 && view.stamp.value != 0 && !view.in_call) view.untold = true;
  // A publish whose answer was lost may still show, until the server misses this shard.
  const bool gives_up = stamp.value == 0 && view.in_call && view.kind == net::CallKind::kUnpublish;
  if (gives_up || view.received) view.publishing = {};
  if (stamp != view.stamp) view.proven = 0;
  view.stamp = stamp;
  view.content = content;
  if (stamp.value != 0) view.held = view.number;  // a publish gets its number a moment later
}

// A hand-back that was not cut short by its deadline, the server's loss or an eviction lets the
// readers that the server knows of finish first.
void Checkers::check_drained(const View& view) {
  const bool hands_back = view.in_call && (view.kind == net::CallKind::kUnpublish ||
                                           view.kind == net::CallKind::kUpdate);
  if (!hands_back || view.server_lost || view.moved) return;
  const auto at = std::find_if(servers_.begin(), servers_.end(), [&view](const Server& server) {
    return server.address == view.server;
  });
  if (at == servers_.end() || at->directory == nullptr) return;
  if (world_.now() - view.call_started >= plan_.server.drain * 99 / 100) return;
  const auto& groups = at->directory->groups();
  const auto found = groups.find({kModel, replicas_[view.replica].name});
  if (found == groups.end() || found->second.lineage != view.group) return;
  if (found->second.members[view.shard] == nullptr) return;
  for (const auto& [number, publication] : found->second.publications) {
    if (number != view.held.value) continue;
    for (const ros::Assignment* taken : publication->outgoing) {
      if (taken->shard.value != view.shard) continue;
      violate("P2", view.name + ": call " + std::to_string(view.number.value) +
                        " took the memory back " + seconds_text(world_.now() - view.call_started) +
                        " after it began, and " + taken->reader->group->replica +
                        " was still reading; the drain deadline is " +
                        seconds_text(plan_.server.drain));
      return;
    }
  }
}

void Checkers::handle_proven(View& view, Stamp stamp, net::Content content, uint64_t proven) {
  const uint64_t granules = proven / world_.config().data.granule_bytes;
  if (story_ != nullptr) {
    story(view.host, "proven",
          view.name + " " + describe(content) + " " + std::to_string(granules) + "/" +
              std::to_string(view.granules));
  }
  if (stamp != view.stamp) view.proven = 0;
  if (stamp.value == 0) return;
  if (granules < view.proven) {
    violate("P1", view.name + ": proven went back from granule " + std::to_string(view.proven) +
                      " to " + std::to_string(granules));
    return;
  }
  if (view.received && !reads_lie_) {
    check_granules(view, content, view.proven, granules, "receiving");
  }
  view.stamp = stamp;
  view.content = content;
  view.proven = granules;
  if (granules == view.granules && view.received) {
    note_sealed(view, content);
    record(view, view.number).sealed |= 1u << view.shard;
  }
}

// ---------------------------------------------------------------- P3

Checkers::CallRecord& Checkers::record(View& view, CallNumber number) {
  std::vector<CallRecord>& calls = replicas_[view.replica].calls;
  for (size_t i = calls.size(); i-- > 0;) {
    if (calls[i].number == number && calls[i].group == view.group) return calls[i];
  }
  CallRecord& fresh = calls.emplace_back();
  fresh.group = view.group;
  fresh.number = number;
  return fresh;
}

void Checkers::handle_opened(View& view, std::string_view server, uint64_t lineage,
                             ros::Opening opening) {
  view.server = server;
  view.lineage = lineage;
  view.away = false;
  // A first call may have begun where the rest of the replica was not.
  if (view.in_call && opening == ros::Opening::kAgain) view.group = lineage;
}

void Checkers::note_sealed(View& view, net::Content content) {
  view.sealed = content;
  const uint64_t id = content.id.value;
  if (std::find(view.had.begin(), view.had.end(), id) == view.had.end()) view.had.push_back(id);
}

void Checkers::handle_call_started(View& view, CallNumber number, net::CallKind kind) {
  if (view.untold)
    violate("P3", view.name + ": a call began, and nobody was told that what it held is gone");
  view.in_call = true;
  view.call_started = world_.now();
  view.number = number;
  if (kind == net::CallKind::kPublish) view.held = number;
  view.kind = kind;
  view.group = view.lineage;
  view.moved = view.away;
  Replica& replica = replicas_[view.replica];
  if (replica.largest_group != view.group) replica.largest_call = 0;
  replica.largest_group = view.group;
  replica.largest_call = std::max(replica.largest_call, number.value);
  if (story_ != nullptr) {
    story(view.host, "call began",
          view.name + " call " + std::to_string(number.value) + " " + call_kind_name(kind));
  }
}

void Checkers::handle_call_ended(View& view, CallNumber number, net::CallKind kind, bool ok,
                                 ErrorCode code, net::Content content) {
  view.in_call = false;
  view.last_ok = ok;
  if (story_ != nullptr) {
    story(view.host, "call ended",
          view.name + " call " + std::to_string(number.value) + " " + call_kind_name(kind) + " " +
              (ok ? describe(content) : error_code_name(code)));
  }
  // Readers are let in from now on, whether or not the other shards ever come: the number of a
  // version that others hold stands for the same bytes (DESIGN, identity of content).
  if (ok && kind == net::CallKind::kPublish) {
    bind(view, content);
    view.had.push_back(content.id.value);
  }
  CallRecord& call = record(view, number);
  call.ended |= 1u << view.shard;
  // A version that could not be kept elsewhere stays published.
  if (!ok && code == ErrorCode::kRetained) return check_same_outcome(view, call, ok, code, content);
  if (!ok && view.stamp.value != 0) {
    violate("P3", view.name + ": call " + std::to_string(number.value) + " (" +
                      call_kind_name(kind) + ") failed with " + error_code_name(code) +
                      ", but its stamp for " + describe(view.content) + " still stands");
    return;
  }
  if (!ok || kind == net::CallKind::kUnpublish) check_control(view, call_kind_name(kind));
  if (kind == net::CallKind::kUnpublish && view.stamp.value != 0) {
    violate("P2", view.name + ": unpublish handed the memory back with its stamp still valid");
    return;
  }
  if (!receives(kind)) return;
  check_same_outcome(view, call, ok, code, content);
  if (!ok || content.id.value == 0) return;
  const uint32_t everyone = (1u << plan_.shards) - 1;
  if (call.sealed != everyone) {
    violate("P3", view.name + ": call " + std::to_string(number.value) + " (" +
                      call_kind_name(kind) + ") of " + describe(content) +
                      " returned success, but the shards sealed are only " +
                      std::to_string(call.sealed) + " (mask)");
    return;
  }
  ++transfers_;
  if (content != view.content || view.proven != view.granules) {
    violate("P1", view.name + ": returned success with " + describe(content) +
                      ", its control block says " + describe(view.content) + " and " +
                      std::to_string(view.proven) + " of " + std::to_string(view.granules) +
                      " granules");
    return;
  }
  check_granules(view, content, 0, view.granules, "returned");
}

void Checkers::check_same_outcome(View& view, CallRecord& call, bool ok, ErrorCode code,
                                  net::Content content) {
  if (!ok && is_lonely(code)) {
    // ServerLost says nothing of the others, and may be of a server before this one.
    call.lonely = call.lonely || code == ErrorCode::kReplicaLost;
    return;
  }
  if (ok && content.id.value != 0) check_poisoned(view, call.number);
  if (!call.settled) {
    call.settled = true;
    call.ok = ok;
    call.code = code;
    call.content = content;
    return;
  }
  const bool same = call.ok == ok && (ok ? call.content == content : call.code == code);
  if (same) return;
  violate("P3", view.name + ": call " + std::to_string(call.number.value) + " ended with " +
                    (ok ? describe(content) : error_code_name(code)) + ", on another shard with " +
                    (call.ok ? describe(call.content) : error_code_name(call.code)));
}

// Where one shard held what another had lost, the call after it must fail everywhere.
void Checkers::check_poisoned(const View& view, CallNumber number) {
  for (const CallRecord& before : replicas_[view.replica].calls) {
    if (before.group != view.group || before.number.value + 1 != number.value) continue;
    if (!before.lonely || !before.settled || !before.ok) continue;
    violate("P3", view.name + ": call " + std::to_string(number.value) +
                      " succeeded, but in call " + std::to_string(before.number.value) +
                      " one shard had lost what another held");
    return;
  }
}

}  // namespace weightlane::sim
