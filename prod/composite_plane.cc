// Nothing is decided here but which part is asked; every promise of the contract is kept by the
// part.
#include "prod/composite_plane.h"

#include <algorithm>
#include <utility>

#include "flow/assert.h"

namespace weightlane::prod {
namespace {

// The part of "a=x;b=y" that belongs to `name`; empty when there is none.
std::string part_of(const std::string& endpoint, const std::string& name) {
  for (size_t begin = 0; begin < endpoint.size();) {
    const size_t end = std::min(endpoint.find(';', begin), endpoint.size());
    const size_t equals = endpoint.find('=', begin);
    if (equals < end && endpoint.compare(begin, equals - begin, name) == 0) {
      return endpoint.substr(equals + 1, end - equals - 1);
    }
    begin = end + 1;
  }
  return "";
}

// "same-host, tcp" of an endpoint.
std::string names_in(const std::string& endpoint) {
  std::string names;
  for (size_t begin = 0; begin < endpoint.size();) {
    const size_t end = std::min(endpoint.find(';', begin), endpoint.size());
    const size_t equals = endpoint.find('=', begin);
    if (equals < end) names += (names.empty() ? "" : ", ") + endpoint.substr(begin, equals - begin);
    begin = end + 1;
  }
  return names.empty() ? "none" : names;
}

void append(std::string& list, const std::string& item) {
  if (!list.empty()) list += "; ";
  list += item;
}

}  // namespace

class CompositePlane::PassivePair final : public net::PassiveQueuePair {
 public:
  PassivePair(std::shared_ptr<Regions> regions, size_t part,
              std::unique_ptr<net::PassiveQueuePair> pair)
      : regions_(std::move(regions)), part_(part), pair_(std::move(pair)) {}
  net::RemoteRegion describe(net::RegionId region) override {
    return pair_->describe(regions_->of_part(region, part_));
  }
  bool closed() const override { return pair_->closed(); }
  std::string_view transport() const override { return pair_->transport(); }

 private:
  std::shared_ptr<Regions> regions_;
  size_t part_;
  std::unique_ptr<net::PassiveQueuePair> pair_;
};

class CompositePlane::PartAcceptor final : public net::Acceptor {
 public:
  PartAcceptor(std::shared_ptr<Regions> regions, size_t part, net::Acceptor* acceptor)
      : regions_(std::move(regions)), part_(part), acceptor_(acceptor) {}
  net::AcceptDecision on_connect(std::span<const uint8_t> hello,
                                 std::unique_ptr<net::PassiveQueuePair> pair) override {
    return acceptor_->on_connect(hello,
                                 std::make_unique<PassivePair>(regions_, part_, std::move(pair)));
  }

 private:
  std::shared_ptr<Regions> regions_;
  size_t part_;
  net::Acceptor* acceptor_;
};

class CompositePlane::Pair final : public net::QueuePair {
 public:
  Pair(std::shared_ptr<Regions> regions, size_t part, std::unique_ptr<net::QueuePair> pair)
      : regions_(std::move(regions)), part_(part), pair_(std::move(pair)) {}
  net::Capabilities capabilities() const override { return pair_->capabilities(); }
  std::string_view transport() const override { return pair_->transport(); }
  net::PostResult post_read(const net::ReadWork& work) override {
    net::ReadWork theirs = work;
    theirs.into = regions_->of_part(work.into, part_);
    return pair_->post_read(theirs);
  }
  std::optional<net::Completion> poll() override { return pair_->poll(); }
  flow::Task<Result<Done>> destroy(Nanos deadline) override { return pair_->destroy(deadline); }

 private:
  std::shared_ptr<Regions> regions_;
  size_t part_;
  std::unique_ptr<net::QueuePair> pair_;
};

// Takes back what some parts have registered when not all could, or when nobody waits any more.
class CompositePlane::Undo {
 public:
  explicit Undo(CompositePlane* plane) : plane_(plane) {}
  Undo(const Undo&) = delete;
  Undo& operator=(const Undo&) = delete;
  ~Undo() {
    if (region.parts.empty()) return;
    plane_->tasks_.spawn(plane_->deregister_parts(std::move(region)), "undo a registration");
  }
  Region region;

