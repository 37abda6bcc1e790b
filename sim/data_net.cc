// What is common to all queue pairs of a world: their making and their end.
#include <algorithm>

#include "sim/data_plane.h"
#include "sim/world.h"

namespace weightlane::sim {

ConnectAttempt::ConnectAttempt(Host& host)
    : net(host.world().data_net()),
      reader(host.id()),
      reader_life(host.life()),
      alarm(
          host.world(),
          [](void* self) {
            auto& attempt = *static_cast<ConnectAttempt*>(self);
            attempt.net.on_attempt(attempt);
          },
          this),
      arrived(host) {}

ConnectAttempt::~ConnectAttempt() {
  if (pair != nullptr) pair->attempt = nullptr;
}

DataNet::DataNet(World& world) : world_(world) {
  for (uint32_t i = 1; i < kFaultCount; ++i) {
    const auto fault = static_cast<Fault>(i);
    if (fault_class(fault) != FaultClass::kWork) continue;
    work_faults_.push_back(fault);
    work_rates_.push_back(world.config().faults.of(fault));
  }
}

DataNet::~DataNet() {
  attempts_.clear();
  while (!pairs_.empty()) {
    QueuePairState& pair = *pairs_.back();
    pair.drop_works();
    pairs_.pop_back();
  }
}

Nanos DataNet::draw(HostId host, const char* name, SpanRange range) {
  return nanos(world_.choices().log_uniform(stream_of(host, Subsystem::kData), name,
                                            range.least.count, range.most.count));
}

Fault DataNet::draw_work_fault(StreamId stream) {
  const uint32_t drawn = world_.choices().weighted(stream, "read.fault", work_rates_);
  // An override of another schedule may fall after heal().
  return drawn == 0 || world_.healed() ? Fault::kNone : work_faults_[drawn - 1];
}

Nanos DataNet::latency(HostId from, HostId to) {
  const bool wide = world_.host(from).place().datacenter != world_.host(to).place().datacenter;
  const DataConfig& config = world_.config().data;
  return draw(to, "read.latency", wide ? config.wide_latency : config.latency);
}

Work& DataNet::allocate_work() {
  if (free_works_.empty()) {
    works_.push_back(std::make_unique<Work>(world_));
    free_works_.push_back(works_.back().get());
  }
  Work& work = *free_works_.back();
  free_works_.pop_back();
  return work;
}

void DataNet::release_work(Work& work) {
  work.alarm.disarm();
  work.pair = nullptr;
  free_works_.push_back(&work);
}

QueuePairState& DataNet::open(HostId reader, HostId source) {
  pairs_.push_back(
      std::make_unique<QueuePairState>(*this, QueuePairId{next_pair_++}, reader, source));
  QueuePairState& pair = *pairs_.back();
  world_.event(EventKind::kQueuePair, reader, pair.id.value,
               static_cast<uint64_t>(QueuePairEvent::kOpened), source.value);
  if (world_.observer() != nullptr) {
    world_.observer()->on_queue_pair_created(world_.now(), pair.id, reader, source);
  }
  return pair;
}

void DataNet::remove(QueuePairState& pair) {
  WL_ASSERT(pair.works.empty() && pair.active == nullptr);
  if (pair.passive != nullptr) pair.passive->state_ = nullptr;
  if (pair.attempt != nullptr) pair.attempt->pair = nullptr;
  const auto found = std::find_if(pairs_.begin(), pairs_.end(),
                                  [&pair](const auto& p) { return p.get() == &pair; });
  pairs_.erase(found);
}

// ---------------------------------------------------------------- connecting

std::shared_ptr<ConnectAttempt> DataNet::begin_connect(Host& reader, HostId source, uint32_t port,
                                                       Bytes hello) {
  auto attempt = std::make_shared<ConnectAttempt>(reader);
  attempt->source = source;
  attempt->port = port;
  attempt->hello = std::move(hello);
  const Nanos there = draw(reader.id(), "connect.there", world_.config().data.connect);
  const bool lost = world_.fault(stream_of(reader.id(), Subsystem::kData), Fault::kHelloLost);
  if (lost) world_.fault_happened(Fault::kHelloLost, reader.id(), source);
  if (lost || world_.network().blocked(Plane::kData, reader.id(), source)) return attempt;
  attempts_.push_back(attempt);
  attempt->alarm.arm(world_.now() + there, source);
  return attempt;
}

void DataNet::forget(ConnectAttempt& attempt) {
  attempt.alarm.disarm();
  std::erase_if(attempts_, [&attempt](const auto& other) { return other.get() == &attempt; });
}

void DataNet::on_attempt(ConnectAttempt& attempt) {
  if (attempt.spoken) {
    answer_arrives(attempt);
  } else {
    hello_arrives(attempt);
  }
}

void DataNet::hello_arrives(ConnectAttempt& attempt) {
  Host& source = world_.host(attempt.source);
  if (world_.network().blocked(Plane::kData, attempt.reader, attempt.source) ||
      source.machine_gone()) {
    return forget(attempt);
  }
  net::Acceptor* acceptor = source.alive() ? source.sim_data().acceptor(attempt.port) : nullptr;
  attempt.spoken = true;
  if (acceptor == nullptr) {
    attempt.code = ErrorCode::kUnreachable;
    attempt.refusal = "nobody listens at " + source.place().name;
  } else {
    QueuePairState& pair = open(attempt.reader, attempt.source);
    pair.attempt = &attempt;
    attempt.pair = &pair;
    auto passive = std::make_unique<SimPassiveQueuePair>(pair, source.sim_data());
    net::AcceptDecision decision = acceptor->on_connect(attempt.hello, std::move(passive));
    if (decision.ok()) {
      attempt.payload = std::move(decision->payload);
    } else {
      attempt.code = decision.error().code;
      attempt.refusal = decision.error().message;
      if (attempt.refusal.empty()) attempt.refusal = "refused";
      if (attempt.pair != nullptr) attempt.pair->die(false);
    }
  }
  const StreamId stream = stream_of(attempt.reader, Subsystem::kData);
  const Nanos back = draw(attempt.reader, "connect.back", world_.config().data.connect);
  const bool lost = world_.fault(stream, Fault::kWelcomeLost);
  if (lost) world_.fault_happened(Fault::kWelcomeLost, attempt.reader, attempt.source);
  if (lost || world_.network().blocked(Plane::kData, attempt.source, attempt.reader)) {
    if (attempt.abandoned && attempt.pair != nullptr) attempt.pair->die(true);
    return forget(attempt);
  }
  attempt.alarm.arm(world_.now() + back);
}

void DataNet::answer_arrives(ConnectAttempt& attempt) {
  const std::shared_ptr<ConnectAttempt> keep = find_attempt(attempt);
  forget(attempt);
  const Host& reader = world_.host(attempt.reader);
  if (attempt.abandoned || !reader.alive() || reader.life() != attempt.reader_life) {
    if (attempt.pair != nullptr) attempt.pair->die(true);
    return;
  }
  if (attempt.pair != nullptr && attempt.refusal.empty()) attempt.pair->phase = PairPhase::kReady;
  attempt.arrived.set();
}

std::shared_ptr<ConnectAttempt> DataNet::find_attempt(ConnectAttempt& attempt) const {
  for (const auto& candidate : attempts_) {
    if (candidate.get() == &attempt) return candidate;
  }
  WL_ASSERT(!"an attempt on its way is known");
  return nullptr;
}

void DataNet::abandon(ConnectAttempt& attempt) {
  attempt.abandoned = true;
  // What the source accepted meanwhile is closed; what it accepts later is when its answer comes.
  if (attempt.pair != nullptr && !attempt.alarm.armed()) attempt.pair->die(true);
}

// ---------------------------------------------------------------- the world's turns

void DataNet::end_life(HostId host, CrashKind kind) {
  std::vector<QueuePairState*> mine;
  for (const auto& pair : pairs_) {
    if (pair->reader == host) mine.push_back(pair.get());
    if (pair->source == host && pair->passive != nullptr) {
      pair->passive->state_ = nullptr;
      pair->passive = nullptr;
    }
  }
  // A dead process's memory is nobody's: nothing lands there any more. Its sources may hear of it
  // (S11: or never).
  for (QueuePairState* pair : mine) {
    if (pair->active != nullptr) pair->active->state_ = nullptr;
    pair->active = nullptr;
    if (pair->passive != nullptr) world_.probe_outcome(Fault::kHolderWaits, WorkOutcome::kHappened);
    pair->die(kind != CrashKind::kMachine);
  }
}

void DataNet::paths_changed() {
  for (const auto& pair : pairs_) pair->path_changed();
}

void DataNet::heal() {
  std::fill(work_rates_.begin(), work_rates_.end(), 0);
  for (const auto& pair : pairs_) pair->slowdown = 1;
}

void DataNet::adapter_fails(HostId reader, Fault fault) {
  const bool hangs = fault == Fault::kCqOverrun || fault == Fault::kFirmwareHang;
  if (!hangs && fault != Fault::kFirmwareFatal) return;
  for (const auto& pair : pairs_) {
    if (pair->reader != reader) continue;
    pair->hung = pair->hung || hangs;
    pair->fatal = pair->fatal || !hangs;
  }
}

void DataNet::storm(HostId reader, Nanos until) {
  storm_until_[reader.value] = until;
  for (const auto& pair : pairs_) {
    if (pair->reader == reader) pair->local_error();
  }
}

bool DataNet::in_storm(HostId reader) const {
  return reader.value < kHostsMost && !world_.healed() && world_.now() < storm_until_[reader.value];
}

void DataNet::lose_addresses(HostId host) {
  for (const auto& pair : pairs_) {
    if (pair->reader == host || pair->source == host) pair->path_lost = true;
  }
}

void DataNet::wake_readers(HostId host) {
  for (const auto& pair : pairs_) {
    if (pair->reader == host && pair->wake != nullptr) pair->wake->notify_all();
  }
}

}  // namespace weightlane::sim
