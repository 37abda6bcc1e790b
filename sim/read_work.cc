// One READ on its way: when its pieces are executed and placed, and what can happen to it instead.
#include <algorithm>

#include "sim/data_plane.h"
#include "sim/hash.h"
#include "sim/queue_pair.h"
#include "sim/world.h"

namespace weightlane::sim {
namespace {

constexpr uint64_t kFlowBytes = 4096;        // smaller READs take no share of the bandwidth
constexpr int64_t kSmallTransmission = 100;  // ns
constexpr SpanRange kDuplicateDelay{micros(1), millis(10)};
constexpr SpanRange kGoodputNilSpan{seconds(1), seconds(60)};
constexpr SpanRange kLateLanding{micros(1), micros(100)};
constexpr uint32_t kSlowLeast = 10;
constexpr uint32_t kSlowMost = 1000;

constexpr std::array kAnyStatus = {
    net::CompletionStatus::kRetryExceeded,
    net::CompletionStatus::kRemoteAccess,
    net::CompletionStatus::kRemoteOperation,
    net::CompletionStatus::kBadResponse,
    net::CompletionStatus::kRemoteInvalidRequest,
    net::CompletionStatus::kRnrRetryExceeded,
    net::CompletionStatus::kGeneral,
    net::CompletionStatus::kResponseTimeout,
};

constexpr std::array kLocalStatus = {
    net::CompletionStatus::kLocalQpOperation,
    net::CompletionStatus::kLocalLength,
    net::CompletionStatus::kLocalProtection,
    net::CompletionStatus::kLocalAccess,
};

void add_action(Work& work, Nanos at, ActionKind kind, uint32_t piece, bool ends = false) {
  WL_ASSERT(work.actions_end < work.actions.size());
  // By time, later additions behind: an insertion sort over few.
  uint32_t slot = work.actions_end++;
  while (slot > work.actions_begin && work.actions[slot - 1].at > at.count) {
    work.actions[slot] = work.actions[slot - 1];
    --slot;
  }
  work.actions[slot] = {at.count, kind, static_cast<uint8_t>(piece), ends};
}

void clear_actions(Work& work) { work.actions_begin = work.actions_end = 0; }

}  // namespace

Work::Work(World& world) : alarm(world, on_alarm, this) {}

void Work::on_alarm(void* self) {
  auto& work = *static_cast<Work*>(self);
  if (work.phase == WorkPhase::kWaiting) {
    work.pair->retry_now(work);
  } else {
    work.pair->run_actions(work);
  }
}

void Work::reset(QueuePairState& owner, const net::ReadWork& r) {
  pair = &owner;
  read = r;
  posted = owner.net.world().now();
  phase = WorkPhase::kQueued;
  begun = outlives_fence = transmitted = completed = wrong_pages = changed = torn = false;
  fault = Fault::kNone;
  status = status_at_end = net::CompletionStatus::kSuccess;
  give_up = {};
  units = pieces = 0;
  clear_actions(*this);
}

uint32_t Work::executed_part() const {
  uint32_t done = 0;
  for (uint32_t i = 0; i < pieces; ++i) done += piece[i].executed != 0 ? 1 : 0;
  if (done == 0) return 0;
  return done == pieces ? 2 : 1;
}

// ---------------------------------------------------------------- scheduling

void QueuePairState::begin(Work& work) {
  work.begun = true;
  work.phase = WorkPhase::kRunning;
  if (const net::CompletionStatus status = check_locally(work);
      status != net::CompletionStatus::kSuccess) {
    return fail(work, status, Fault::kLocalMistake, world().now() + nanos(1));
  }
  draw_pieces(work);
  ensure_flow(work);
  if (world().fault(stream(), Fault::kSpuriousWake) && wake != nullptr) {
    world().fault_happened(Fault::kSpuriousWake, reader, source);
    wake->notify_all();
  }
  const Fault drawn = net.draw_work_fault(stream());
  if (fatal) return suffer(work, Fault::kFirmwareFatal);
  if (drawn != Fault::kNone) return suffer(work, drawn);
  const Path path = look(work);
  if (path != Path::kOpen && path != Path::kReplyCut) return obstructed(work, path);
  draw_schedule(work, kZeroNanos);
  start_actions(work);
}

void QueuePairState::ensure_flow(const Work& work) {
  if (flow.value != 0 || work.read.length < kFlowBytes) return;
  flow = world().bandwidth().start(source, reader, slowdown);
}

net::CompletionStatus QueuePairState::check_locally(Work& work) const {
  const SimDataPlane& plane = world().host(reader).sim_data();
  const DataConfig& config = world().config().data;
  const net::ReadWork& read = work.read;
  if (read.length == 0 || read.length > config.max_read_bytes) {
    return net::CompletionStatus::kLocalLength;
  }
  const Region* into = plane.find(read.into);
  if (into == nullptr || read.length > into->length ||
      read.into_offset > into->length - read.length) {
    return net::CompletionStatus::kLocalProtection;
  }
  const uint64_t unit = into->is_words ? 8 : config.granule_bytes;
  // The campaign lays tensors and slices out so; a READ of half a granule has no meaning here.
  WL_ASSERT_OP(read.into_offset % unit, ==, 0u);
  WL_ASSERT(read.length % unit == 0 || read.into_offset + read.length == into->length);
  work.units = static_cast<uint32_t>((read.length + unit - 1) / unit);
  if (work.values.size() < work.units) work.values.resize(work.units);
  if (config.real_bytes && work.real.size() < work.units) work.real.resize(work.units);
  return net::CompletionStatus::kSuccess;
}

void QueuePairState::draw_pieces(Work& work) {
  const uint32_t most = std::min({work.units, world().config().data.pieces_most, kPiecesMost});
  work.pieces = most < 2 ? 1 : 1 + world().choices().choose(stream(), "read.pieces", most);
  for (uint32_t i = 0; i < work.pieces; ++i) {
    const auto first = static_cast<uint32_t>(uint64_t{work.units} * i / work.pieces);
    const auto next = static_cast<uint32_t>(uint64_t{work.units} * (i + 1) / work.pieces);
    work.piece[i] = {.first = first, .count = next - first};
  }
}

// Each piece is executed somewhere between now and the end of the transmission, one of them at that
// end, and placed somewhere between that and the completion.
Nanos QueuePairState::draw_schedule(Work& work, Nanos extra) {
  clear_actions(work);
  const Nanos now = world().now();
  const Nanos latency = net.latency(source, reader) * slowdown;
  const Nanos span = flow.value != 0 && work.read.length >= kFlowBytes
                         ? world().bandwidth().span_of(flow, work.read.length)
                         : nanos(kSmallTransmission) * slowdown;
  const bool shares = world().config().data.lanes > 1 && work.read.length >= kFlowBytes;
  Nanos start = std::max(work.posted + latency, now) + extra;
  if (shares) start = std::max(start, link_free);
  const Nanos transmitted = start + span;
  if (shares) link_free = transmitted;
  const Nanos completion = transmitted + latency;
  uint32_t last = work.pieces - 1;
  if (work.pieces > 1) last -= world().choices().choose(stream(), "read.last", work.pieces);
  for (uint32_t i = 0; i < work.pieces; ++i) {
    Nanos executed = transmitted;
    if (i != last) {
      const uint32_t when = world().choices().choose(stream(), "read.execute", 256);
      executed = now + nanos(1 + (transmitted - now).count / 256 * when);
    }
    const uint32_t when = world().choices().choose(stream(), "read.land", 4);
    const Nanos landed = executed + (completion - executed) / 4 * when;
    add_action(work, executed, ActionKind::kExecute, i, i == last);
    add_action(work, landed, ActionKind::kLand, i);
  }
  add_action(work, completion, ActionKind::kFinish, 0);
  return completion;
}

void QueuePairState::start_actions(Work& work) {
  WL_ASSERT(work.actions_begin < work.actions_end);
  work.phase = WorkPhase::kRunning;
  work.alarm.arm(nanos(work.actions[work.actions_begin].at));
}

void QueuePairState::run_actions(Work& work) {
  const int64_t now = world().now().count;
  while (work.actions_begin < work.actions_end && work.actions[work.actions_begin].at <= now) {
    const Action action = work.actions[work.actions_begin++];
    Piece& piece = work.piece[action.piece];
    switch (action.kind) {
      case ActionKind::kExecute:
        // False: the work was given another course.
        if (!execute(work, piece)) return;
        if (action.ends_transmission) transmission_ends(work);
        break;
      case ActionKind::kLand:
        if (piece.executed != 0 && !land(work, piece)) return;
        break;
      case ActionKind::kFinish: {
        const bool more = work.actions_begin < work.actions_end;
        if (more) work.alarm.arm(nanos(work.actions[work.actions_begin].at));
        return finish(work);  // the work may be another pair's by now
      }
    }
  }
  if (work.actions_begin < work.actions_end) {
    work.alarm.arm(nanos(work.actions[work.actions_begin].at));
  } else if (work.completed) {
    late_landed(work);
  }
}

void QueuePairState::late_landed(Work& work) {
  std::erase(late, &work);
  net.release_work(work);
  if (phase == PairPhase::kOrphaned && works.empty() && late.empty()) die(true);
}

bool QueuePairState::lane_free() const {
  if (works.empty()) return true;
  const uint32_t lanes = world().config().data.lanes;
  if (lanes == 1) return works.back()->transmitted;
  if (works.back()->phase == WorkPhase::kQueued) return false;
  uint32_t busy = 0;
  for (const Work* work : works) busy += work->transmitted ? 0 : 1;
  return busy < lanes;
}

// The next READ has its turn.
void QueuePairState::transmission_ends(Work& work) {
  if (work.transmitted) return;
  work.transmitted = true;
  if (phase == PairPhase::kBroken || phase == PairPhase::kDead) return;
  bool busy = false;
  for (Work* next : works) {
    if (next->phase == WorkPhase::kQueued) return begin(*next);
    busy = busy || !next->transmitted;
  }
  if (!busy) stop_flow();
}

// ---------------------------------------------------------------- obstacles

QueuePairState::Path QueuePairState::look(const Work& work) const {
  const Network& network = world().network();
  if (path_lost || network.blocked(Plane::kData, reader, source)) return Path::kCut;
  Host& host = world().host(source);
  if (!host.alive()) {
    // Only the life that it was connected to had memory to refuse.
    const bool refuses = host.last_crash() == CrashKind::kMemoryFirst && host.life() == source_life;
    return refuses ? Path::kRefused : Path::kGone;
  }
  if (!host.sim_data().passive_live(passive_number)) {
    if (host.life() != source_life) return Path::kGone;
    if (!work.outlives_fence && world().now() >= fence_holds) return Path::kFenced;
  }
  return network.blocked(Plane::kData, source, reader) ? Path::kReplyCut : Path::kOpen;
}

void QueuePairState::obstructed(Work& work, Path path) {
  const Nanos soon = world().now() + net.latency(source, reader);
  switch (path) {
    case Path::kOpen:
      break;
    case Path::kCut:
    case Path::kReplyCut:
      return wait_for_path(work, Fault::kPathDown);
    case Path::kGone:
      return wait_for_path(work, Fault::kPeerGone);
    case Path::kRefused:
      return fail(work, net::CompletionStatus::kRemoteAccess, Fault::kPeerGone, soon);
    case Path::kFenced:
      // A destroyed responder doesn't answer; one that is only in error may.
      if (world().choices().choose(stream(), "fence.answer", 2) == 0) {
        return fail(work, net::CompletionStatus::kRemoteAccess, Fault::kFence, soon);
      }
      return wait_for_path(work, Fault::kFence);
  }
  WL_ASSERT(!"an open path obstructs nothing");
}

void QueuePairState::wait_for_path(Work& work, Fault why) {
  if (work.give_up == kZeroNanos) work.give_up = world().now() + retry;
  work.fault = why;
  work.phase = WorkPhase::kWaiting;
  stop_flow();
  clear_actions(work);
  next_retry(work);
}

// The NIC tries again four times in its retry time: it may find the peer's next life (F11).
void QueuePairState::next_retry(Work& work) {
  const Nanos now = world().now();
  const Nanos next = std::min(work.give_up, now + retry / 4);
  work.alarm.arm(std::max(next, now + nanos(1)));
}

void QueuePairState::retry_now(Work& work) {
  const Path path = look(work);
  if (path == Path::kOpen && work.fault != Fault::kRequestLost) return again(work);
  if (world().now() < work.give_up) return next_retry(work);
  work.status_at_end = net::CompletionStatus::kRetryExceeded;
  finish(work);
}

// Executed anew, from the start (S7).
void QueuePairState::again(Work& work) {
  work.give_up = kZeroNanos;
  ensure_flow(work);
  draw_schedule(work, kZeroNanos);
  start_actions(work);
}

void QueuePairState::path_changed() {
  if (phase == PairPhase::kDead) return;
  for (Work* work : works) {
    if (work->phase == WorkPhase::kWaiting && work->fault == Fault::kPathDown &&
        look(*work) == Path::kOpen) {
      again(*work);
    }
  }
}

void QueuePairState::local_error() {
  if (phase != PairPhase::kReady) return;
  if (works.empty()) return set_broken();
  Work& work = *works.front();
  if (work.phase == WorkPhase::kFinished) return;  // its completion is already decided
  work.begun = true;
  fail(work, net::CompletionStatus::kGeneral, Fault::kReconnectStorm, world().now() + nanos(1));
}

// Ends with an error at `at`; until then what was executed may still land.
void QueuePairState::fail(Work& work, net::CompletionStatus status, Fault why, Nanos at) {
  std::array<Action, kPiecesMost> landings{};
  uint32_t count = 0;
  for (uint32_t i = work.actions_begin; i < work.actions_end && count < kPiecesMost; ++i) {
    const Action& action = work.actions[i];
    if (action.kind != ActionKind::kLand || work.piece[action.piece].executed == 0) continue;
    landings[count++] = action;
  }
  clear_actions(work);
  for (uint32_t i = 0; i < count; ++i) {
    add_action(work, nanos(std::min(landings[i].at, at.count)), ActionKind::kLand,
               landings[i].piece);
  }
  add_action(work, at, ActionKind::kFinish, 0);
  work.fault = why;
  work.status_at_end = status;
  start_actions(work);
}

// ---------------------------------------------------------------- faults of one READ

// Executes and places only the first `executed` pieces of the schedule, whatever their order was.
void QueuePairState::cut_short(Work& work, uint32_t executed, uint32_t landed) {
  const uint32_t end = work.actions_end;
  uint32_t kept = work.actions_begin;
  for (uint32_t i = work.actions_begin; i < end; ++i) {
    const Action action = work.actions[i];
    if (action.kind == ActionKind::kExecute && action.piece >= executed) continue;
    if (action.kind == ActionKind::kLand && action.piece >= landed) continue;
    work.actions[kept++] = action;
  }
  work.actions_end = kept;
}

void QueuePairState::end_at(Work& work, Nanos at) {
  WL_ASSERT(work.actions[work.actions_end - 1].kind == ActionKind::kFinish);
  work.actions[work.actions_end - 1].at = at.count;
}

void QueuePairState::suffer(Work& work, Fault fault) {
  ChoiceSource& choices = world().choices();
  work.fault = fault;
  world().event(EventKind::kFault, reader, static_cast<uint64_t>(fault), id.value,
                work.read.work_id);
  if (fault == Fault::kPostMistake) {
    const uint32_t which = choices.choose(stream(), "fault.status", kLocalStatus.size());
    return fail(work, kLocalStatus[which], fault, world().now() + nanos(1));
  }
  const Path path = look(work);
  const bool reachable = path == Path::kOpen || path == Path::kReplyCut;
  if (fault == Fault::kRequestLost || (!reachable && fault == Fault::kAckLost)) {
    work.fault = Fault::kRequestLost;
    work.phase = WorkPhase::kWaiting;
    work.give_up = world().now() + retry;
    work.alarm.arm(work.give_up);
    return;
  }
  if (!reachable) return obstructed(work, path);
  if (fault == Fault::kSlowPair) {
    slowdown = static_cast<uint32_t>(
        choices.log_uniform(stream(), "pair.slowdown", kSlowLeast, kSlowMost));
    stop_flow();
    ensure_flow(work);
  }
  if (!fatal) net.adapter_fails(reader, fault);
  const Nanos extra =
      fault == Fault::kGoodputNil ? net.draw(reader, "goodput.nil", kGoodputNilSpan) : kZeroNanos;
  const Nanos completion = draw_schedule(work, extra);
  bend_schedule(work, fault, completion);
  start_actions(work);
}

void QueuePairState::bend_schedule(Work& work, Fault fault, Nanos completion) {
  ChoiceSource& choices = world().choices();
  const uint32_t parts = work.pieces + 1;
  switch (fault) {
    case Fault::kAckLost: {
      // All was executed, some of the data may have come back.
      const uint32_t landed = choices.choose(stream(), "fault.landed", parts);
      cut_short(work, work.pieces, landed);
      end_at(work, world().now() + retry);
      work.status_at_end = net::CompletionStatus::kRetryExceeded;
      return;
    }
    case Fault::kDuplicate: {
      const Nanos second = completion + net.draw(reader, "duplicate", kDuplicateDelay);
      const bool newer = choices.choose(stream(), "duplicate.lands", 2) != 0;
      const Action finish = work.actions[--work.actions_end];
      WL_ASSERT(finish.kind == ActionKind::kFinish);
      for (uint32_t i = 0; i < work.pieces; ++i) {
        add_action(work, second, ActionKind::kExecute, i);
        if (newer) add_action(work, second, ActionKind::kLand, i);
      }
      add_action(work, second + nanos(1), ActionKind::kFinish, 0);
      return;
    }
    case Fault::kBadStatus:
    case Fault::kFirmwareFatal: {
      const uint32_t executed = choices.choose(stream(), "fault.executed", parts);
      const uint32_t landed = choices.choose(stream(), "fault.landed", executed + 1);
      cut_short(work, executed, landed);
      work.status_at_end = net::CompletionStatus::kFatal;
      if (fault == Fault::kBadStatus) {
        const uint32_t which = choices.choose(stream(), "fault.status", kAnyStatus.size());
        work.status_at_end = kAnyStatus[which];
      }
      return;
    }
    case Fault::kCqOverrun:
    case Fault::kFirmwareHang: {
      const uint32_t executed = choices.choose(stream(), "fault.executed", parts);
      const uint32_t landed = choices.choose(stream(), "fault.landed", executed + 1);
      cut_short(work, executed, landed);
      return;
    }
    case Fault::kWrongPages:
      work.wrong_pages = true;
      return;
    case Fault::kNotVisible: {
      const Nanos late_by = net.draw(reader, "late.landing", kLateLanding);
      for (uint32_t i = work.actions_begin; i < work.actions_end; ++i) {
        if (work.actions[i].kind == ActionKind::kLand) work.actions[i].at = INT64_MAX;
      }
      // Landings go behind the finish.
      const uint32_t end = work.actions_end;
      work.actions_end = work.actions_begin;
      for (uint32_t i = work.actions_begin; i < end; ++i) {
        const Action action = work.actions[i];
        if (action.kind == ActionKind::kLand) continue;
        add_action(work, nanos(action.at), action.kind, action.piece, action.ends_transmission);
      }
      for (uint32_t i = 0; i < work.pieces; ++i) {
        add_action(work, completion + late_by, ActionKind::kLand, i);
      }
      return;
    }
    default:
      return;  // slow, or nothing for a long time
  }
}

// ---------------------------------------------------------------- executing and placing

bool QueuePairState::execute(Work& work, Piece& piece) {
  const Path path = look(work);
  if (path != Path::kOpen && path != Path::kReplyCut) {
    obstructed(work, path);
    return false;
  }
  if (!execute_units(work, piece)) {
    const Nanos soon = world().now() + net.latency(source, reader);
    fail(work, net::CompletionStatus::kRemoteAccess, Fault::kDeregistered, soon);
    return false;
  }
  if (path == Path::kReplyCut) {
    wait_for_path(work, Fault::kPathDown);
    return false;
  }
  return true;
}

// False: the key names nothing that covers these bytes.
bool QueuePairState::execute_units(Work& work, Piece& piece) {
  SimDataPlane& plane = world().host(source).sim_data();
  const net::ReadWork& read = work.read;
  Region* from = plane.find_key(static_cast<uint32_t>(read.from.key));
  if (from == nullptr) return false;
  const uint64_t address = read.from.base + read.from_offset;
  if (address < from->address || read.length > from->length ||
      address - from->address > from->length - read.length) {
    return false;
  }
  const uint64_t offset = address - from->address;
  const Region* into = world().host(reader).sim_data().find(read.into);
  const bool words = from->is_words;
  // Another life's key may name the other kind of memory (F11): its bytes are garbage to us.
  const bool garbage = into != nullptr && into->is_words != words;
  const uint64_t unit = words ? 8 : world().config().data.granule_bytes;
  WL_ASSERT(garbage || offset % unit == 0);
  Memory& memory = world().host(source).memory();
  if (!words && memory.range(from->range).written > work.posted) {
    if (!work.changed) work.torn = work.executed_part() != 0;
    work.changed = true;
  }
  RollingHash hash;
  for (uint32_t i = 0; i < piece.count; ++i) {
    const uint32_t index = piece.first + i;
    uint64_t at = offset / unit + (garbage ? 0 : index);
    if (work.wrong_pages && !words) at = wrong_page(*from, at);
    uint64_t value = 0;
    if (words) {
      value = from->words[at];
    } else {
      const Memory::Range& range = memory.range(from->range);
      value = range.tags[from->first_granule + at];
      if (!range.real.empty()) work.real[index] = range.real[from->first_granule + at];
    }
    if (garbage) value = mix64(value, index);
    work.values[index] = value;
    hash.add(value);
    if (world().observer() != nullptr) [[unlikely]] {
      report_executed(work, *from, at, value);
    }
  }
  if (piece.executed < 255) ++piece.executed;
  if (world().host(source).life() != source_life) work.fault = Fault::kRestartReuse;  // F11
  ++world().mutable_counts().executions;
  world().event(EventKind::kReadExecuted, source, id.value, address + piece.first * unit,
                hash.value());
  return true;
}

uint64_t QueuePairState::wrong_page(const Region& region, uint64_t granule) const {
  const uint64_t granule_bytes = world().config().data.granule_bytes;
  const uint64_t granules = (region.length + granule_bytes - 1) / granule_bytes;
  return (granule + 1) % granules;
}

void QueuePairState::report_executed(const Work& work, const Region& from, uint64_t at,
                                     uint64_t value) const {
  ReadExecuted report;
  report.at = world().now();
  report.reader = reader;
  report.reader_life = reader_life;
  report.source = source;
  report.source_life = world().host(source).life();
  report.pair = id;
  report.work_id = work.read.work_id;
  report.region = from.id;
  report.is_word = from.is_words;
  report.address = from.is_words ? at : from.address + at * world().config().data.granule_bytes;
  report.value = value;
  world().observer()->on_read_executed(report);
}

// False: there is nothing to land in any more.
bool QueuePairState::land(Work& work, Piece& piece) {
  Host& host = world().host(reader);
  Region* into = host.sim_data().find(work.read.into);
  if (into == nullptr) {
    if (work.completed) return true;
    fail(work, net::CompletionStatus::kLocalProtection, Fault::kLocalMistake,
         world().now() + nanos(1));
    return false;
  }
  const uint64_t unit = into->is_words ? 8 : world().config().data.granule_bytes;
  const uint64_t first = work.read.into_offset / unit + piece.first;
  for (uint32_t i = 0; i < piece.count; ++i) {
    const uint64_t value = work.values[piece.first + i];
    const uint64_t at = first + i;
    if (into->is_words) {
      into->words[at] = value;
    } else {
      Memory::Range& range = host.memory().range(into->range);
      const GranuleBytes* real = range.real.empty() ? nullptr : &work.real[piece.first + i];
      host.memory().place(range, into->first_granule + at, value, real);
    }
    if (world().observer() != nullptr) [[unlikely]] {
      ReadLanded report{.at = world().now(),
                        .reader = reader,
                        .reader_life = reader_life,
                        .pair = id,
                        .work_id = work.read.work_id,
                        .region = into->id};
      report.is_word = into->is_words;
      report.address = into->is_words ? at : into->address + at * unit;
      report.value = value;
      world().observer()->on_read_landed(report);
    }
  }
  piece.landed = true;
  if (!works.empty() && works.front() != &work && !landed_ahead) {
    landed_ahead = true;  // counted once per pair
    world().probe_outcome(Fault::kLandedAhead, WorkOutcome::kHappened);
  }
  world().event(EventKind::kReadLanded, reader, id.value, work.read.work_id, piece.first);
  return true;
}

// Of what memory shows at the completion: the one thing that sees F20.
uint64_t QueuePairState::checksum_of(const Work& work) const {
  const SimDataPlane& plane = world().host(reader).sim_data();
  const Region* into = plane.find(work.read.into);
  if (into == nullptr) return 0;
  return plane.checksum_of(*into, work.read.into_offset, work.read.length);
}

}  // namespace weightlane::sim
