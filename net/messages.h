// Every message between a shard handle and the reference server, and the two that a reader and a
// source exchange when a queue pair is connected. Plain values; net/weightlane.capnp is their form
// on the wire, net/codec.h converts.
//
// All requests are short and idempotent by state: the server answers at once, except Poll, which it
// holds until there is an event for that client or `hold` has passed. Poll is the heartbeat as
// well. Decisions, assignments and the like reach a client only as events of its Poll, numbered per
// incarnation and repeated until acknowledged.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "flow/result.h"
#include "flow/time.h"
#include "net/data_plane.h"
#include "net/ids.h"

namespace weightlane::net {

// Content of one version of one model: what every READ, resume and re-route must match in full.
struct Content {
  Generation generation;
  VersionId version;
  ContentId id;  // 0 = none
  bool operator==(const Content&) const = default;
};

// What a shard's registered tensors look like; equal digests mean equal name, dtype, shape and
// order.
struct LayoutSummary {
  uint64_t digest_high = 0;
  uint64_t digest_low = 0;
  uint64_t tensors = 0;
  uint64_t bytes = 0;
  bool operator==(const LayoutSummary&) const = default;
};

enum class VersionKind : uint8_t { kExact, kLatest };
struct VersionSpec {
  VersionKind kind = VersionKind::kLatest;
  VersionId exact;    // kExact
  uint32_t back = 0;  // kLatest: 0 = latest, k = latest-k
  bool operator==(const VersionSpec&) const = default;
};
std::string to_string(const VersionSpec& spec);  // "7", "latest", "latest-2"

// ---------------------------------------------------------------- client -> server

struct RequestHeader {
  Incarnation incarnation;  // 0: no handle (List)
  uint64_t session =
      0;  // grows with every new connection of this incarnation; older sessions are not served
  uint64_t sequence = 0;  // grows with every new request; a retry keeps its number
  bool operator==(const RequestHeader&) const = default;
};

struct OpenRequest {
  std::string model;
  std::string replica;
  ShardIndex shard;
  uint32_t num_shards = 0;
  std::string node;      // boot id of the machine: same node, same text
  std::string endpoint;  // of this handle's acceptor on its data plane
  bool operator==(const OpenRequest&) const = default;
};

enum class CallKind : uint8_t { kPublish, kUnpublish, kReplicate, kUpdate };
const char* call_kind_name(CallKind kind);

// The n-th publish, unpublish, replicate or update of this handle.
struct GroupCallRequest {
  CallNumber number;
  CallKind kind = CallKind::kPublish;
  VersionSpec version;   // kPublish: exact. kReplicate, kUpdate: what is wanted
  Nanos timeout;         // span; kReplicate, kUpdate: how long the group may take as a whole
  LayoutSummary layout;  // kPublish, kReplicate, kUpdate
  bool operator==(const GroupCallRequest&) const = default;
};

struct PollRequest {
  uint64_t acknowledged = 0;  // the highest event number this client has processed
  uint64_t sealed_bytes = 0;  // progress of the transfer under way, for people
  Nanos hold;                 // span: how long the server may keep the poll
  bool operator==(const PollRequest&) const = default;
};

enum class ReleaseKind : uint8_t {
  kComplete,     // every byte of the shard is sealed
  kNeverOpened,  // no READ was posted under this assignment, and none will be
  kAbandoned,    // stopped because the server or the caller said so; the queue pair is destroyed
  kFailed,       // stopped because of the source or the path; the queue pair is destroyed
  kPoisoned,     // stopped, but the queue pair could not be destroyed: this shard's memory is lost
};
// The reader's `done(assignment, sealed)`: after it no READ of that assignment can be executed any
// more.
struct ReleaseRequest {
  AssignmentId assignment;
  ReleaseKind kind = ReleaseKind::kAbandoned;
  uint64_t sealed_bytes = 0;
  std::string reason;  // kFailed: for people
  bool operator==(const ReleaseRequest&) const = default;
};

// A call was given up on this side without knowing its outcome, or local data was lost: poisons the
// replica's next call.
struct AbortRequest {
  CallNumber number;
  ErrorCode code = ErrorCode::kTimeout;
  std::string reason;
  bool operator==(const AbortRequest&) const = default;
};

// The handle goes. Its memory is already handed back: its stamp is 0 and its queue pairs are
// destroyed.
struct CloseRequest {
  bool operator==(const CloseRequest&) const = default;
};

struct ListRequest {
  std::string model;  // empty: all
  bool operator==(const ListRequest&) const = default;
};

using RequestBody = std::variant<OpenRequest, GroupCallRequest, PollRequest, ReleaseRequest,
                                 AbortRequest, CloseRequest, ListRequest>;
struct Request {
  RequestHeader header;
  RequestBody body;
  bool operator==(const Request&) const = default;
};

// ---------------------------------------------------------------- server -> client

struct SourceDescription {
  std::string replica;      // for people
  Incarnation incarnation;  // verified at connect
  std::string endpoint;
  std::string node;
  bool complete = false;  // false: still receiving itself, its `proven` grows
  bool operator==(const SourceDescription&) const = default;
};

// Read your shard of `content` from `source`. The answer is a Release, whatever happens. For an
// update it is the decision too: the old version is hidden, and its memory is to be taken back
// (drain, stamp 0) before the first READ is posted.
struct AssignedEvent {
  CallNumber number;
  AssignmentId assignment;
  Content content;
  SourceDescription source;
  bool operator==(const AssignedEvent&) const = default;
};

// The publication that call `number` (publish, replicate or update) began is hidden and this
// shard's readers have left: memory may change once your stamp is 0. Once per publication; it may
// come before the shard asks for its memory.
struct DrainedEvent {
  CallNumber number;
  bool operator==(const DrainedEvent&) const = default;
};

// The n-th call has come to its end, the same for every shard.
struct DecidedEvent {
  CallNumber number;
  bool ok = false;
  Content content;  // ok: what is held now; id 0: nothing new (kUpdate), or nothing (kUnpublish)
  ErrorCode code = ErrorCode::kInvalidArgument;  // not ok
  std::string message;
  bool operator==(const DecidedEvent&) const = default;
};

// The source wants its memory back. Not begun: release as kNeverOpened, another assignment follows.
// Begun: go on.
struct YieldEvent {
  AssignmentId assignment;
  bool operator==(const YieldEvent&) const = default;
};

// The source failed or is gone: stop, release as kAbandoned; another assignment or the decision
// follows.
struct AbandonEvent {
  AssignmentId assignment;
  std::string reason;
  bool operator==(const AbandonEvent&) const = default;
};

using EventBody = std::variant<AssignedEvent, DrainedEvent, DecidedEvent, YieldEvent, AbandonEvent>;
struct Event {
  uint64_t number = 0;  // per incarnation, from 1, without gaps
  EventBody body;
  bool operator==(const Event&) const = default;
};

enum class FailureKind : uint8_t {
  kError,               // `error` says what is wrong with this request; nothing was changed
  kUnknownIncarnation,  // never opened here, evicted or closed: open again as a new incarnation
  kStaleSession,        // a newer connection of this incarnation exists
};
struct Failure {
  FailureKind kind = FailureKind::kError;
  ErrorCode code = ErrorCode::kInvalidArgument;
  std::string message;
  Nanos heard_ago;     // kAlreadyOpen: since the holder was last heard
  Incarnation holder;  // kAlreadyOpen: who it is
  bool operator==(const Failure&) const = default;
};
struct OpenedResponse {
  CallNumber next_call;  // the number of this handle's first call
  Nanos heartbeat;       // poll at least this often
  Nanos lease;           // not heard for this long: evicted
  Nanos drain;           // how long a source waits for its readers
  bool operator==(const OpenedResponse&) const = default;
};
struct AcceptedResponse {
  bool operator==(const AcceptedResponse&) const = default;
};
struct EventsResponse {
  std::vector<Event> events;
  bool operator==(const EventsResponse&) const = default;
};
enum class ReplicaState : uint8_t { kPublishing, kComplete, kReceiving, kHidden };
const char* replica_state_name(ReplicaState state);
struct ListedReplica {
  std::string model;
  std::string replica;
  Content content;
  ReplicaState state = ReplicaState::kPublishing;
  uint32_t num_shards = 0;
  uint64_t bytes = 0;         // of all shards
  uint64_t sealed_bytes = 0;  // kReceiving: reported so far
  std::string source;         // kReceiving: from whom
  bool operator==(const ListedReplica&) const = default;
};
struct ListResponse {
  std::vector<ListedReplica> replicas;  // by model, version (newest first), replica
  uint64_t open_shards = 0;
  bool operator==(const ListResponse&) const = default;
};
using ResponseBody =
    std::variant<Failure, OpenedResponse, AcceptedResponse, EventsResponse, ListResponse>;
struct Response {
  BootId server;
  ResponseBody body;
  bool operator==(const Response&) const = default;
};

// ---------------------------------------------------------------- reader <-> source, at connect

struct HelloMessage {
  Incarnation source;  // whom the reader means; another one refuses
  AssignmentId assignment;
  Content content;
  LayoutSummary layout;
  std::string reader;  // "model/replica/shard", for people
  bool operator==(const HelloMessage&) const = default;
};

struct TensorPlace {
  uint32_t region = 0;  // index into WelcomeMessage::regions
  uint64_t offset = 0;  // bytes
  bool operator==(const TensorPlace&) const = default;
};
struct WelcomeMessage {
  Stamp stamp;           // of `content`, at the moment of accepting: the CPU's half of the seal
  RemoteRegion control;  // word 0: stamp, word 1: proven bytes
  RemoteRegion
      digests;  // length 0: no checksums. word 0: the stamp once ready, then one word per slice
  uint64_t slice_bytes = 0;  // how the source cuts the stream for its digests
  std::vector<RemoteRegion> regions;
  std::vector<TensorPlace> tensors;  // in canonical order
  bool operator==(const WelcomeMessage&) const = default;
};

}  // namespace weightlane::net
