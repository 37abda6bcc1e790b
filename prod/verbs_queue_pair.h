// The two ends of a verbs connection as net sees them: VerbsQueuePair (reader) and VerbsPassivePair
// (source).
//
// VerbsReader is what a reader's end really is. It is shared, because it has to outlive the
// QueuePair object when that is dropped in the middle of destroy(), and it goes only when its queue
// pair is destroyed (S5, R5).
//
// Completions are handed out in posting order. They arrive in that order anyway (RC), except that a
// checksum, which a helper computes, may take longer than the READs behind it.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include "flow/signal.h"
#include "net/data_plane.h"
#include "prod/event_loop.h"
#include "prod/verbs_device.h"
#include "prod/verbs_memory.h"
#include "prod/verbs_socket.h"

namespace weightlane::prod {

class VerbsReader : public std::enable_shared_from_this<VerbsReader> {
 public:
  VerbsReader(EventLoop& loop, std::shared_ptr<VerbsMemory> memory, std::shared_ptr<VerbsPair> pair,
              std::shared_ptr<FrameSocket> socket, net::Capabilities capabilities,
              flow::Signal* wake);
  ~VerbsReader();
  VerbsReader(const VerbsReader&) = delete;
  VerbsReader& operator=(const VerbsReader&) = delete;

  // Once, after construction: begins to listen for completions and for the end of the connection.
  void start();
  const net::Capabilities& capabilities() const { return capabilities_; }
  net::PostResult post_read(const net::ReadWork& work);
  std::optional<net::Completion> poll();
  // `wake` is not touched any more.
  void forget_wake() { wake_ = nullptr; }
  // The path or the device is known to be gone: what is posted ends now, the first of it with
  // `first` if the device only calls it flushed. Nothing further is accepted.
  void break_off(net::CompletionStatus first);
  bool is(const ibv_qp* pair) const { return pair_ != nullptr && pair_->queue_pair() == pair; }
  bool is(const ibv_cq* queue) const { return pair_ != nullptr && pair_->queue() == queue; }
  static flow::Task<Result<Done>> destroy(std::shared_ptr<VerbsReader> self, Nanos deadline);

 private:
  enum class Phase : uint8_t { kPosted, kSumming, kDone };
  struct Slot {
    explicit Slot(const net::ReadWork& posted) : work(posted) {}
    net::ReadWork work;
    Phase phase = Phase::kPosted;
    net::Completion completion;
  };
  net::CompletionStatus refuse(const net::ReadWork& work) const;
  void on_channel();
  void pull();
  void on_completion(uint64_t id, ibv_wc_status status);
  void finish(Slot& slot, net::CompletionStatus status);
  void sum(uint64_t id);
  bool front_done() const { return !slots_.empty() && slots_.front().phase == Phase::kDone; }

  EventLoop& loop_;
  std::shared_ptr<VerbsMemory> memory_;
  std::shared_ptr<VerbsPair> pair_;  // null once it went to a helper to be destroyed
  std::shared_ptr<FrameSocket> socket_;
  net::Capabilities capabilities_;
  flow::Signal* wake_;
  std::deque<Slot> slots_;  // posted and not yet polled, in order
  uint64_t first_id_ = 0;   // the number (wr_id) of slots_.front()
  uint32_t on_device_ = 0;  // posted, no completion yet: their memory is the device's
  bool broken_ = false;     // nothing further is accepted
  bool failed_ = false;     // the first error has been handed out
  net::CompletionStatus first_error_ = net::CompletionStatus::kFlushed;
  flow::Signal drained_;  // on_device_ became 0
  std::unique_ptr<FdWatch> watch_;
};

class VerbsQueuePair final : public net::QueuePair {
 public:
  explicit VerbsQueuePair(std::shared_ptr<VerbsReader> reader) : reader_(std::move(reader)) {}
  ~VerbsQueuePair() override { reader_->forget_wake(); }
  net::Capabilities capabilities() const override { return reader_->capabilities(); }
  std::string_view transport() const override { return "verbs"; }
  net::PostResult post_read(const net::ReadWork& work) override { return reader_->post_read(work); }
  std::optional<net::Completion> poll() override { return reader_->poll(); }
  flow::Task<Result<Done>> destroy(Nanos deadline) override {
    return VerbsReader::destroy(reader_, deadline);
  }

 private:
  std::shared_ptr<VerbsReader> reader_;
};

// What the plane and the acceptor share of a source's end, while the acceptor makes up its mind.
struct VerbsSource {
  std::shared_ptr<VerbsMemory> memory;
  std::shared_ptr<VerbsPair> pair;
  std::shared_ptr<FrameSocket> socket;
  bool deciding = true;  // the socket is still needed for the answer
  bool dropped = false;
};

class VerbsPassivePair final : public net::PassiveQueuePair {
 public:
  explicit VerbsPassivePair(std::shared_ptr<VerbsSource> source) : source_(std::move(source)) {}
  // The fence: when it returns, the device answers no READ on this pair any more. The reader is
  // told by the end of the connection, so that it need not wait for its retries to run out.
  ~VerbsPassivePair() override;
  net::RemoteRegion describe(net::RegionId region) override;
  bool closed() const override { return source_->socket->closed(); }
  std::string_view transport() const override { return "verbs"; }

 private:
  std::shared_ptr<VerbsSource> source_;
};

}  // namespace weightlane::prod
