// A READ's way: post_read -> the device -> a completion on the channel -> pull -> (checksum) ->
// poll.
#include "prod/verbs_queue_pair.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "flow/combinators.h"

namespace weightlane::prod {
namespace {

constexpr Nanos kDrainMax = seconds(5);  // completions that have not come by then will not come
// A caller that comes late still gets its memory back from a device that is well.
constexpr Nanos kDestroyMin = millis(100);

// Values are ibv_wc_status's where net has one; the others are our own mistakes, or never come for
// a READ.
net::CompletionStatus status_of(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_SUCCESS:
      return net::CompletionStatus::kSuccess;
    case IBV_WC_LOC_LEN_ERR:
      return net::CompletionStatus::kLocalLength;
    case IBV_WC_LOC_QP_OP_ERR:
      return net::CompletionStatus::kLocalQpOperation;
    case IBV_WC_LOC_PROT_ERR:
      return net::CompletionStatus::kLocalProtection;
    case IBV_WC_WR_FLUSH_ERR:
      return net::CompletionStatus::kFlushed;
    case IBV_WC_BAD_RESP_ERR:
      return net::CompletionStatus::kBadResponse;
    case IBV_WC_LOC_ACCESS_ERR:
      return net::CompletionStatus::kLocalAccess;
    case IBV_WC_REM_INV_REQ_ERR:
      return net::CompletionStatus::kRemoteInvalidRequest;
    case IBV_WC_REM_ACCESS_ERR:
      return net::CompletionStatus::kRemoteAccess;
    case IBV_WC_REM_OP_ERR:
      return net::CompletionStatus::kRemoteOperation;
    case IBV_WC_RETRY_EXC_ERR:
      return net::CompletionStatus::kRetryExceeded;
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return net::CompletionStatus::kRnrRetryExceeded;
    case IBV_WC_FATAL_ERR:
      return net::CompletionStatus::kFatal;
    case IBV_WC_RESP_TIMEOUT_ERR:
      return net::CompletionStatus::kResponseTimeout;
    default:
      return net::CompletionStatus::kGeneral;
  }
}

}  // namespace

VerbsReader::VerbsReader(EventLoop& loop, std::shared_ptr<VerbsMemory> memory,
                         std::shared_ptr<VerbsPair> pair, std::shared_ptr<FrameSocket> socket,
                         net::Capabilities capabilities, flow::Signal* wake)
    : loop_(loop),
      memory_(std::move(memory)),
      pair_(std::move(pair)),
      socket_(std::move(socket)),
      capabilities_(capabilities),
      wake_(wake),
      drained_(loop.runtime()) {}

VerbsReader::~VerbsReader() { socket_->close(); }

void VerbsReader::start() {
  watch_ = loop_.watch(pair_->channel_fd(), [this](FdReady) { on_channel(); });
  const std::weak_ptr<VerbsReader> weak = weak_from_this();
  // The source fenced us, or its process died: it will not answer, so there is no need to wait
  // until retries run out.
  socket_->on_close([weak] {
    if (const auto self = weak.lock()) self->break_off(net::CompletionStatus::kRetryExceeded);
  });
  if (socket_->closed()) break_off(net::CompletionStatus::kRetryExceeded);
}

// What a device would say of this work at once, from its own side. Checked here as well, because
// rxe does not enforce max_msg_sz (S10), and because a region that is gone has no key to give to
// the device.
net::CompletionStatus VerbsReader::refuse(const net::ReadWork& work) const {
  if (work.length == 0 || work.length > capabilities_.max_read_bytes)
    return net::CompletionStatus::kLocalLength;
  const VerbsRegion* const region = memory_->find(work.into);
  if (region == nullptr || work.into_offset > region->length() ||
      work.length > region->length() - work.into_offset) {
    return net::CompletionStatus::kLocalProtection;
  }
  if (work.want_checksum && region->on_gpu()) return net::CompletionStatus::kLocalQpOperation;
  return net::CompletionStatus::kSuccess;
}

net::PostResult VerbsReader::post_read(const net::ReadWork& work) {
  if (broken_ || pair_ == nullptr) return net::PostResult::kBroken;
  if (slots_.size() >= capabilities_.max_outstanding_reads) return net::PostResult::kQueueFull;
  const net::CompletionStatus refusal = refuse(work);
  if (refusal != net::CompletionStatus::kSuccess) {
    broken_ = true;
    Slot& slot = slots_.emplace_back(work);
    finish(slot, refusal);
    if (front_done() && wake_ != nullptr) wake_->notify_all();
    return net::PostResult::kPosted;
  }
  const VerbsRegion* const region = memory_->find(work.into);
  const ibv_sge into{region->address() + work.into_offset, static_cast<uint32_t>(work.length),
                     region->local_key()};
  const uint64_t id = first_id_ + slots_.size();
  const int failed = pair_->post_read(id, into, work.from.base + work.from_offset,
                                      static_cast<uint32_t>(work.from.key));
  if (failed == ENOMEM) return net::PostResult::kQueueFull;
  if (failed != 0) {
    break_off(net::CompletionStatus::kLocalQpOperation);
    return net::PostResult::kBroken;
  }
  slots_.emplace_back(work);
  ++on_device_;
  return net::PostResult::kPosted;
}

