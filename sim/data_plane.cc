// A process's registrations, keys and words, and the way to a queue pair. What READs suffer is
// decided in data_net.cc, queue_pair.cc and read_work.cc.
#include "sim/data_plane.h"

#include <algorithm>

#include "sim/hash.h"
#include "sim/world.h"

namespace weightlane::sim {
namespace {

constexpr uint64_t kFirstWordAddress = 1ull << 32;
constexpr std::array kErrnoNames = {"ENOMEM", "EAGAIN", "EIO", "EINVAL: too large"};  // F19

std::string endpoint_text(HostId host, uint32_t port) {
  return "sim/" + std::to_string(host.value) + "/" + std::to_string(port);
}

bool parse_number(const std::string& text, size_t& at, uint32_t& number) {
  const size_t begin = at;
  number = 0;
  while (at < text.size() && text[at] >= '0' && text[at] <= '9' && at - begin < 9) {
    number = number * 10 + static_cast<uint32_t>(text[at++] - '0');
  }
  return at > begin;
}

bool parse_endpoint(const std::string& text, HostId& host, uint32_t& port) {
  size_t at = 4;
  if (text.compare(0, 4, "sim/") != 0 || !parse_number(text, at, host.value)) return false;
  if (at >= text.size() || text[at++] != '/') return false;
  return parse_number(text, at, port) && at == text.size();
}

// Lives in the caller's frame: a caller who goes away leaves no queue pair behind.
class AttemptGuard {
 public:
  explicit AttemptGuard(std::shared_ptr<ConnectAttempt> attempt) : attempt_(std::move(attempt)) {}
  ~AttemptGuard() {
    if (attempt_ != nullptr) attempt_->net.abandon(*attempt_);
  }
  AttemptGuard(const AttemptGuard&) = delete;
  AttemptGuard& operator=(const AttemptGuard&) = delete;
  ConnectAttempt& operator*() const { return *attempt_; }
  ConnectAttempt* operator->() const { return attempt_.get(); }
  void release() { attempt_.reset(); }

