// One lock per pair: it is taken a few times per READ, and READs are megabytes.
#include "prod/read_queue.h"

#include <utility>

#include "flow/assert.h"

namespace weightlane::prod {

using net::Completion;
using net::CompletionStatus;
using net::PostResult;

ReadQueue::ReadQueue(EventLoop& loop, flow::Signal* wake, net::Capabilities capabilities)
    : loop_(loop), wake_(wake), capabilities_(capabilities), drained_(loop.runtime()) {}

PostResult ReadQueue::post(MemoryRegistry& registry, RegionUser* user, const net::ReadWork& work,
                           std::unique_ptr<PendingRead>& out) {
  if (broken() || closed_.load()) return PostResult::kBroken;
  uint64_t sequence = 0;
  {
    std::lock_guard lock(mutex_);
    if (slots_.size() >= capabilities_.max_outstanding_reads) return PostResult::kQueueFull;
    sequence = first_ + slots_.size();
    Slot slot;
    slot.work_id = work.work_id;
    slots_.push_back(slot);
    ++unfinished_;
  }
  if (work.length == 0 || work.length > capabilities_.max_read_bytes) {
    end(sequence, CompletionStatus::kLocalLength, 0);
    return PostResult::kPosted;
  }
  auto read = std::make_unique<PendingRead>();
  read->sequence = sequence;
  read->work = work;
  read->into = registry.use(work.into, work.into_offset, work.length, user);
  if (!read->into) {
    end(sequence, CompletionStatus::kLocalProtection, 0);
    return PostResult::kPosted;
  }
  out = std::move(read);
  return PostResult::kPosted;
}

std::optional<Completion> ReadQueue::poll() {
  std::lock_guard lock(mutex_);
  if (slots_.empty() || !slots_.front().done) return std::nullopt;
  const Slot slot = slots_.front();
  slots_.pop_front();
  ++first_;
  Completion completion;
  completion.work_id = slot.work_id;
  completion.status = flushing_ ? CompletionStatus::kFlushed : slot.status;
  if (completion.status == CompletionStatus::kSuccess) {
    completion.checksum = slot.checksum;
  } else {
    flushing_ = true;
  }
  return completion;
}

void ReadQueue::finish(std::unique_ptr<PendingRead> read, CompletionStatus status,
                       uint64_t checksum) {
  const uint64_t sequence = read->sequence;
  read.reset();  // the destination is let go before anybody hears of it
  end(sequence, status, checksum);
}

void ReadQueue::end(uint64_t sequence, CompletionStatus status, uint64_t checksum) {
  std::unique_lock lock(mutex_);
  if (status != CompletionStatus::kSuccess) {
    broken_.store(true);
    if (sequence < first_error_.load()) first_error_.store(sequence);
  }
  WL_ASSERT_OP(sequence, >=, first_);
  Slot& slot = slots_[sequence - first_];
  WL_ASSERT(!slot.done);
  slot.done = true;
  slot.status = status;
  slot.checksum = checksum;
  --unfinished_;
  if (sequence == first_ || unfinished_ == 0) notify_later(std::move(lock));
}

void ReadQueue::notify_later(std::unique_lock<std::mutex> lock) {
  if (std::exchange(notification_due_, true)) return;
  lock.unlock();
  loop_.post_to_loop([self = shared_from_this()] {
    bool drained = false;
    {
      std::lock_guard again(self->mutex_);
      self->notification_due_ = false;
      drained = self->unfinished_ == 0;
    }
    if (self->wake_ != nullptr) self->wake_->notify_all();
    if (drained) self->drained_.notify_all();
  });
}

void ReadQueue::break_pair() {
  broken_.store(true);
  notify_later(std::unique_lock(mutex_));
}

void ReadQueue::close() {
  closed_.store(true);
  wake_ = nullptr;
}

flow::Task<Result<Done>> ReadQueue::drained(std::shared_ptr<ReadQueue> queue, std::string whom,
                                            Nanos deadline) {
  WL_ASSERT(queue->closed_.load());
  for (;;) {
    uint64_t left = 0;
    {
      std::lock_guard lock(queue->mutex_);
      left = queue->unfinished_;
    }
    if (left == 0) co_return Done{};
    if (queue->loop_.runtime().now() >= deadline) {
      co_return Error{ErrorCode::kDestinationPoisoned,
                      std::to_string(left) + " READs from " + whom + " did not end in time"};
    }
    co_await queue->drained_.wait_until(deadline);
  }
}

}  // namespace weightlane::prod