 private:
  CompositePlane* plane_;
};

net::RegionId CompositePlane::Regions::of_part(net::RegionId ours, size_t part) const {
  const auto found = by_id.find(ours);
  // 0 is nobody's id: the part says what it says to an unknown one.
  return found == by_id.end() ? net::RegionId{} : found->second.parts[part];
}

CompositePlane::CompositePlane(EventLoop& loop, SharedArenas& arenas, CompositeOptions options)
    : loop_(loop), options_(std::move(options)), words_(loop, &arenas), tasks_(loop.runtime()) {}

CompositePlane::~CompositePlane() { tasks_.cancel_all(); }

void CompositePlane::add_part(std::string name, std::unique_ptr<net::DataPlane> plane,
                              AdoptsWords* words) {
  WL_ASSERT(regions_->last_id == 0 && acceptors_.empty());
  Part part;
  part.name = std::move(name);
  part.plane = std::move(plane);
  part.words = words;
  parts_.push_back(std::move(part));
}

std::string CompositePlane::transports() const {
  std::string names;
  for (const Part& part : parts_) names += (names.empty() ? "" : ", ") + part.name;
  return names;
}

net::RegionId CompositePlane::insert(Region region) {
  const net::RegionId id{++regions_->last_id};
  regions_->by_id.emplace(id, std::move(region));
  return id;
}

flow::Task<Result<net::RegionId>> CompositePlane::register_memory(net::MemoryRange range) {
  Undo undo(this);
  std::string refused;
  ErrorCode code = ErrorCode::kInvalidArgument;
  bool any = false;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const Result<net::RegionId> theirs = co_await parts_[i].plane->register_memory(range);
    undo.region.parts.push_back(theirs ? *theirs : net::RegionId{});
    any = any || theirs.ok();
    if (theirs) continue;
    code = theirs.error().code;
    append(refused, parts_[i].name + ": " + theirs.error().message);
    // Host memory is anybody's, so a part that can't have it is a fault; a GPU's is for some only.
    if (range.device == net::Device::kHost) break;
  }
  const bool enough = any && (range.device != net::Device::kHost || refused.empty());
  if (!enough) co_return Error{code, refused};
  co_return insert(std::exchange(undo.region, Region{}));
}

flow::Task<void> CompositePlane::deregister(net::RegionId region) {
  const auto found = regions_->by_id.find(region);
  if (found == regions_->by_id.end() || found->second.words != net::RegionId{}) co_return;
  Region gone = std::move(found->second);
  regions_->by_id.erase(found);
  co_await deregister_parts(std::move(gone));
}

flow::Task<void> CompositePlane::deregister_parts(Region region) {
  for (size_t i = 0; i < region.parts.size(); ++i) {
    if (region.parts[i] != net::RegionId{}) co_await parts_[i].plane->deregister(region.parts[i]);
  }
}

Result<net::RegionId> CompositePlane::allocate_words(uint32_t count) {
  const Result<net::RegionId> words = words_.allocate_words(count);
  if (!words) return words;
  Region region;
  region.words = *words;
  const net::MemoryRange range = *words_.find(*words);
  for (size_t i = 0; i < parts_.size(); ++i) {
    const Result<net::RegionId> theirs = parts_[i].words->adopt_words(range);
    if (!theirs) {
      for (size_t j = 0; j < i; ++j) parts_[j].plane->free_words(region.parts[j]);
      words_.free_words(*words);
      return Error{theirs.error().code, parts_[i].name + ": " + theirs.error().message};
    }
    region.parts.push_back(*theirs);
  }
  return insert(std::move(region));
}

void CompositePlane::free_words(net::RegionId words) {
  const auto found = regions_->by_id.find(words);
  if (found == regions_->by_id.end()) return;
  const Region& region = found->second;
  WL_ASSERT(region.words != net::RegionId{});
  for (size_t i = 0; i < parts_.size(); ++i) parts_[i].plane->free_words(region.parts[i]);
  words_.free_words(region.words);
  regions_->by_id.erase(found);
}

