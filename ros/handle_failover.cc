// A HandleCore between two servers (P9): what it announces, and what it does with the answer.
//
// The announcement is the state of this moment, and everything in it is idempotent: calls whose end
// is known here, what the memory holds under which content, READs that go on whatever happens to
// servers, and the call under way, made again. What leaves or has never been told by a server is
// left out: nobody may count on it.
#include <algorithm>

#include "ros/handle_core.h"
#include "ros/planted_bugs.h"
#include "ros/probes.h"

namespace weightlane::ros {

namespace {

// A shard may be so many calls ahead of another, and the other still learns from it how they ended.
constexpr size_t kDoneKept = 8;

}  // namespace

void HandleCore::remember(bool ok, ErrorCode code, net::Content content) {
  if (call_.number.value + 1 != next_call_) return;  // a server has moved the numbers on
  const std::string message = call_.decided.has_value() ? call_.decided->message : std::string();
  const bool kept = call_.decided.has_value() && call_.decided->kept;
  if (done_.size() == kDoneKept) done_.pop_front();
  done_.push_back(
      {call_.number, call_.kind, call_.request.version, ok, content, code, message, kept});
}

net::Announcement HandleCore::announcement() {
  net::Announcement told;
  told.resumed = true;
  told.lineage = lineage_;
  told.done.assign(done_.begin(), done_.end());
  const bool in_call = call_.number.value != 0 && call_.number.value + 1 == next_call_;
  told.last_call = {next_call_ - 1};
  if (in_call && call_.decided.has_value()) {
    const net::DecidedEvent& end = *call_.decided;
    told.done.push_back({call_.number, call_.kind, call_.request.version, end.ok, end.content,
                         end.code, end.message, end.kept});
  } else if (in_call) {
    told.last_call = {call_.number.value - 1};
    told.pending = call_.request;
    const Nanos waited = runtime().now() - call_.started;
    if (told.pending.timeout.count > 0 && told.pending.timeout < kForever)
      told.pending.timeout = std::max(kZeroNanos, told.pending.timeout - waited);
    told.begun = call_.begun;
  }
  call_.assigned.reset();  // of a server that is left
  if (!held_.has_value()) return told;
  held_->moved = true;
  if (!WL_BUG(kDrainedStale)) held_->drained = false;  // said another server, of its own readers
  held_->known = !held_->leaving && !surrender_;
  const bool publishing = held_->content.id.value == 0;  // the call tells of it
  if (!held_->known || publishing) return told;
  told.held.number = held_->number;
  told.held.content = held_->content;
  told.held.layout = layout_->summary();
  told.held.receiving = held_->receiving;
  told.held.whole = held_->whole;
  told.held.sealed_bytes = source_.proven();
  if (reader_ != nullptr) {
    told.held.reading = reader_->assignment();
    told.held.upstream = reader_->source_name();
  }
  return told;
}

void HandleCore::on_left(const std::string& why) {
  if (environment_.observer != nullptr) environment_.observer->on_server_left(name(), why);
  changed_.notify_all();
}

void HandleCore::opened(const net::OpenedResponse& response, Opening opening) {
  source_.add_incarnation(session_.incarnation());
  lineage_ = response.lineage;
  lease_ = response.lease;
  drain_ = response.drain;
  if (environment_.observer != nullptr)
    environment_.observer->on_opened(name(), session_.server(), lineage_, opening);
}

void HandleCore::on_reopened(const net::OpenedResponse& opened) {
  runtime().probe(probes::kReopened);
  this->opened(opened, opened.refused ? Opening::kRefused : Opening::kAgain);
  if (!opened.refused && call_.number.value != 0 && !call_.decided.has_value()) {
    if (poison_.has_value()) call_.given_up = poison_->message;
    if (call_.given_up.has_value())
      session_.post(net::AbortRequest{call_.number, ErrorCode::kReplicaLost, *call_.given_up});
  }
  changed_.notify_all();
  if (WL_BUG(kNumbersReset)) next_call_ = 1;
  if (!opened.refused) return;

  const std::string why =
      describe() + ": " + session_.why_ended() + "; what it held is handed back";
  next_call_ = opened.next_call.value;
  done_.clear();
  if (held_.has_value()) held_->known = false;
  surrender_ = true;
  if (call_.number.value != 0 && !call_.decided.has_value()) {
    call_.assigned.reset();
    call_.decided = net::DecidedEvent{call_.number, false, {}, ErrorCode::kReplicaLost, why};
    stop_reader(net::ReleaseKind::kAbandoned, false);
  } else {
    if (!WL_BUG(kLossUntold)) loss_ = Error{ErrorCode::kReplicaLost, why};
  }
}

// What a server has refused is nobody's version any more.
flow::Task<void> HandleCore::surrender() {
  surrender_ = false;
  if (!WL_BUG(kEvictedKeeps)) co_await hand_back();
}

}  // namespace weightlane::ros
