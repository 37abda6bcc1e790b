// One put() and one get() per struct, in the order of the schema. Reading collects the first thing
// that is wrong in a Check; Cap'n Proto's own complaints (pointers out of bounds, too much nesting,
// the traversal limit) come as exceptions, caught in one place.
#include "net/codec.h"

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <kj/exception.h>
#include <kj/io.h>

#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

#include "net/codec_wire.h"

namespace weightlane::net {
namespace {

// More than any honest message has (50,000 tensors are known from the field), and a bound on what a
// list whose elements take no space on the wire can make us allocate.
constexpr size_t kMaxEvents = 1 << 16;
constexpr size_t kMaxDone = 1 << 10;
constexpr size_t kMaxReplicas = 1 << 20;
constexpr size_t kMaxRegions = 1 << 20;
constexpr size_t kMaxTensors = 1 << 24;
constexpr size_t kMaxRetained = 1 << 16;
constexpr size_t kMaxModels = 1 << 16;

struct Check {
  std::string wrong;  // empty: nothing so far

  template <typename Enum>
  Enum enumerator(uint8_t value, Enum last, const char* what) {
    if (value <= static_cast<uint8_t>(last)) return static_cast<Enum>(value);
    note(std::string(what) + " " + std::to_string(value) + " is unknown");
    return Enum{};
  }
  bool list(size_t size, size_t limit, const char* what) {
    if (size <= limit) return true;
    note(std::to_string(size) + " " + what + " are more than the " + std::to_string(limit) +
         " allowed");
    return false;
  }
  void note(std::string text) {
    if (wrong.empty()) wrong = std::move(text);
  }
};

capnp::Text::Reader text(const std::string& value) { return {value.data(), value.size()}; }
std::string text(capnp::Text::Reader value) { return {value.begin(), value.size()}; }

// ---------------------------------------------------------------- common parts

void put(const Content& content, wire::Content::Builder out) {
  out.setGeneration(content.generation.value);
  out.setVersion(content.version.value);
  out.setId(content.id.value);
}
Content get(wire::Content::Reader in) {
  return {Generation{in.getGeneration()}, VersionId{in.getVersion()}, ContentId{in.getId()}};
}

void put(const LayoutSummary& layout, wire::LayoutSummary::Builder out) {
  out.setDigestHigh(layout.digest_high);
  out.setDigestLow(layout.digest_low);
  out.setTensors(layout.tensors);
  out.setBytes(layout.bytes);
}
LayoutSummary get(wire::LayoutSummary::Reader in) {
  return {in.getDigestHigh(), in.getDigestLow(), in.getTensors(), in.getBytes()};
}

void put(const VersionSpec& version, wire::VersionSpec::Builder out) {
  out.setKind(static_cast<uint8_t>(version.kind));
  out.setExact(version.exact.value);
  out.setBack(version.back);
}
VersionSpec get(wire::VersionSpec::Reader in, Check& check) {
  VersionSpec version;
  version.kind = check.enumerator(in.getKind(), VersionKind::kLatest, "version kind");
  version.exact.value = in.getExact();
  version.back = in.getBack();
  return version;
}

void put(const RemoteRegion& region, wire::RemoteRegion::Builder out) {
  out.setKey(region.key);
  out.setBase(region.base);
  out.setLength(region.length);
}
RemoteRegion get(wire::RemoteRegion::Reader in) {
  return {in.getKey(), in.getBase(), in.getLength()};
}

ErrorCode error_code(uint8_t value, Check& check) {
  return check.enumerator(value, ErrorCode::kRetained, "error code");
}

// ---------------------------------------------------------------- requests

void put(const RetainSpec& retain, wire::RetainSpec::Builder out) {
  out.setLatest(retain.latest);
  WL_ASSERT_OP(retain.versions.size(), <=, kMaxRetained);
  auto versions = out.initVersions(static_cast<unsigned>(retain.versions.size()));
  for (unsigned i = 0; i < versions.size(); ++i) versions.set(i, retain.versions[i].value);
}
RetainSpec get(wire::RetainSpec::Reader in, Check& check) {
  RetainSpec retain;
  retain.latest = in.getLatest();
  auto versions = in.getVersions();
  if (!check.list(versions.size(), kMaxRetained, "retained versions")) return retain;
  for (uint64_t version : versions) retain.versions.push_back({version});
  return retain;
}

void put(const GroupCallRequest& call, wire::Request::GroupCall::Builder out) {
  out.setNumber(call.number.value);
  out.setKind(static_cast<uint8_t>(call.kind));
  put(call.version, out.initVersion());
  out.setTimeoutNanos(call.timeout.count);
  put(call.layout, out.initLayout());
}
GroupCallRequest get(wire::Request::GroupCall::Reader in, Check& check) {
  GroupCallRequest call;
  call.number.value = in.getNumber();
  call.kind = check.enumerator(in.getKind(), CallKind::kUpdate, "call kind");
  call.version = get(in.getVersion(), check);
  call.timeout.count = in.getTimeoutNanos();
  call.layout = get(in.getLayout());
  return call;
}

void put(const DoneCall& done, wire::DoneCall::Builder out) {
  out.setNumber(done.number.value);
  out.setKind(static_cast<uint8_t>(done.kind));
  put(done.version, out.initVersion());
  out.setOk(done.ok);
  put(done.content, out.initContent());
  out.setCode(static_cast<uint8_t>(done.code));
  out.setMessage(text(done.message));
  out.setKept(done.kept);
}
DoneCall get(wire::DoneCall::Reader in, Check& check) {
  DoneCall done;
  done.number.value = in.getNumber();
  done.kind = check.enumerator(in.getKind(), CallKind::kUpdate, "call kind");
  done.version = get(in.getVersion(), check);
  done.ok = in.getOk();
  done.content = get(in.getContent());
  done.code = error_code(in.getCode(), check);
  done.message = text(in.getMessage());
  done.kept = in.getKept();
  return done;
}

void put(const Holding& held, wire::Holding::Builder out) {
  out.setNumber(held.number.value);
  put(held.content, out.initContent());
  put(held.layout, out.initLayout());
  out.setReceiving(held.receiving);
  out.setWhole(held.whole);
  out.setSealedBytes(held.sealed_bytes);
  out.setReading(held.reading.value);
  out.setUpstream(text(held.upstream));
}
Holding get(wire::Holding::Reader in) {
  Holding held;
  held.number.value = in.getNumber();
  held.content = get(in.getContent());
  held.layout = get(in.getLayout());
  held.receiving = in.getReceiving();
  held.whole = in.getWhole();
  held.sealed_bytes = in.getSealedBytes();
  held.reading.value = in.getReading();
  held.upstream = text(in.getUpstream());
  return held;
}

// Nothing but `resumed` is said of a handle that is new.
void put(const Announcement& announced, wire::Announcement::Builder out) {
  out.setResumed(announced.resumed);
  out.setLineage(announced.lineage);
  out.setLastCall(announced.last_call.value);
  auto done = out.initDone(static_cast<unsigned>(announced.done.size()));
  for (unsigned i = 0; i < done.size(); ++i) put(announced.done[i], done[i]);
  put(announced.held, out.initHeld());
  out.setBegun(announced.begun);
  put(announced.pending, out.initPending());
}
Announcement get(wire::Announcement::Reader in, Check& check) {
  Announcement announced;
  announced.resumed = in.getResumed();
  if (!announced.resumed) return announced;
  announced.lineage = in.getLineage();
  announced.last_call.value = in.getLastCall();
  if (!check.list(in.getDone().size(), kMaxDone, "calls")) return announced;
  for (wire::DoneCall::Reader done : in.getDone()) announced.done.push_back(get(done, check));
  announced.held = get(in.getHeld());
  announced.begun = in.getBegun();
  announced.pending = get(in.getPending(), check);
  return announced;
}

void put(const OpenRequest& open, wire::Request::Open::Builder out) {
  out.setModel(text(open.model));
  out.setReplica(text(open.replica));
  out.setShard(open.shard.value);
  out.setNumShards(open.num_shards);
  out.setNode(text(open.node));
  out.setEndpoint(text(open.endpoint));
  out.setSpot(open.spot);
  if (open.retain != RetainSpec{}) put(open.retain, out.initRetain());
  out.setOnOffloadFailure(static_cast<uint8_t>(open.on_offload_failure));
  out.setOffload(open.offload);
  out.setDatacenter(text(open.datacenter));
  out.setHandle(open.handle);
  out.setOpening(open.opening);
  if (open.announced.resumed) put(open.announced, out.initAnnounced());
}
OpenRequest get(wire::Request::Open::Reader in, Check& check) {
  OpenRequest open;
  open.model = text(in.getModel());
  open.replica = text(in.getReplica());
  open.shard.value = in.getShard();
  open.num_shards = in.getNumShards();
  open.node = text(in.getNode());
  open.endpoint = text(in.getEndpoint());
  open.spot = in.getSpot();
  open.retain = get(in.getRetain(), check);
  open.on_offload_failure =
      check.enumerator(in.getOnOffloadFailure(), OffloadFailure::kDrop, "choice on failure");
  open.offload = in.getOffload();
  open.datacenter = text(in.getDatacenter());
  open.handle = in.getHandle();
  open.opening = in.getOpening();
  open.announced = get(in.getAnnounced(), check);
  return open;
}

void put(const PollRequest& poll, wire::Request::Poll::Builder out) {
  out.setAcknowledged(poll.acknowledged);
  out.setSealedBytes(poll.sealed_bytes);
  out.setHoldNanos(poll.hold.count);
  out.setHomesick(poll.homesick);
}
PollRequest get(wire::Request::Poll::Reader in) {
  return {in.getAcknowledged(), in.getSealedBytes(), Nanos{in.getHoldNanos()}, in.getHomesick()};
}

void put(const ReleaseRequest& release, wire::Request::Release::Builder out) {
  out.setAssignment(release.assignment.value);
  out.setKind(static_cast<uint8_t>(release.kind));
  out.setSealedBytes(release.sealed_bytes);
  out.setReason(text(release.reason));
}
ReleaseRequest get(wire::Request::Release::Reader in, Check& check) {
  ReleaseRequest release;
  release.assignment.value = in.getAssignment();
  release.kind = check.enumerator(in.getKind(), ReleaseKind::kPoisoned, "release kind");
  release.sealed_bytes = in.getSealedBytes();
  release.reason = text(in.getReason());
  return release;
}

void put(const AbortRequest& abort, wire::Request::Abort::Builder out) {
  out.setNumber(abort.number.value);
  out.setCode(static_cast<uint8_t>(abort.code));
  out.setReason(text(abort.reason));
}
AbortRequest get(wire::Request::Abort::Reader in, Check& check) {
  AbortRequest abort;
  abort.number.value = in.getNumber();
  abort.code = error_code(in.getCode(), check);
  abort.reason = text(in.getReason());
  return abort;
}

void put(const OffloadFailedRequest& failed, wire::Request::OffloadFailed::Builder out) {
  out.setToken(failed.token);
  out.setReason(text(failed.reason));
}
OffloadFailedRequest get(wire::Request::OffloadFailed::Reader in) {
  return {in.getToken(), text(in.getReason())};
}

void put(const RewindRequest& rewind, wire::Request::Rewind::Builder out) {
  out.setModel(text(rewind.model));
  out.setExpected(rewind.expected.value);
  out.setTicket(rewind.ticket);
}
RewindRequest get(wire::Request::Rewind::Reader in) {
  return {text(in.getModel()), Generation{in.getExpected()}, in.getTicket()};
}

void put(const WaitRequest& wait, wire::Request::Wait::Builder out) {
  out.setModel(text(wait.model));
  put(wait.version, out.initVersion());
  out.setHoldNanos(wait.hold.count);
}
WaitRequest get(wire::Request::Wait::Reader in, Check& check) {
  return {text(in.getModel()), get(in.getVersion(), check), Nanos{in.getHoldNanos()}};
}

void put_body(const RequestBody& body, wire::Request::Body::Builder out) {
  std::visit(
      [&out](const auto& kind) {
        using Kind = std::decay_t<decltype(kind)>;
        if constexpr (std::is_same_v<Kind, OpenRequest>) put(kind, out.initOpen());
        if constexpr (std::is_same_v<Kind, GroupCallRequest>) put(kind, out.initGroupCall());
        if constexpr (std::is_same_v<Kind, PollRequest>) put(kind, out.initPoll());
        if constexpr (std::is_same_v<Kind, ReleaseRequest>) put(kind, out.initRelease());
        if constexpr (std::is_same_v<Kind, AbortRequest>) put(kind, out.initAbort());
        if constexpr (std::is_same_v<Kind, CloseRequest>) out.setClose();
        if constexpr (std::is_same_v<Kind, ListRequest>) {
          out.initList().setModel(text(kind.model));
        }
        if constexpr (std::is_same_v<Kind, WithdrawRequest>) {
          out.initWithdraw().setNumber(kind.number.value);
        }
        if constexpr (std::is_same_v<Kind, OffloadFailedRequest>)
          put(kind, out.initOffloadFailed());
        if constexpr (std::is_same_v<Kind, RewindRequest>) put(kind, out.initRewind());
        if constexpr (std::is_same_v<Kind, WaitRequest>) put(kind, out.initWait());
        if constexpr (std::is_same_v<Kind, PingRequest>) out.setPing();
      },
      body);
}
RequestBody get_body(wire::Request::Body::Reader in, Check& check) {
  switch (in.which()) {
    case wire::Request::Body::OPEN:
      return get(in.getOpen(), check);
    case wire::Request::Body::GROUP_CALL:
      return get(in.getGroupCall(), check);
    case wire::Request::Body::POLL:
      return get(in.getPoll());
    case wire::Request::Body::RELEASE:
      return get(in.getRelease(), check);
    case wire::Request::Body::ABORT:
      return get(in.getAbort(), check);
    case wire::Request::Body::CLOSE:
      return CloseRequest{};
    case wire::Request::Body::LIST:
      return ListRequest{text(in.getList().getModel())};
    case wire::Request::Body::WITHDRAW:
      return WithdrawRequest{CallNumber{in.getWithdraw().getNumber()}};
    case wire::Request::Body::OFFLOAD_FAILED:
      return get(in.getOffloadFailed());
    case wire::Request::Body::REWIND:
      return get(in.getRewind());
    case wire::Request::Body::WAIT:
      return get(in.getWait(), check);
    case wire::Request::Body::PING:
      return PingRequest{};
  }
  check.note("request kind " + std::to_string(static_cast<int>(in.which())) + " is unknown");
  return CloseRequest{};
}

// ---------------------------------------------------------------- events

void put(const AssignedEvent& event, wire::Event::Assigned::Builder out) {
  out.setNumber(event.number.value);
  out.setAssignment(event.assignment.value);
  put(event.content, out.initContent());
  wire::SourceDescription::Builder source = out.initSource();
  source.setReplica(text(event.source.replica));
  source.setIncarnation(event.source.incarnation.value);
  source.setEndpoint(text(event.source.endpoint));
  source.setNode(text(event.source.node));
  source.setComplete(event.source.complete);
}
AssignedEvent get(wire::Event::Assigned::Reader in) {
  AssignedEvent event;
  event.number.value = in.getNumber();
  event.assignment.value = in.getAssignment();
  event.content = get(in.getContent());
  wire::SourceDescription::Reader source = in.getSource();
  event.source.replica = text(source.getReplica());
  event.source.incarnation.value = source.getIncarnation();
  event.source.endpoint = text(source.getEndpoint());
  event.source.node = text(source.getNode());
  event.source.complete = source.getComplete();
  return event;
}

void put(const DecidedEvent& event, wire::Event::Decided::Builder out) {
  out.setNumber(event.number.value);
  out.setOk(event.ok);
  put(event.content, out.initContent());
  out.setCode(static_cast<uint8_t>(event.code));
  out.setMessage(text(event.message));
  out.setKept(event.kept);
  out.setRewound(event.rewound);
}
DecidedEvent get(wire::Event::Decided::Reader in, Check& check) {
  DecidedEvent event;
  event.number.value = in.getNumber();
  event.ok = in.getOk();
  event.content = get(in.getContent());
  event.code = error_code(in.getCode(), check);
  event.message = text(in.getMessage());
  event.kept = in.getKept();
  event.rewound = in.getRewound();
  return event;
}

void put(const AbandonEvent& event, wire::Event::Abandon::Builder out) {
  out.setAssignment(event.assignment.value);
  out.setReason(text(event.reason));
}
AbandonEvent get(wire::Event::Abandon::Reader in) {
  return {AssignmentId{in.getAssignment()}, text(in.getReason())};
}

void put(const OffloadEvent& event, wire::Event::Offload::Builder out) {
  out.setToken(event.token);
  out.setReplica(text(event.replica));
  put(event.content, out.initContent());
}
OffloadEvent get(wire::Event::Offload::Reader in) {
  return {in.getToken(), text(in.getReplica()), get(in.getContent())};
}

void put(const WithdrawnEvent& event, wire::Event::Withdrawn::Builder out) {
  out.setNumber(event.number.value);
  out.setOk(event.ok);
  out.setMessage(text(event.message));
}
WithdrawnEvent get(wire::Event::Withdrawn::Reader in) {
  return {CallNumber{in.getNumber()}, in.getOk(), text(in.getMessage())};
}

void put(const Event& event, wire::Event::Builder out) {
  out.setNumber(event.number);
  wire::Event::Body::Builder body = out.initBody();
  std::visit(
      [&body](const auto& kind) {
        using Kind = std::decay_t<decltype(kind)>;
        if constexpr (std::is_same_v<Kind, AssignedEvent>) put(kind, body.initAssigned());
        if constexpr (std::is_same_v<Kind, DrainedEvent>) {
          body.initDrained().setNumber(kind.number.value);
        }
        if constexpr (std::is_same_v<Kind, DecidedEvent>) put(kind, body.initDecided());
        if constexpr (std::is_same_v<Kind, YieldEvent>) {
          body.initYield().setAssignment(kind.assignment.value);
        }
        if constexpr (std::is_same_v<Kind, AbandonEvent>) put(kind, body.initAbandon());
        if constexpr (std::is_same_v<Kind, OffloadEvent>) put(kind, body.initOffload());
        if constexpr (std::is_same_v<Kind, DropEvent>) {
          body.initDrop().setReason(text(kind.reason));
        }
        if constexpr (std::is_same_v<Kind, WithdrawnEvent>) put(kind, body.initWithdrawn());
        if constexpr (std::is_same_v<Kind, MoveEvent>) body.setMove();
      },
      event.body);
}
EventBody get_body(wire::Event::Body::Reader in, Check& check) {
  switch (in.which()) {
    case wire::Event::Body::ASSIGNED:
      return get(in.getAssigned());
    case wire::Event::Body::DRAINED:
      return DrainedEvent{CallNumber{in.getDrained().getNumber()}};
    case wire::Event::Body::DECIDED:
      return get(in.getDecided(), check);
    case wire::Event::Body::YIELD:
      return YieldEvent{AssignmentId{in.getYield().getAssignment()}};
    case wire::Event::Body::ABANDON:
      return get(in.getAbandon());
    case wire::Event::Body::OFFLOAD:
      return get(in.getOffload());
    case wire::Event::Body::DROP:
      return DropEvent{text(in.getDrop().getReason())};
    case wire::Event::Body::WITHDRAWN:
      return get(in.getWithdrawn());
    case wire::Event::Body::MOVE:
      return MoveEvent{};
  }
  check.note("event kind " + std::to_string(static_cast<int>(in.which())) + " is unknown");
  return YieldEvent{};
}

// ---------------------------------------------------------------- responses

void put(const Failure& failure, wire::Response::Failure::Builder out) {
  out.setKind(static_cast<uint8_t>(failure.kind));
  out.setCode(static_cast<uint8_t>(failure.code));
  out.setMessage(text(failure.message));
  out.setHeardAgoNanos(failure.heard_ago.count);
  out.setHolder(failure.holder.value);
}
Failure get(wire::Response::Failure::Reader in, Check& check) {
  Failure failure;
  failure.kind = check.enumerator(in.getKind(), FailureKind::kStaleSession, "failure kind");
  failure.code = error_code(in.getCode(), check);
  failure.message = text(in.getMessage());
  failure.heard_ago.count = in.getHeardAgoNanos();
  failure.holder.value = in.getHolder();
  return failure;
}

void put(const OpenedResponse& opened, wire::Response::Opened::Builder out) {
  out.setNextCall(opened.next_call.value);
  out.setHeartbeatNanos(opened.heartbeat.count);
  out.setLeaseNanos(opened.lease.count);
  out.setDrainNanos(opened.drain.count);
  out.setRefused(opened.refused);
  out.setLineage(opened.lineage);
}
OpenedResponse get(wire::Response::Opened::Reader in) {
  return {CallNumber{in.getNextCall()},
          Nanos{in.getHeartbeatNanos()},
          Nanos{in.getLeaseNanos()},
          Nanos{in.getDrainNanos()},
          in.getRefused(),
          in.getLineage()};
}

void put(const ListedReplica& replica, wire::ListedReplica::Builder out) {
  out.setModel(text(replica.model));
  out.setReplica(text(replica.replica));
  put(replica.content, out.initContent());
  out.setState(static_cast<uint8_t>(replica.state));
  out.setNumShards(replica.num_shards);
  out.setBytes(replica.bytes);
  out.setSealedBytes(replica.sealed_bytes);
  out.setSource(text(replica.source));
  out.setOffload(replica.offload);
  out.setSpot(replica.spot);
  out.setRetained(replica.retained);
  out.setDatacenter(text(replica.datacenter));
}
ListedReplica get(wire::ListedReplica::Reader in, Check& check) {
  ListedReplica replica;
  replica.model = text(in.getModel());
  replica.replica = text(in.getReplica());
  replica.content = get(in.getContent());
  replica.state = check.enumerator(in.getState(), ReplicaState::kHidden, "replica state");
  replica.num_shards = in.getNumShards();
  replica.bytes = in.getBytes();
  replica.sealed_bytes = in.getSealedBytes();
  replica.source = text(in.getSource());
  replica.offload = in.getOffload();
  replica.spot = in.getSpot();
  replica.retained = in.getRetained();
  replica.datacenter = text(in.getDatacenter());
  return replica;
}

// Cap'n Proto counts list elements in 29 bits and asserts it; ours stay far below.
unsigned count_of(size_t size, size_t limit) {
  WL_ASSERT_OP(size, <=, limit);
  return static_cast<unsigned>(size);
}

void put(const EventsResponse& events, wire::Response::Body::Builder out) {
  auto list = out.initEvents(count_of(events.events.size(), kMaxEvents));
  for (unsigned i = 0; i < list.size(); ++i) put(events.events[i], list[i]);
}
EventsResponse get(capnp::List<wire::Event>::Reader in, Check& check) {
  EventsResponse events;
  if (!check.list(in.size(), kMaxEvents, "events")) return events;
  for (wire::Event::Reader event : in) {
    events.events.push_back(Event{event.getNumber(), get_body(event.getBody(), check)});
  }
  return events;
}

void put(const ListResponse& list, wire::Response::Listed::Builder out) {
  out.setOpenShards(list.open_shards);
  auto replicas = out.initReplicas(count_of(list.replicas.size(), kMaxReplicas));
  for (unsigned i = 0; i < replicas.size(); ++i) put(list.replicas[i], replicas[i]);
  auto models = out.initModels(count_of(list.models.size(), kMaxModels));
  for (unsigned i = 0; i < models.size(); ++i) {
    models[i].setModel(text(list.models[i].model));
    models[i].setGeneration(list.models[i].generation.value);
  }
}
ListResponse get(wire::Response::Listed::Reader in, Check& check) {
  ListResponse list;
  list.open_shards = in.getOpenShards();
  auto replicas = in.getReplicas();
  if (!check.list(replicas.size(), kMaxReplicas, "replicas")) return list;
  for (wire::ListedReplica::Reader replica : replicas) {
    list.replicas.push_back(get(replica, check));
  }
  auto models = in.getModels();
  if (!check.list(models.size(), kMaxModels, "models")) return list;
  for (wire::ListedModel::Reader model : models) {
    list.models.push_back({text(model.getModel()), Generation{model.getGeneration()}});
  }
  return list;
}

void put(const WaitedResponse& waited, wire::Response::Waited::Builder out) {
  out.setThere(waited.there);
  put(waited.content, out.initContent());
  out.setGeneration(waited.generation.value);
}
WaitedResponse get(wire::Response::Waited::Reader in) {
  return {in.getThere(), get(in.getContent()), Generation{in.getGeneration()}};
}

void put_body(const ResponseBody& body, wire::Response::Body::Builder out) {
  std::visit(
      [&out](const auto& kind) {
        using Kind = std::decay_t<decltype(kind)>;
        if constexpr (std::is_same_v<Kind, Failure>) put(kind, out.initFailure());
        if constexpr (std::is_same_v<Kind, OpenedResponse>) put(kind, out.initOpened());
        if constexpr (std::is_same_v<Kind, AcceptedResponse>) out.setAccepted();
        if constexpr (std::is_same_v<Kind, EventsResponse>) put(kind, out);
        if constexpr (std::is_same_v<Kind, ListResponse>) put(kind, out.initList());
        if constexpr (std::is_same_v<Kind, RewoundResponse>) {
          out.setRewound(kind.generation.value);
        }
        if constexpr (std::is_same_v<Kind, WaitedResponse>) put(kind, out.initWaited());
      },
      body);
}
ResponseBody get_body(wire::Response::Body::Reader in, Check& check) {
  switch (in.which()) {
    case wire::Response::Body::FAILURE:
      return get(in.getFailure(), check);
    case wire::Response::Body::OPENED:
      return get(in.getOpened());
    case wire::Response::Body::ACCEPTED:
      return AcceptedResponse{};
    case wire::Response::Body::EVENTS:
      return get(in.getEvents(), check);
    case wire::Response::Body::LIST:
      return get(in.getList(), check);
    case wire::Response::Body::REWOUND:
      return RewoundResponse{Generation{in.getRewound()}};
    case wire::Response::Body::WAITED:
      return get(in.getWaited());
  }
  check.note("response kind " + std::to_string(static_cast<int>(in.which())) + " is unknown");
  return AcceptedResponse{};
}

// ---------------------------------------------------------------- at connect

void put(const HelloMessage& hello, wire::HelloMessage::Builder out) {
  out.setSource(hello.source.value);
  out.setAssignment(hello.assignment.value);
  put(hello.content, out.initContent());
  put(hello.layout, out.initLayout());
  out.setReader(text(hello.reader));
}
HelloMessage get(wire::HelloMessage::Reader in, Check&) {
  return {Incarnation{in.getSource()}, AssignmentId{in.getAssignment()}, get(in.getContent()),
          get(in.getLayout()), text(in.getReader())};
}

void put(const WelcomeMessage& welcome, wire::WelcomeMessage::Builder out) {
  out.setStamp(welcome.stamp.value);
  put(welcome.control, out.initControl());
  put(welcome.digests, out.initDigests());
  out.setSliceBytes(welcome.slice_bytes);
  auto regions = out.initRegions(count_of(welcome.regions.size(), kMaxRegions));
  for (unsigned i = 0; i < regions.size(); ++i) put(welcome.regions[i], regions[i]);
  auto tensors = out.initTensors(count_of(welcome.tensors.size(), kMaxTensors));
  for (unsigned i = 0; i < tensors.size(); ++i) {
    tensors[i].setRegion(welcome.tensors[i].region);
    tensors[i].setOffset(welcome.tensors[i].offset);
  }
}
WelcomeMessage get(wire::WelcomeMessage::Reader in, Check& check) {
  WelcomeMessage welcome;
  welcome.stamp.value = in.getStamp();
  welcome.control = get(in.getControl());
  welcome.digests = get(in.getDigests());
  welcome.slice_bytes = in.getSliceBytes();
  auto regions = in.getRegions();
  auto tensors = in.getTensors();
  if (!check.list(regions.size(), kMaxRegions, "regions")) return welcome;
  if (!check.list(tensors.size(), kMaxTensors, "tensors")) return welcome;
  for (wire::RemoteRegion::Reader region : regions) welcome.regions.push_back(get(region));
  for (wire::TensorPlace::Reader place : tensors) {
    welcome.tensors.push_back(TensorPlace{place.getRegion(), place.getOffset()});
  }
  return welcome;
}

// ---------------------------------------------------------------- whole messages

void put(const Request& request, wire::Request::Builder out) {
  out.setIncarnation(request.header.incarnation.value);
  out.setSession(request.header.session);
  out.setSequence(request.header.sequence);
  put_body(request.body, out.initBody());
}
Request get(wire::Request::Reader in, Check& check) {
  Request request;
  request.header.incarnation.value = in.getIncarnation();
  request.header.session = in.getSession();
  request.header.sequence = in.getSequence();
  request.body = get_body(in.getBody(), check);
  return request;
}

void put(const Response& response, wire::Response::Builder out) {
  out.setServer(response.server.value);
  put_body(response.body, out.initBody());
}
Response get(wire::Response::Reader in, Check& check) {
  Response response;
  response.server.value = in.getServer();
  response.body = get_body(in.getBody(), check);
  return response;
}

// Runs `read`, which may throw what Cap'n Proto throws at malformed input.
template <typename Message, typename Read>
Result<Message> guarded(Read read) {
  Check check;
  try {
    Message message = read(check);
    if (check.wrong.empty()) return message;
  } catch (const kj::Exception& exception) {
    check.wrong = exception.getDescription().cStr();
  }
  return Error{ErrorCode::kCorrupt, "malformed message: " + check.wrong};
}

template <typename Wire, typename Message>
Bytes encode_as(const Message& message) {
  capnp::word scratch[256];  // most messages fit, and then nothing is allocated but the result
  std::memset(scratch, 0, sizeof scratch);
  capnp::MallocMessageBuilder builder(scratch);
  put(message, builder.initRoot<Wire>());
  Bytes bytes(capnp::computeSerializedSizeInWords(builder) * sizeof(capnp::word));
  kj::ArrayOutputStream out(kj::arrayPtr(bytes.data(), bytes.size()));
  capnp::writeMessage(out, builder);
  return bytes;
}

template <typename Wire, typename Message>
Result<Message> decode_as(std::span<const uint8_t> bytes) {
  const size_t words = bytes.size() / sizeof(capnp::word);
  // Readers need whole words, aligned; a copy costs less than what follows.
  kj::Array<capnp::word> aligned = kj::heapArray<capnp::word>(words);
  if (words > 0) std::memcpy(aligned.begin(), bytes.data(), words * sizeof(capnp::word));
  return guarded<Message>([&](Check& check) {
    if (bytes.size() % sizeof(capnp::word) != 0) {
      check.note("its length is no multiple of 8 bytes");
      return Message{};
    }
    capnp::ReaderOptions options;
    // Every word is visited once or twice; overlapping pointers and lists of nothing are not for
    // us.
    options.traversalLimitInWords = 4 * words + 64;
    options.nestingLimit = 16;
    capnp::FlatArrayMessageReader reader(aligned, options);
    Message message = get(reader.getRoot<Wire>(), check);
    if (reader.getEnd() != aligned.end()) check.note("bytes follow its end");
    return message;
  });
}

}  // namespace

void to_wire(const Request& request, wire::Request::Builder builder) { put(request, builder); }
void to_wire(const Response& response, wire::Response::Builder builder) { put(response, builder); }
Result<Request> from_wire(wire::Request::Reader reader) {
  return guarded<Request>([&](Check& check) { return get(reader, check); });
}
Result<Response> from_wire(wire::Response::Reader reader) {
  return guarded<Response>([&](Check& check) { return get(reader, check); });
}

Bytes encode(const Request& request) { return encode_as<wire::Request>(request); }
Bytes encode(const Response& response) { return encode_as<wire::Response>(response); }
Bytes encode(const HelloMessage& hello) { return encode_as<wire::HelloMessage>(hello); }
Bytes encode(const WelcomeMessage& welcome) { return encode_as<wire::WelcomeMessage>(welcome); }

Result<Request> decode_request(std::span<const uint8_t> bytes) {
  return decode_as<wire::Request, Request>(bytes);
}
Result<Response> decode_response(std::span<const uint8_t> bytes) {
  return decode_as<wire::Response, Response>(bytes);
}
Result<HelloMessage> decode_hello(std::span<const uint8_t> bytes) {
  return decode_as<wire::HelloMessage, HelloMessage>(bytes);
}
Result<WelcomeMessage> decode_welcome(std::span<const uint8_t> bytes) {
  return decode_as<wire::WelcomeMessage, WelcomeMessage>(bytes);
}

}  // namespace weightlane::net