 private:
  std::shared_ptr<ConnectAttempt> attempt_;
};

}  // namespace

SimDataPlane::~SimDataPlane() = default;

// ---------------------------------------------------------------- lives

void SimDataPlane::start_life(bool reuse) {
  WL_ASSERT(regions_.empty());
  if (!reuse) {
    const uint64_t where = host_.world().choices().value(stream_of(host_.id(), Subsystem::kRandom));
    key_base_ = static_cast<uint32_t>(where % (1u << 22));
    tag_base_ = static_cast<uint8_t>(where >> 24);
    passive_base_ = static_cast<uint32_t>((where >> 32) % (1u << 22));
    word_base_ = (where >> 54) << 12;
    next_port_ += 1000;
    ghosts_ = 0;
  } else {
    next_port_ = 1;
    ghosts_ = last_passives_;
  }
  next_word_address_ = kFirstWordAddress + word_base_;
}

void SimDataPlane::end_life(CrashKind kind) {
  host_.world().data_net().end_life(host_.id(), kind);
  listeners_.clear();
  passive_.assign(passive_.size(), false);
}

void SimDataPlane::clear() {
  first_region_ += regions_.size();
  regions_.clear();
  live_regions_ = 0;
  key_slots_.clear();
  free_keys_.clear();
  last_passives_ = static_cast<uint32_t>(passive_.size());
  passive_.clear();
}

// ---------------------------------------------------------------- registrations and keys

Region* SimDataPlane::find(net::RegionId id) {
  if (id.value < first_region_ || id.value >= first_region_ + regions_.size()) return nullptr;
  Region& region = *regions_[id.value - first_region_];
  return region.live ? &region : nullptr;
}

const Region* SimDataPlane::find(net::RegionId id) const {
  return const_cast<SimDataPlane*>(this)->find(id);
}

uint32_t SimDataPlane::take_key(net::RegionId id) {
  uint32_t index = 0;
  if (free_keys_.empty()) {
    index = static_cast<uint32_t>(key_slots_.size());
    key_slots_.push_back({tag_base_, {}});
  } else {
    index = free_keys_.back();
    free_keys_.pop_back();
  }
  key_slots_[index].region = id;
  return (key_base_ + index) << 8 | key_slots_[index].tag;
}

void SimDataPlane::give_back_key(uint32_t key) {
  const uint32_t index = (key >> 8) - key_base_;
  KeySlot& slot = key_slots_[index];
  slot.region = {};
  const bool same = host_.world().fault(stream(), Fault::kKeyReused);
  if (same) host_.world().fault_happened(Fault::kKeyReused, host_.id(), kWorldHost);
  if (!same) ++slot.tag;
  free_keys_.push_back(index);
}

Region* SimDataPlane::find_key(uint32_t key) {
  const uint32_t index = (key >> 8) - key_base_;
  if (index >= key_slots_.size()) return nullptr;
  const KeySlot& slot = key_slots_[index];
  if (slot.region.value == 0 || slot.tag != (key & 0xff)) return nullptr;
  return find(slot.region);
}

Region& SimDataPlane::add_region(uint64_t address, uint64_t length) {
  const net::RegionId id{first_region_ + regions_.size()};
  regions_.push_back(std::make_unique<Region>());
  Region& region = *regions_.back();
  region.id = id;
  region.live = true;
  region.address = address;
  region.length = length;
  region.key = take_key(id);
  ++live_regions_;
  return region;
}

void SimDataPlane::retire(Region& region) {
  give_back_key(region.key);
  region.live = false;
  region.words.clear();
  --live_regions_;
  World& world = host_.world();
  world.event(EventKind::kMemory, host_.id(), region.id.value, 0, 3);
  if (world.observer() != nullptr) {
    world.observer()->on_deregistered(world.now(), host_.id(), region.id);
  }
}

net::RemoteRegion SimDataPlane::describe(net::RegionId id) {
  const Region* region = find(id);
  WL_ASSERT(region != nullptr);
  net::RemoteRegion remote{.key = region->key, .base = region->address, .length = region->length};
  if (host_.world().fault(stream(), Fault::kStaleKey)) {
    host_.world().fault_happened(Fault::kStaleKey, host_.id(), kWorldHost);
    remote.key ^= 0x80;
  }
  return remote;
}

flow::Task<Result<net::RegionId>> SimDataPlane::register_memory(net::MemoryRange range) {
  World& world = host_.world();
  const Nanos span =
      world.data_net().draw(host_.id(), "register", world.config().data.registration);
  co_await host_.sleep_for(span);
  if (world.fault(stream(), Fault::kRegistrationFails)) {
    world.fault_happened(Fault::kRegistrationFails, host_.id(), kWorldHost);
    const uint32_t why = world.choices().choose(stream(), "register.errno", kErrnoNames.size());
    co_return Error{ErrorCode::kResourceExhausted,
                    std::string("registration of memory failed: ") + kErrnoNames[why]};
  }
  Memory& memory = host_.memory();
  const uint32_t index =
      range.length == 0 ? Memory::kNoRange : memory.find(range.address, range.length);
  if (index == Memory::kNoRange) {
    co_return Error{ErrorCode::kInvalidArgument, "no such memory"};
  }
  const uint64_t offset = range.address - memory.range(index).address;
  WL_ASSERT(offset % memory.granule_bytes() == 0);  // the campaign's tensors begin at granules
  Region& region = add_region(range.address, range.length);
  region.range = index;
  region.first_granule = offset / memory.granule_bytes();
  world.event(EventKind::kMemory, host_.id(), region.id.value, range.address, 2);
  if (world.observer() != nullptr) {
    world.observer()->on_registered(world.now(), host_.id(), region.id, range);
  }
  co_return region.id;
}

flow::Task<void> SimDataPlane::deregister(net::RegionId id) {
  World& world = host_.world();
  const Nanos span =
      world.data_net().draw(host_.id(), "deregister", world.config().data.registration);
  co_await host_.sleep_for(span);
  Region* region = find(id);
  if (region != nullptr && !region->is_words) retire(*region);
}

// ---------------------------------------------------------------- words and checksums

Result<net::RegionId> SimDataPlane::allocate_words(uint32_t count) {
  World& world = host_.world();
  if (count == 0) return Error{ErrorCode::kInvalidArgument, "0 words are no region"};
  if (world.fault(stream(), Fault::kRegistrationFails)) {
    world.fault_happened(Fault::kRegistrationFails, host_.id(), kWorldHost);
    return Error{ErrorCode::kResourceExhausted, "registration of words failed: ENOMEM"};
  }
  Region& region = add_region(next_word_address_, count * 8ull);
  next_word_address_ += (count * 8ull + 63) / 64 * 64;
  region.is_words = true;
  region.words.assign(count, 0);
  world.event(EventKind::kMemory, host_.id(), region.id.value, count, 4);
  return region.id;
}

void SimDataPlane::free_words(net::RegionId words) {
  Region* region = find(words);
  if (region != nullptr && region->is_words) retire(*region);
}

void SimDataPlane::store_word(net::RegionId words, uint32_t index, uint64_t value) {
  Region* region = find(words);
  WL_ASSERT(region != nullptr && region->is_words);
  WL_ASSERT_OP(index, <, region->words.size());
  region->words[index] = value;
  World& world = host_.world();
  world.event(EventKind::kMemory, host_.id(), words.value, value, 5 + index);
  if (world.observer() != nullptr) {
    world.observer()->on_word_stored(world.now(), host_.id(), words, index, value);
  }
}

uint64_t SimDataPlane::load_word(net::RegionId words, uint32_t index) const {
  const Region* region = find(words);
  WL_ASSERT(region != nullptr && region->is_words);
  WL_ASSERT_OP(index, <, region->words.size());
  return region->words[index];
}

uint64_t SimDataPlane::checksum_of(const Region& region, uint64_t offset, uint64_t length) const {
  if (region.is_words) {
    RollingHash hash;
    for (uint64_t i = offset / 8; i < (offset + length) / 8; ++i) hash.add(region.words[i]);
    return hash.value();
  }
  const uint64_t granule = host_.memory().granule_bytes();
  const Memory::Range& range = host_.memory().range(region.range);
  return host_.memory().checksum(range, region.first_granule + offset / granule,
                                 (length + granule - 1) / granule);
}

flow::Task<Result<uint64_t>> SimDataPlane::checksum(net::RegionId id, uint64_t offset,
                                                    uint64_t length) {
  World& world = host_.world();
  const Nanos span = world.data_net().draw(host_.id(), "checksum", world.config().data.checksum);
  co_await host_.sleep_for(span);
  const Region* region = find(id);
  if (region == nullptr || length > region->length || offset > region->length - length) {
    co_return Error{ErrorCode::kInvalidArgument, "no such bytes in the region"};
  }
  co_return checksum_of(*region, offset, length);
}

// ---------------------------------------------------------------- connecting

Result<std::string> SimDataPlane::listen(net::Acceptor* acceptor) {
  const uint32_t port = next_port_++;
  listeners_.push_back({port, acceptor});
  return endpoint_text(host_.id(), port);
}

void SimDataPlane::stop_listening(net::Acceptor* acceptor) {
  std::erase_if(listeners_, [acceptor](const Listener& l) { return l.acceptor == acceptor; });
}

net::Acceptor* SimDataPlane::acceptor(uint32_t port) const {
  for (const Listener& listener : listeners_) {
    if (listener.port == port) return listener.acceptor;
  }
  return nullptr;
}

uint32_t SimDataPlane::add_passive() {
  passive_.push_back(true);
  return passive_base_ + static_cast<uint32_t>(passive_.size()) - 1;
}

void SimDataPlane::drop_passive(uint32_t number) {
  const uint32_t index = number - passive_base_;
  if (index < passive_.size()) passive_[index] = false;
}

bool SimDataPlane::passive_live(uint32_t number) const {
  const uint32_t index = number - passive_base_;
  return index < passive_.size() ? passive_[index] : index < ghosts_;
}

flow::Task<Result<net::Connected>> SimDataPlane::connect(std::string endpoint, Bytes hello,
                                                         flow::Signal* wake, Nanos deadline) {
  World& world = host_.world();
  DataNet& net = world.data_net();
  HostId source;
  uint32_t port = 0;
  if (!parse_endpoint(endpoint, source, port) || source.value == 0 ||
      source.value >= world.host_count()) {
    co_return Error{ErrorCode::kUnreachable, "endpoint '" + endpoint + "' is not of this plane"};
  }
  const bool none = world.fault(stream_of(host_.id(), Subsystem::kData), Fault::kNoQueuePair);
  if (none || net.in_storm(host_.id())) {
    if (none) world.fault_happened(Fault::kNoQueuePair, host_.id(), kWorldHost);
    co_await host_.yield();
    co_return Error{ErrorCode::kResourceExhausted, "no queue pair left"};
  }
  AttemptGuard attempt(net.begin_connect(host_, source, port, std::move(hello)));
  const Result<Done> arrived = co_await attempt->arrived.future().until(deadline);
  if (!arrived.ok()) {
    co_return Error{ErrorCode::kUnreachable, "no answer from " + endpoint + " in time"};
  }
  if (!attempt->refusal.empty()) co_return Error{attempt->code, attempt->refusal};
  QueuePairState* pair = attempt->pair;
  if (pair == nullptr) co_return Error{ErrorCode::kUnreachable, endpoint + " has gone again"};
  pair->attempt = nullptr;
  attempt->pair = nullptr;
  pair->wake = wake;
  auto active = std::make_unique<SimQueuePair>(*pair);
  pair->active = active.get();
  net::Connected connected{.pair = std::move(active), .payload = std::move(attempt->payload)};
  attempt.release();
  co_return std::move(connected);
}

}  // namespace weightlane::sim