void CompositePlane::store_word(net::RegionId words, uint32_t index, uint64_t value) {
  words_.store_word(regions_->by_id.at(words).words, index, value);
}

uint64_t CompositePlane::load_word(net::RegionId words, uint32_t index) const {
  return words_.load_word(regions_->by_id.at(words).words, index);
}

flow::Task<Result<uint64_t>> CompositePlane::checksum(net::RegionId region, uint64_t offset,
                                                      uint64_t length) {
  const auto found = regions_->by_id.find(region);
  if (found != regions_->by_id.end()) {
    for (size_t i = 0; i < parts_.size(); ++i) {
      const net::RegionId theirs = found->second.parts[i];
      if (theirs == net::RegionId{}) continue;
      // The task is the part's own; what it is given is copied.
      return parts_[i].plane->checksum(theirs, offset, length);
    }
  }
  return parts_.front().plane->checksum(net::RegionId{}, offset, length);
}

Result<std::string> CompositePlane::listen(net::Acceptor* acceptor) {
  std::vector<std::unique_ptr<PartAcceptor>>& ours = acceptors_[acceptor];
  std::string endpoint;
  for (size_t i = 0; i < parts_.size(); ++i) {
    ours.push_back(std::make_unique<PartAcceptor>(regions_, i, acceptor));
    const Result<std::string> theirs = parts_[i].plane->listen(ours.back().get());
    if (!theirs) {
      ours.pop_back();
      stop_listening(acceptor);
      return Error{theirs.error().code, parts_[i].name + ": " + theirs.error().message};
    }
    WL_ASSERT(theirs->find(';') == std::string::npos);
    if (!endpoint.empty()) endpoint += ';';
    endpoint += parts_[i].name + "=" + *theirs;
  }
  return endpoint;
}

void CompositePlane::stop_listening(net::Acceptor* acceptor) {
  const auto found = acceptors_.find(acceptor);
  if (found == acceptors_.end()) return;
  for (size_t i = 0; i < found->second.size(); ++i) {
    parts_[i].plane->stop_listening(found->second[i].get());
  }
  acceptors_.erase(found);
}

flow::Task<Result<net::Connected>> CompositePlane::connect_part(size_t part, std::string endpoint,
                                                                Bytes hello, flow::Signal* wake,
                                                                Nanos deadline) {
  Result<net::Connected> connected =
      co_await parts_[part].plane->connect(std::move(endpoint), std::move(hello), wake, deadline);
  if (!connected) co_return connected.error();
  connected->pair = std::make_unique<Pair>(regions_, part, std::move(connected->pair));
  co_return connected;
}

flow::Task<Result<net::Connected>> CompositePlane::connect(std::string endpoint, Bytes hello,
                                                           flow::Signal* wake, Nanos deadline) {
  std::vector<size_t> common;
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (!part_of(endpoint, parts_[i].name).empty()) common.push_back(i);
  }
  if (common.empty()) {
    co_return Error{ErrorCode::kUnreachable, "no transport in common: here " + transports() +
                                                 "; the peer offers " + names_in(endpoint)};
  }
  TransportChoice choice;
  ErrorCode code = ErrorCode::kUnreachable;
  for (const size_t i : common) {
    // One that answers nothing leaves time for the next.
    const Nanos now = loop_.runtime().now();
    const bool last = i == common.back() || deadline == kForever;
    const Nanos share = last ? deadline : now + (deadline - now) / 2;
    Result<net::Connected> connected =
        co_await connect_part(i, part_of(endpoint, parts_[i].name), hello, wake, share);
    if (connected) {
      choice.transport = parts_[i].name;
      if (options_.on_choice) options_.on_choice(choice);
      co_return connected;
    }
    code = connected.error().code;
    append(choice.passed_over, parts_[i].name + ": " + connected.error().message);
    if (code == ErrorCode::kRefused) break;  // the acceptor said no: it would again
  }
  co_return Error{code, choice.passed_over};
}

}  // namespace weightlane::prod