std::optional<net::Completion> VerbsReader::poll() {
  if (pair_ == nullptr) return std::nullopt;
  // What has come since the last event is taken without one.
  if (!front_done() && on_device_ != 0) pull();
  if (!front_done()) return std::nullopt;
  const net::Completion completion = slots_.front().completion;
  slots_.pop_front();
  ++first_id_;
  return completion;
}

void VerbsReader::on_channel() {
  if (pair_ == nullptr) return;
  const bool was_done = front_done();
  pair_->take_events_and_arm();
  pull();  // after arming, never only before (F25)
  if (!was_done && front_done() && wake_ != nullptr) wake_->notify_all();
}

void VerbsReader::pull() {
  std::array<ibv_wc, 16> completions;
  for (;;) {
    const int count = pair_->poll(completions);
    if (count < 0) {
      break_off(net::CompletionStatus::kFatal);
      return;
    }
    // Only wr_id and status are valid whatever happened (S1).
    for (int i = 0; i < count; ++i)
      on_completion(completions[static_cast<size_t>(i)].wr_id,
                    completions[static_cast<size_t>(i)].status);
    if (count < static_cast<int>(completions.size())) return;
  }
}

void VerbsReader::on_completion(uint64_t id, ibv_wc_status status) {
  WL_ASSERT_OP(id, >=, first_id_);
  WL_ASSERT_OP(id - first_id_, <, slots_.size());
  Slot& slot = slots_[id - first_id_];
  WL_ASSERT(slot.phase == Phase::kPosted);
  --on_device_;
  if (on_device_ == 0) drained_.notify_all();
  if (status == IBV_WC_SUCCESS && slot.work.want_checksum) {
    slot.phase = Phase::kSumming;
    sum(id);
    return;
  }
  finish(slot, status_of(status));
}

void VerbsReader::finish(Slot& slot, net::CompletionStatus status) {
  if (status == net::CompletionStatus::kFlushed && !failed_) status = first_error_;
  if (status != net::CompletionStatus::kSuccess) failed_ = broken_ = true;
  slot.phase = Phase::kDone;
  slot.completion.work_id = slot.work.work_id;
  slot.completion.status = status;
}

void VerbsReader::sum(uint64_t id) {
  const net::ReadWork& work = slots_[id - first_id_].work;
  const std::weak_ptr<VerbsReader> weak = weak_from_this();
  if (memory_->find(work.into) == nullptr) {  // deregistered under a READ: the caller's mistake
    finish(slots_[id - first_id_], net::CompletionStatus::kLocalProtection);
    return;
  }
  memory_->checksum_then(work.into, work.into_offset, work.length, [weak, id](uint64_t value) {
    const auto self = weak.lock();
    if (!self || self->slots_.empty()) return;
    const bool was_done = self->front_done();
    Slot& slot = self->slots_[id - self->first_id_];  // still there: nothing overtakes it
    slot.completion.checksum = value;
    self->finish(slot, net::CompletionStatus::kSuccess);
    if (!was_done && self->front_done() && self->wake_ != nullptr) self->wake_->notify_all();
  });
}

void VerbsReader::break_off(net::CompletionStatus first) {
  if (pair_ == nullptr) return;
  if (!broken_) first_error_ = first;
  broken_ = true;
  pair_->to_error();
  if (wake_ != nullptr) wake_->notify_all();
}

// R6: to ERROR, drain, destroy. The drain only makes the device's work visible as done; the proof
// is the destruction.
flow::Task<Result<Done>> VerbsReader::destroy(std::shared_ptr<VerbsReader> self, Nanos deadline) {
  if (self->pair_ == nullptr) co_return Done{};
  self->forget_wake();
  self->break_off(net::CompletionStatus::kFlushed);
  self->pull();
  flow::Runtime& runtime = self->loop_.runtime();
  const Nanos now = runtime.now();
  const Nanos drain_until = now < deadline ? now + std::min(kDrainMax, (deadline - now) / 2) : now;
  while (self->on_device_ != 0) {
    const bool notified = co_await self->drained_.wait_until(drain_until);
    if (!notified) break;
  }
  if (self->pair_ == nullptr) co_return Done{};  // destroyed by a second call meanwhile
  self->watch_.reset();
  std::shared_ptr<VerbsPair> pair = std::move(self->pair_);
  self->pair_ = nullptr;
  self->slots_.clear();
  std::function<int()> work = [pair = std::move(pair)] { return pair->destroy(); };
  const Nanos destroy_until = std::max(deadline, runtime.now() + kDestroyMin);
  const std::optional<int> failed = co_await flow::with_timeout(
      runtime, destroy_until, self->loop_.run_on_helper<int>(std::move(work)));
  self->socket_->close();
  if (failed.has_value() && *failed == 0) co_return Done{};
  co_return Error{ErrorCode::kDestinationPoisoned,
                  failed.has_value()
                      ? std::string("the queue pair cannot be destroyed: ") + std::strerror(*failed)
                      : "the queue pair was not destroyed in time; the device may still write"};
}

VerbsPassivePair::~VerbsPassivePair() {
  // Destroying alone would let rxe answer first what it has been asked already.
  source_->pair->to_error();
  source_->pair->destroy();
  source_->dropped = true;
  if (!source_->deciding) source_->socket->close();
}

net::RemoteRegion VerbsPassivePair::describe(net::RegionId region) {
  const VerbsRegion* const found = source_->memory->find(region);
  WL_ASSERT(found != nullptr);
  return {.key = found->remote_key(), .base = found->address(), .length = found->length()};
}

}  // namespace weightlane::prod
