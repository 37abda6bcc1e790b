// A data plane made by hand, for tests of Reader and Source: READs are copies within this process,
// carried out when the test says so (or at once), in the order the test likes, and every READ that
// reaches outside a region is counted.
#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "flow/signal.h"
#include "net/codec.h"
#include "net/data_plane.h"

namespace weightlane::ros::testing {

inline uint64_t sum_of(const uint8_t* bytes, uint64_t length) {
  uint64_t sum = 1469598103934665603ull;
  for (uint64_t i = 0; i < length; ++i) sum = (sum ^ bytes[i]) * 1099511628211ull;
  return sum;
}

class FakePlane;

class FakePair final : public net::QueuePair {
 public:
  FakePair(FakePlane* plane, flow::Signal* wake, std::shared_ptr<bool> source_open)
      : plane_(plane), wake_(wake), source_open_(std::move(source_open)) {}
  ~FakePair() override;

  net::Capabilities capabilities() const override;
  std::string_view transport() const override { return "fake"; }
  net::PostResult post_read(const net::ReadWork& work) override;
  std::optional<net::Completion> poll() override {
    if (arrived_.empty()) return std::nullopt;
    const net::Completion completion = arrived_.front();
    arrived_.pop_front();
    return completion;
  }
  flow::Task<Result<Done>> destroy(Nanos deadline) override;

  void complete(net::Completion completion) {
    arrived_.push_back(completion);
    if (arrived_.size() == 1) wake_->notify_all();
  }
  bool source_open() const { return *source_open_; }

 private:
  FakePlane* plane_;
  flow::Signal* wake_;
  std::shared_ptr<bool> source_open_;
  std::deque<net::Completion> arrived_;
};

class FakePlane final : public net::DataPlane {
 public:
  explicit FakePlane(flow::Runtime* clock) : runtime(clock) {}

  // ---------------------------------------------------------------- the test's hands

  // Carries out the READ at `index` of those posted, with this end.
  void serve(size_t index, net::CompletionStatus status = net::CompletionStatus::kSuccess) {
    const auto [pair, work] = posted.at(index);
    posted.erase(posted.begin() + static_cast<std::ptrdiff_t>(index));
    net::Completion completion{work.work_id, status, 0};
    const auto from = regions_.find(work.from.key);
    if (from == regions_.end() || (fences && !pair->source_open()))
      completion.status = net::CompletionStatus::kRemoteAccess;
    if (completion.status == net::CompletionStatus::kSuccess) {
      uint8_t* into = regions_.at(work.into.value).bytes + work.into_offset;
      std::memcpy(into, from->second.bytes + work.from_offset, work.length);
      if (damage) damage(into, work.length);
      if (work.want_checksum) completion.checksum = sum_of(into, work.length);
      bytes_read += work.length;
    }
    pair->complete(completion);
  }
  void serve_all() {
    while (!posted.empty()) serve(0);
  }

  flow::Runtime* runtime;
  bool at_once = true;  // READs are carried out when posted
  bool fences = false;
  bool silent = false;         // connect is never answered
  bool destroy_fails = false;  // queue pairs cannot be destroyed
  uint64_t max_read_bytes = 1ull << 30;
  size_t max_outstanding = 64;
  std::function<void(net::WelcomeMessage&)> lie;
  std::optional<Bytes> payload;  // instead of a welcome
  std::function<void(uint8_t*, uint64_t)> damage;
  std::deque<std::pair<FakePair*, net::ReadWork>> posted;
  std::vector<net::ReadWork> history;
  uint64_t outside = 0;  // READs beyond a region
  uint64_t bytes_read = 0;
  uint64_t connects = 0;
  uint64_t destroyed = 0;
  uint64_t open_pairs = 0;

  // ---------------------------------------------------------------- net::DataPlane

