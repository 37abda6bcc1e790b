// What outsiders may watch: metrics in prod, checkers in sim. Every method has an empty default and
// must not call back.
#pragma once

#include <cstdint>
#include <string_view>

#include "flow/runtime.h"
#include "flow/time.h"
#include "net/messages.h"

namespace weightlane::ros {

struct HandleName {
  std::string_view model;
  std::string_view replica;
  ShardIndex shard;
};

// kRefused: opened again, but what it held did not fit and goes back to the application.
enum class Opening : uint8_t { kFirst, kAgain, kRefused };

class HandleObserver {
 public:
  virtual ~HandleObserver() = default;

  // A group call began and ended on this shard. ok: `content` is what it resolved to (id 0:
  // nothing).
  virtual void on_call_started(HandleName, CallNumber, net::CallKind) {}
  virtual void on_call_ended(HandleName, CallNumber, net::CallKind, bool /*ok*/, ErrorCode,
                             net::Content, Nanos /*elapsed*/) {}
  // The control block: `stamp` 0 means that the memory is handed back.
  virtual void on_stamp(HandleName, Stamp, net::Content) {}
  // Bytes [0, proven) of the stream are sealed under `stamp`.
  virtual void on_proven(HandleName, Stamp, net::Content, uint64_t /*proven*/) {}
  virtual void on_source_connected(HandleName, AssignmentId, std::string_view /*transport*/) {}
  virtual void on_bytes_read(HandleName, uint64_t /*bytes*/, std::string_view /*transport*/) {}
  // Sealing failed: what was read since the last seal is thrown away.
  virtual void on_seal_failed(HandleName, AssignmentId) {}
  virtual void on_source_failed(HandleName, AssignmentId, std::string_view /*reason*/) {}
  virtual void on_fenced(HandleName) {}  // readers were cut off at the drain deadline
  virtual void on_registered_bytes(HandleName, uint64_t /*bytes*/) {}  // now; 0 after unregister
  virtual void on_server_lost(HandleName) {}
  // An offload of this process got its memory (length 0: gave it back); `all` bytes are taken now.
  virtual void on_offload(HandleName, net::MemoryRange, uint64_t /*all*/) {}
  // A server has taken this handle: its first, or another one, or another life of it.
  virtual void on_server_left(HandleName, std::string_view /*why*/) {}
  virtual void on_opened(HandleName, std::string_view /*server*/, uint64_t /*lineage*/, Opening) {}
};

class Directory;
struct Group;

class ServerObserver {
 public:
  virtual ~ServerObserver() = default;
  // After every request and every timer, when the state is consistent.
  virtual void on_applied(const Directory&, Nanos /*now*/) {}
  virtual void on_visible(std::string_view /*model*/, std::string_view /*replica*/, net::Content) {}
  virtual void on_hidden(std::string_view /*model*/, std::string_view /*replica*/, net::Content) {}
  virtual void on_assigned(std::string_view /*reader*/, std::string_view /*source*/, ShardIndex,
                           net::Content) {}
  virtual void on_decided(std::string_view /*model*/, std::string_view /*replica*/, CallNumber,
                          net::CallKind, bool /*ok*/, ErrorCode, net::Content) {}
  virtual void on_evicted(std::string_view /*model*/, std::string_view /*replica*/, ShardIndex) {}
  // P8: the group carries this content into its datacenter; an update found it elsewhere, and does
  // not.
  virtual void on_seed_begun(const Group&, net::Content) {}
  virtual void on_seed_skipped(const Group&, net::Content) {}
  // A request of a known client was applied. `repeated`: its sequence number had been seen before.
  virtual void on_request(const net::Request&, bool /*repeated*/) {}
  // A replica is about to give up its copy on purpose: unpublish, update, close, or an offload that
  // is not needed any more. Losses are not told here.
  virtual void on_withdrawing(std::string_view /*model*/, std::string_view /*replica*/,
                              net::Content) {}
  // Somebody's memory is to take the content, as the replica `offload`.
  virtual void on_offload_directed(std::string_view /*model*/, std::string_view /*offload*/,
                                   net::Content) {}
  // A retained version was let go, as its holder chose (OffloadFailure::kDrop).
  virtual void on_retention_dropped(std::string_view /*model*/, net::Content,
                                    std::string_view /*why*/) {}
  virtual void on_rewound(std::string_view /*model*/, Generation) {}
  virtual void on_probe(const flow::ProbePoint&) {}
};

}  // namespace weightlane::ros
