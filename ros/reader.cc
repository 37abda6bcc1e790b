// transfer() is the loop: take completions, post what the last look allows, look again, wait. It
// ends by a stop, an error, a stall or the last sealed slice; run() then destroys the queue pair
// before anyone hears of it.
#include "ros/reader.h"

#include <algorithm>

#include "net/codec.h"
#include "ros/planted_bugs.h"
#include "ros/probes.h"

namespace weightlane::ros {

namespace {

constexpr uint64_t kLookId = 1ull << 62;  // work ids below are slices
constexpr uint64_t kWordsId = kLookId + 1;
constexpr int kRefusalsMax = 8;  // a publisher learns its content id a moment after its readers may
constexpr Nanos kRefusedPause = millis(5);  // first pause, doubling

}  // namespace

Reader::Reader(Context context, net::AssignedEvent assigned)
    : context_(context),
      assigned_(std::move(assigned)),
      window_(context.options->window_start_bytes, context.options->window_bytes) {}

void Reader::stop(net::ReleaseKind kind, bool only_if_unopened) {
  if (only_if_unopened && opened()) return;
  stop_requested_ = true;
  stop_kind_ = kind;
}

std::string Reader::describe() const {
  if (!opened()) return "connects to " + source_name();
  const Nanos quiet = context_.environment.runtime->now() - last_progress_;
  return "reads from " + source_name() + " (" + transport_ + "), " +
         std::to_string(context_.receiving->sealed_bytes) + " bytes sealed, " +
         std::to_string(outstanding_) + " READs in flight" +
         (broken_ ? ", the pair is broken" : "") + ", the last completion " +
         std::to_string(quiet.count / 1'000'000) + " ms ago";
}

ReadOutcome Reader::failed(std::string reason) {
  context_.environment.runtime->probe(probes::kReadFailed);
  if (context_.environment.observer != nullptr)
    context_.environment.observer->on_source_failed(context_.name, assigned_.assignment, reason);
  return {net::ReleaseKind::kFailed, std::move(reason), false};
}

flow::Task<ReadOutcome> Reader::run() {
  flow::Runtime& runtime = *context_.environment.runtime;
  Result<Done> connected = co_await connect();
  ReadOutcome outcome;
  if (stopped())
    outcome = {stop_kind_, "stopped", false};
  else if (!connected)
    outcome = failed(connected.error().message);
  else
    outcome = co_await transfer();
  if (outcome.kind == net::ReleaseKind::kComplete && context_.options->checksums)
    outcome = co_await check_digests();
  if (pair_ == nullptr) {
    if (outcome.kind == net::ReleaseKind::kAbandoned) outcome.kind = net::ReleaseKind::kNeverOpened;
    if (outcome.kind == net::ReleaseKind::kNeverOpened) runtime.probe(probes::kNeverOpened);
    co_return outcome;
  }
  if (outcome.kind == net::ReleaseKind::kNeverOpened) outcome.kind = net::ReleaseKind::kAbandoned;
  if (outstanding_ > 0) runtime.probe(probes::kQuarantined);
  if (WL_BUG(kReuseBeforeDestroy)) co_return outcome;
  const Nanos deadline = deadline_after(runtime.now(), context_.options->quarantine);
  Result<Done> destroyed = co_await pair_->destroy(deadline);
  pair_.reset();
  if (!destroyed && !WL_BUG(kPoisonIgnored)) {
    runtime.probe(probes::kPoisoned);
    co_return ReadOutcome{net::ReleaseKind::kPoisoned, destroyed.error().message, false};
  }
  co_return outcome;
}

flow::Task<Result<Done>> Reader::connect() {
  flow::Runtime& runtime = *context_.environment.runtime;
  net::HelloMessage hello;
  hello.source = assigned_.source.incarnation;
  hello.assignment = assigned_.assignment;
  hello.content = assigned_.content;
  hello.layout = context_.layout->summary();
  hello.reader = std::string(context_.name.model) + "/" + std::string(context_.name.replica) + "/" +
                 std::to_string(context_.name.shard.value);
  const Bytes bytes = net::encode(hello);
  Nanos pause = kRefusedPause;
  for (int refusals = 0; !stopped(); ++refusals) {
    const Nanos deadline = deadline_after(runtime.now(), context_.options->connect);
    Result<net::Connected> made = co_await context_.environment.data->connect(
        assigned_.source.endpoint, bytes, context_.wake, deadline);
    if (made) {
      pair_ = std::move(made->pair);
      transport_ = std::string(pair_->transport());
      if (context_.environment.observer != nullptr)
        context_.environment.observer->on_source_connected(context_.name, assigned_.assignment,
                                                           transport_);
      co_return accept_welcome(made->payload);
    }
    if (made.error().code != ErrorCode::kRefused || refusals == kRefusalsMax)
      co_return made.error();
    co_await runtime.sleep_for(pause);
    pause = pause * 2;
  }
  co_return Error{ErrorCode::kClosed, "stopped"};
}

// The source's word on its memory is checked before anything is posted: a bad source is data, not a
// crash.
Result<Done> Reader::accept_welcome(std::span<const uint8_t> payload) {
  Result<net::WelcomeMessage> decoded = net::decode_welcome(payload);
  if (!decoded) return decoded.error();
  welcome_ = std::move(decoded).value();
  const Layout& layout = *context_.layout;
  const Error corrupt{ErrorCode::kCorrupt, "source " + assigned_.source.replica +
                                               " describes memory that cannot be its"};
  if (layout.slice_bytes() > pair_->capabilities().max_read_bytes)
    return Error{ErrorCode::kInvalidArgument,
                 "slice_bytes is " + std::to_string(layout.slice_bytes()) + ", but " + transport_ +
                     " reads at most " + std::to_string(pair_->capabilities().max_read_bytes) +
                     " bytes at once"};
  if (welcome_.stamp.value == 0 || welcome_.control.length < 16) return corrupt;
  if (welcome_.tensors.size() != layout.places().size()) return corrupt;
  for (uint32_t i = 0; i < welcome_.tensors.size(); ++i) {
    const uint64_t length = layout.tensor_bytes(i);
    if (length == 0) continue;
    const net::TensorPlace& place = welcome_.tensors[i];
    if (place.region >= welcome_.regions.size()) return corrupt;
    const uint64_t available = welcome_.regions[place.region].length;
    if (place.offset > available || length > available - place.offset) return corrupt;
  }
  const uint64_t digest_bytes = 8 * (layout.slices().size() + kFirstDigestWord);
  if (welcome_.digests.length != 0 && welcome_.digests.length < digest_bytes) return corrupt;
  return Done{};
}

bool Reader::finished() const {
  return context_.receiving->sealed_slices == context_.layout->slices().size();
}

flow::Task<ReadOutcome> Reader::transfer() {
  flow::Runtime& runtime = *context_.environment.runtime;
  if (context_.receiving->sealed_slices > 0) runtime.probe(probes::kResumed);
  next_to_post_ = context_.receiving->sealed_slices;
  completed_ = next_to_post_;
  look_covers_ = next_to_post_;
  last_progress_ = runtime.now();
  if (WL_BUG(kReadBeyondProven)) slices_allowed_ = context_.layout->slices().size();
  Nanos pause = context_.options->progress_poll;
  ReadOutcome outcome;
  while (true) {
    if (stopped()) co_return ReadOutcome{stop_kind_, "stopped", false};
    if (!take_completions(outcome)) co_return outcome;
    if (finished()) co_return ReadOutcome{net::ReleaseKind::kComplete, {}, false};
    const size_t posted_before = next_to_post_;
    post_slices();
    if (next_to_post_ > posted_before) pause = context_.options->progress_poll;
    const bool something_to_seal = completed_ > context_.receiving->sealed_slices;
    if (!look_under_way_ && (!first_look_done_ || something_to_seal)) post_look();
    if (idle() && broken_) runtime.probe(probes::kPairBroke);
    if (idle() && broken_)
      co_return failed("the queue pair to " + assigned_.source.replica + " broke");
    if (idle()) {
      runtime.probe(probes::kCaughtUp);
      co_await context_.wake->wait_until(deadline_after(runtime.now(), pause));
      pause = std::min(pause * 2, context_.options->progress_poll_max);
      if (!stopped()) post_look();
      continue;
    }
    // A plane may complete a READ while it is posted, when nobody waits for `wake` yet.
    const uint64_t before = outstanding_;
    if (!take_completions(outcome)) co_return outcome;
    if (outstanding_ != before) continue;
    const Nanos deadline = WL_BUG(kNoStall) ? kForever : last_progress_ + context_.options->stall;
    const bool notified = co_await context_.wake->wait_until(deadline);
    if (notified || stopped()) continue;
    if (!take_completions(outcome)) co_return outcome;
    if (outstanding_ != before) continue;
    runtime.probe(probes::kStalled);
    co_return failed("no READ from " + assigned_.source.replica + " completed for " +
                     std::to_string(context_.options->stall.count / 1'000'000) + " ms");
  }
}

void Reader::post_slices() {
  const Layout& layout = *context_.layout;
  while (next_to_post_ < slices_allowed_) {
    const Slice& slice = layout.slices()[next_to_post_];
    if (!window_.admits(slice.length)) return;
    const net::TensorPlace& mine = layout.places()[slice.tensor];
    const net::TensorPlace& theirs = welcome_.tensors[slice.tensor];
    net::ReadWork work;
    work.work_id = next_to_post_;
    work.into = (*context_.regions)[mine.region];
    work.into_offset = mine.offset + slice.tensor_offset;
    work.from = welcome_.regions[theirs.region];
    work.from_offset = theirs.offset + slice.tensor_offset;
    work.length = slice.length;
    work.want_checksum = context_.options->checksums;
    const net::PostResult posted = pair_->post_read(work);
    if (posted == net::PostResult::kQueueFull)
      context_.environment.runtime->probe(probes::kQueueFull);
    broken_ = broken_ || posted == net::PostResult::kBroken;
    if (posted != net::PostResult::kPosted) return;
    const Nanos now = context_.environment.runtime->now();
    if (idle()) last_progress_ = now;
    window_.posted(work.work_id, slice.length, now);
    ++outstanding_;
    ++next_to_post_;
  }
}

void Reader::post_look() {
  net::ReadWork work;
  work.work_id = kLookId;
  work.into = context_.landing;
  work.from = welcome_.control;
  work.length = 16;
  const net::PostResult posted = pair_->post_read(work);
  broken_ = broken_ || posted == net::PostResult::kBroken;
  if (posted != net::PostResult::kPosted) return;
  const Nanos now = context_.environment.runtime->now();
  if (idle()) last_progress_ = now;
  window_.posted(kLookId, 0, now);
  ++outstanding_;
  look_under_way_ = true;
  look_covers_ = completed_;
}

bool Reader::take_completions(ReadOutcome& outcome) {
  while (std::optional<net::Completion> completion = pair_->poll()) {
    --outstanding_;
    if (completion->status != net::CompletionStatus::kSuccess) {
      outcome = failed("a READ from " + assigned_.source.replica + " ended with " +
                       net::completion_status_name(completion->status));
      return false;
    }
    last_progress_ = context_.environment.runtime->now();
    window_.completed(completion->work_id, last_progress_);
    if (completion->work_id == kLookId) {
      if (!look_completed(outcome)) return false;
    } else {
      slice_completed(completion->work_id, completion->checksum);
    }
  }
  return true;
}

void Reader::slice_completed(size_t slice, uint64_t checksum) {
  const uint64_t length = context_.layout->slices()[slice].length;
  if (context_.environment.observer != nullptr)
    context_.environment.observer->on_bytes_read(context_.name, length, transport_);
  if (!context_.receiving->checksums.empty()) context_.receiving->checksums[slice] = checksum;
  WL_ASSERT(slice >= completed_);
  const size_t ahead = slice - completed_;
  if (ahead_.size() <= ahead) ahead_.resize(ahead + 1);
  ahead_[ahead] = true;
  size_t run = 0;
  while (run < ahead_.size() && ahead_[run]) ++run;
  completed_ += run;
  ahead_.erase(ahead_.begin(), ahead_.begin() + static_cast<std::ptrdiff_t>(run));
  if (WL_BUG(kSkipSeal)) seal(completed_);
}

// The slices below are the content's, whatever happens from now on.
void Reader::seal(size_t slices) {
  Receiving& receiving = *context_.receiving;
  if (slices <= receiving.sealed_slices) return;
  context_.environment.runtime->probe(probes::kSealed);
  receiving.sealed_slices = slices;
  receiving.sealed_bytes = context_.layout->slices()[slices - 1].stream_end;
  context_.own->advance(receiving.sealed_bytes);
  if (context_.environment.observer != nullptr)
    context_.environment.observer->on_proven(context_.name, context_.own->stamp(),
                                             receiving.content, receiving.sealed_bytes);
}

bool Reader::look_completed(ReadOutcome& outcome) {
  flow::Runtime& runtime = *context_.environment.runtime;
  look_under_way_ = false;
  [[maybe_unused]] const bool first = !first_look_done_;
  first_look_done_ = true;
  const Stamp stamp{context_.environment.data->load_word(context_.landing, kStampWord)};
  const uint64_t proven = context_.environment.data->load_word(context_.landing, kProvenWord);
  if (WL_BUG(kStampFromLook) && first) welcome_.stamp = stamp;
  if (stamp != welcome_.stamp && !WL_BUG(kIgnoreStamp)) {
    runtime.probe(probes::kSealBroken);
    if (context_.environment.observer != nullptr)
      context_.environment.observer->on_seal_failed(context_.name, assigned_.assignment);
    outcome = failed("source " + assigned_.source.replica + " took its memory back");
    return false;
  }
  if (WL_BUG(kProvenEarly)) look_covers_ = next_to_post_;
  if (WL_BUG(kSealAtCompletion)) look_covers_ = completed_;
  seal(look_covers_);
  // `proven` never retracts under one stamp; this value is the source's word, and counts once the
  // next look is sealed too.
  slices_allowed_ = std::max(slices_allowed_, context_.layout->slices_below(proven));
  return true;
}

// One READ of words, alone on the queue pair.
flow::Task<Result<Done>> Reader::read_words(net::RemoteRegion from_region, uint64_t offset,
                                            net::RegionId into, uint64_t into_offset,
                                            uint64_t length) {
  flow::Runtime& runtime = *context_.environment.runtime;
  net::ReadWork work;
  work.work_id = kWordsId;
  work.into = into;
  work.into_offset = into_offset;
  work.from = from_region;
  work.from_offset = offset;
  work.length = length;
  if (pair_->post_read(work) != net::PostResult::kPosted)
    co_return Error{ErrorCode::kUnreachable, "queue pair broke"};
  ++outstanding_;
  const Nanos deadline = deadline_after(runtime.now(), context_.options->stall);
  while (true) {
    if (std::optional<net::Completion> completion = pair_->poll()) {
      --outstanding_;
      if (completion->status == net::CompletionStatus::kSuccess) co_return Done{};
      co_return Error{ErrorCode::kUnreachable, net::completion_status_name(completion->status)};
    }
    if (stopped()) co_return Error{ErrorCode::kClosed, "stopped"};
    if (runtime.now() >= deadline)
      co_return Error{ErrorCode::kTimeout, "checksums could not be read in time"};
    co_await context_.wake->wait_until(deadline);
  }
}

// All data is sealed; now it is compared with what the origin says it published. The table is
// sealed like data: its own stamp word first, then the entries, then a look at the control block.
flow::Task<ReadOutcome> Reader::check_digests() {
  flow::Runtime& runtime = *context_.environment.runtime;
  net::DataPlane& data = *context_.environment.data;
  const Layout& layout = *context_.layout;
  if (welcome_.digests.length == 0 || welcome_.slice_bytes != layout.slice_bytes())
    co_return ReadOutcome{
        net::ReleaseKind::kFailed,
        "source " + assigned_.source.replica + " has no checksums for slices of " +
            std::to_string(layout.slice_bytes()) + " bytes: publish with checksums on",
        true};
  Nanos pause = context_.options->progress_poll;
  while (true) {
    if (stopped()) co_return ReadOutcome{stop_kind_, "stopped", false};
    Result<Done> read = co_await read_words(welcome_.digests, 0, context_.landing, 16, 8);
    if (stopped()) co_return ReadOutcome{stop_kind_, "stopped", false};
    if (!read) runtime.probe(probes::kDigestsLost);
    if (!read)
      co_return failed("checksums of " + assigned_.source.replica + ": " + read.error().message);
    if (data.load_word(context_.landing, 2) == welcome_.stamp.value) break;
    runtime.probe(probes::kDigestWaited);
    co_await context_.wake->wait_until(deadline_after(runtime.now(), pause));
    pause = std::min(pause * 2, context_.options->progress_poll_max);
    Result<Done> looked = co_await read_words(welcome_.control, 0, context_.landing, 0, 16);
    if (stopped()) co_return ReadOutcome{stop_kind_, "stopped", false};
    if (!looked || data.load_word(context_.landing, kStampWord) != welcome_.stamp.value)
      co_return failed("source " + assigned_.source.replica +
                       " took its memory back before its checksums were read");
  }
  const uint64_t total = 8 * layout.slices().size();
  const uint64_t chunk = pair_->capabilities().max_read_bytes / 8 * 8;
  for (uint64_t at = 0; at < total; at += chunk) {
    const uint64_t length = std::min(chunk, total - at);
    Result<Done> read =
        co_await read_words(welcome_.digests, 8 + at, context_.own->digest_words(), 8 + at, length);
    if (stopped()) co_return ReadOutcome{stop_kind_, "stopped", false};
    if (!read) runtime.probe(probes::kDigestsLost);
    if (!read)
      co_return failed("checksums of " + assigned_.source.replica + ": " + read.error().message);
  }
  Result<Done> looked = co_await read_words(welcome_.control, 0, context_.landing, 0, 16);
  if (stopped()) co_return ReadOutcome{stop_kind_, "stopped", false};
  const bool gone = !looked || data.load_word(context_.landing, kStampWord) != welcome_.stamp.value;
  if (gone) runtime.probe(probes::kDigestsGone);
  if (gone)
    co_return failed("source " + assigned_.source.replica +
                     " took its memory back while its checksums were read");

  for (size_t i = 0; i < layout.slices().size(); ++i) {
    const uint64_t published =
        data.load_word(context_.own->digest_words(), kFirstDigestWord + static_cast<uint32_t>(i));
    if (published == context_.receiving->checksums[i] || WL_BUG(kDigestIgnored)) continue;
    runtime.probe(probes::kDigestMismatch);
    const Slice& slice = layout.slices()[i];
    co_return ReadOutcome{
        net::ReleaseKind::kFailed,
        "checksum of tensor \"" + layout.tensor_name(slice.tensor) + "\" at byte " +
            std::to_string(slice.tensor_offset) + " differs from what " + assigned_.source.replica +
            " published: its tensors changed while they were published, or the bytes were damaged",
        true};
  }
  context_.own->digests_ready();
  co_return ReadOutcome{net::ReleaseKind::kComplete, {}, false};
}

}  // namespace weightlane::ros