  flow::Task<Result<net::RegionId>> register_memory(net::MemoryRange range) override {
    co_return add(reinterpret_cast<uint8_t*>(range.address), range.length);
  }
  flow::Task<void> deregister(net::RegionId region) override {
    regions_.erase(region.value);
    co_return;
  }
  Result<net::RegionId> allocate_words(uint32_t count) override {
    auto words = std::make_unique<std::vector<uint64_t>>(count);
    const net::RegionId id = add(reinterpret_cast<uint8_t*>(words->data()), count * 8ull);
    words_[id.value] = std::move(words);
    return id;
  }
  void free_words(net::RegionId words) override {
    regions_.erase(words.value);
    words_.erase(words.value);
  }
  void store_word(net::RegionId words, uint32_t index, uint64_t value) override {
    words_.at(words.value)->at(index) = value;
  }
  uint64_t load_word(net::RegionId words, uint32_t index) const override {
    return words_.at(words.value)->at(index);
  }
  flow::Task<Result<uint64_t>> checksum(net::RegionId region, uint64_t offset,
                                        uint64_t length) override {
    co_await runtime->sleep_for(micros(10));
    co_return sum_of(regions_.at(region.value).bytes + offset, length);
  }
  Result<std::string> listen(net::Acceptor* acceptor) override {
    std::string endpoint = "endpoint-" + std::to_string(next_++);
    acceptors_[endpoint] = acceptor;
    return endpoint;
  }
  void stop_listening(net::Acceptor* acceptor) override {
    std::erase_if(acceptors_, [acceptor](const auto& entry) { return entry.second == acceptor; });
  }
  flow::Task<Result<net::Connected>> connect(std::string endpoint, Bytes hello, flow::Signal* wake,
                                             Nanos deadline) override {
    ++connects;
    co_await runtime->sleep_for(millis(1));
    auto found = acceptors_.find(endpoint);
    if (silent || found == acceptors_.end()) {
      co_await runtime->sleep_until(deadline);
      co_return Error{ErrorCode::kUnreachable, endpoint + " does not answer"};
    }
    auto open = std::make_shared<bool>(true);
    net::AcceptDecision decision =
        found->second->on_connect(hello, std::make_unique<Passive>(this, open));
    if (!decision) co_return decision.error();
    Bytes answer = payload.value_or(decision->payload);
    if (lie) {
      Result<net::WelcomeMessage> welcome = net::decode_welcome(answer);
      WL_ASSERT(welcome.ok());
      lie(*welcome);
      answer = net::encode(*welcome);
    }
    ++open_pairs;
    auto pair = std::make_unique<FakePair>(this, wake, open);
    co_return net::Connected{std::move(pair), std::move(answer)};
  }

  bool inside(const net::ReadWork& work) const {
    auto into = regions_.find(work.into.value);
    if (into == regions_.end() || work.length == 0 || work.length > max_read_bytes) return false;
    if (work.into_offset + work.length > into->second.length) return false;
    if (work.from_offset + work.length > work.from.length) return false;
    auto from = regions_.find(work.from.key);
    return from == regions_.end() || work.from_offset + work.length <= from->second.length;
  }

 private:
  struct Region {
    uint8_t* bytes = nullptr;
    uint64_t length = 0;
  };
  class Passive final : public net::PassiveQueuePair {
   public:
    Passive(FakePlane* plane, std::shared_ptr<bool> open) : plane_(plane), open_(std::move(open)) {}
    ~Passive() override { *open_ = false; }
    net::RemoteRegion describe(net::RegionId region) override {
      return {region.value, 0, plane_->regions_.at(region.value).length};
    }
    bool closed() const override { return false; }
    std::string_view transport() const override { return "fake"; }

   private:
    FakePlane* plane_;
    std::shared_ptr<bool> open_;
  };

  net::RegionId add(uint8_t* bytes, uint64_t length) {
    const net::RegionId id{next_++};
    regions_[id.value] = {bytes, length};
    return id;
  }

  uint64_t next_ = 1;
  std::map<uint64_t, Region> regions_;
  std::map<uint64_t, std::unique_ptr<std::vector<uint64_t>>> words_;
  std::map<std::string, net::Acceptor*> acceptors_;
};

inline FakePair::~FakePair() {
  std::erase_if(plane_->posted, [this](const auto& entry) { return entry.first == this; });
  --plane_->open_pairs;
}
inline net::Capabilities FakePair::capabilities() const {
  return {plane_->fences, plane_->max_read_bytes, static_cast<uint32_t>(plane_->max_outstanding)};
}
inline net::PostResult FakePair::post_read(const net::ReadWork& work) {
  if (plane_->posted.size() >= plane_->max_outstanding) return net::PostResult::kQueueFull;
  plane_->history.push_back(work);
  if (!plane_->inside(work)) {
    ++plane_->outside;
    return net::PostResult::kBroken;
  }
  plane_->posted.emplace_back(this, work);
  if (plane_->at_once) plane_->serve(plane_->posted.size() - 1);
  return net::PostResult::kPosted;
}
inline flow::Task<Result<Done>> FakePair::destroy(Nanos deadline) {
  if (plane_->destroy_fails) {
    co_await plane_->runtime->sleep_until(deadline);
    co_return Error{ErrorCode::kDestinationPoisoned, "the queue pair does not drain"};
  }
  co_await plane_->runtime->sleep_for(millis(1));
  std::erase_if(plane_->posted, [this](const auto& entry) { return entry.first == this; });
  ++plane_->destroyed;
  co_return Done{};
}

}  // namespace weightlane::ros::testing
