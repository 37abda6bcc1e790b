// Every message between a shard handle and the reference server. Plain values; net/weightlane.capnp
// is their form on the wire, net/codec.h converts.
//
// Requests are short and idempotent by state: the server answers at once, but for Poll, the
// heartbeat, which it holds until there is an event for that client or `hold` has passed. Decisions
// and the like reach a client as events of its Poll only, numbered per incarnation, repeated until
// acknowledged.
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

// What a handle wants kept for as long as it is open (P5).
struct RetainSpec {
  uint32_t latest = 0;              // the newest so many versions of the current generation
  std::vector<VersionId> versions;  // these, of whatever generation is the newest to have them
  bool operator==(const RetainSpec&) const = default;
};
// What happens when a retained version's last copy should go and host memory cannot take it.
enum class OffloadFailure : uint8_t {
  kRefuse,  // unpublish, update and close fail with kRetained; the version stays published
  kDrop,    // the version is lost; counted, and its readers get kVersionUnavailable
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

// The end of one call, as this shard was told it.
struct DoneCall {
  CallNumber number;
  CallKind kind = CallKind::kPublish;
  VersionSpec version;
  bool ok = false;
  Content content;  // as in DecidedEvent
  ErrorCode code = ErrorCode::kInvalidArgument;
  std::string message;
  bool kept = false;
  bool operator==(const DoneCall&) const = default;
};

// What a shard's memory holds, or receives.
struct Holding {
  CallNumber number;  // of the call that began it; 0: nothing
  Content content;
  LayoutSummary layout;
  bool receiving = false;  // began as a replicate or update
  bool whole = false;      // published, or sealed to the end
  uint64_t sealed_bytes = 0;
  AssignmentId reading;  // not whole: the READs under way, of whatever server; 0: none
  std::string upstream;  // the replica that these read from
  bool operator==(const Holding&) const = default;
};

// The whole truth about a handle, told when it opens anew, so that any server can go on (P9).
struct Announcement {
  bool resumed = false;        // false: a new handle, which has nothing to tell
  uint64_t lineage = 0;        // as it was told when it opened before
  CallNumber last_call;        // the highest whose end it knows
  std::vector<DoneCall> done;  // the newest of them, oldest first, up to last_call
  Holding held;
  bool begun = false;        // the call under way has begun to give up what was held before it
  GroupCallRequest pending;  // the call under way, made again; number 0: none
  bool operator==(const Announcement&) const = default;
};

struct OpenRequest {
  std::string model;
  std::string replica;
  ShardIndex shard;
  uint32_t num_shards = 0;
  std::string node;      // boot id of the machine: same node, same text
  std::string endpoint;  // of this handle's acceptor on its data plane
  bool spot = false;     // may vanish at any time: what it holds never counts as a copy (P5)
  RetainSpec retain = {};
  OffloadFailure on_offload_failure = OffloadFailure::kRefuse;
  uint64_t offload = 0;  // OffloadEvent::token: a shard of that offload; 0: an ordinary replica
  std::string datacenter = {};  // where it stands; equal text: no slow link between
  uint64_t handle = 0;          // the same in every opening of one handle; 0: never opens again
  uint64_t opening = 0;         // grows with every opening of that handle
  Announcement announced{};
  bool operator==(const OpenRequest&) const = default;
};

struct PollRequest {
  uint64_t acknowledged = 0;  // the highest event number this client has processed
  uint64_t sealed_bytes = 0;  // progress of the transfer under way, for people
  Nanos hold;                 // span: how long the server may keep the poll
  bool homesick = false;      // a server before this one in the client's list answers again
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

// Is anybody there? Answered with AcceptedResponse, whoever asks.
struct PingRequest {
  bool operator==(const PingRequest&) const = default;
};

// The handle wants to close what call `number` published. The answer is a WithdrawnEvent, which may
// wait until a retained version has found another keeper.
struct WithdrawRequest {
  CallNumber number;
  bool operator==(const WithdrawRequest&) const = default;
};

// This process cannot keep its shard of the offload that an OffloadEvent asked for.
struct OffloadFailedRequest {
  uint64_t token = 0;
  std::string reason;
  bool operator==(const OffloadFailedRequest&) const = default;
};

// The next generation of a model, if the present one is `expected`. Needs no handle.
struct RewindRequest {
  std::string model;
  Generation expected;
  uint64_t ticket = 0;  // random, the same in every repetition: these are answered alike (P10)
  bool operator==(const RewindRequest&) const = default;
};

// Answered as soon as the version is there, or after `hold` at the latest. Needs no handle.
struct WaitRequest {
  std::string model;
  VersionSpec version;
  Nanos hold;  // span; the server keeps no request longer than its heartbeat
  bool operator==(const WaitRequest&) const = default;
};

using RequestBody = std::variant<OpenRequest, GroupCallRequest, PollRequest, ReleaseRequest,
                                 AbortRequest, CloseRequest, ListRequest, WithdrawRequest,
                                 OffloadFailedRequest, RewindRequest, WaitRequest, PingRequest>;
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
  bool kept = false;  // not ok: what was published before this call still is (kRetained)
  bool rewound =
      false;  // ok: of a newer generation than what was held before, perhaps a lower number
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

// Every shard of the replica reaches an earlier server of its list: all go there.
struct MoveEvent {
  bool operator==(const MoveEvent&) const = default;
};

// Keep your shard of `content` in host memory: open it as shard of the replica `replica` with this
// token and replicate the content's version into it. It may be read from anyone who has it, this
// handle's own memory included.
struct OffloadEvent {
  uint64_t token = 0;
  std::string replica;
  Content content;
  bool operator==(const OffloadEvent&) const = default;
};

// To an offload's shard: nobody needs you any more. Close.
struct DropEvent {
  std::string reason;
  bool operator==(const DropEvent&) const = default;
};

// The answer to a Withdraw. ok: the publication is hidden, a DrainedEvent follows. Not ok: it stays
// published.
struct WithdrawnEvent {
  CallNumber number;
  bool ok = false;
  std::string message;
  bool operator==(const WithdrawnEvent&) const = default;
};

using EventBody = std::variant<AssignedEvent, DrainedEvent, DecidedEvent, YieldEvent, AbandonEvent,
                               OffloadEvent, DropEvent, WithdrawnEvent, MoveEvent>;
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
  bool refused = false;  // what was announced does not fit: hand it back, and tell of its loss
  uint64_t lineage = 0;  // names the numbering of calls: new with a replica, kept by failovers
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
  bool offload = false;       // in host memory, because the version is retained
  bool spot = false;
  bool retained = false;   // the version, by whomever
  std::string datacenter;  // where the replica stands
  bool operator==(const ListedReplica&) const = default;
};
struct ListedModel {
  std::string model;
  Generation generation;  // the present one: what rewind() expects
  bool operator==(const ListedModel&) const = default;
};
struct ListResponse {
  std::vector<ListedReplica> replicas;  // by model, version (newest first), replica
  std::vector<ListedModel> models;
  uint64_t open_shards = 0;
  bool operator==(const ListResponse&) const = default;
};
struct RewoundResponse {
  Generation generation;  // the new one
  bool operator==(const RewoundResponse&) const = default;
};
struct WaitedResponse {
  bool there = false;     // false: not within `hold`
  Content content;        // there: which
  Generation generation;  // the present one; 0: nobody has this model open
  bool operator==(const WaitedResponse&) const = default;
};
using ResponseBody = std::variant<Failure, OpenedResponse, AcceptedResponse, EventsResponse,
                                  ListResponse, RewoundResponse, WaitedResponse>;
struct Response {
  BootId server;
  ResponseBody body;
  bool operator==(const Response&) const = default;
};

}  // namespace weightlane::net
