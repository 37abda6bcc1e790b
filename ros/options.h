// Every time-out and switch of the protocol, by name, with the defaults that sim and prod share.
#pragma once

#include <cstdint>

#include "flow/time.h"

namespace weightlane::ros {

// The server's; heartbeat, lease and drain are told to every client when it opens.
struct ServerOptions {
  Nanos heartbeat = seconds(1);        // a client's Poll is held no longer
  Nanos lease = seconds(10);           // not heard for so long: evicted
  Nanos drain = seconds(30);           // how long a source waits for its readers before it fences
  Nanos missing_member = seconds(60);  // a shard that never makes the call its group is in
  Nanos retry_same_source =
      millis(500);              // before a failed source is tried again when there is no other
  Nanos offload = seconds(60);  // for the last copy of a retained version to get into host memory
  uint64_t calls_ahead_most = 256;  // of one shard before another of its replica: then ReplicaLost
  Nanos seed_patience = seconds(10);  // how long an update leaves a seed to another replica that
                                      // could do it better (seeding.h)
  bool pipelining = true;  // false: partial replicas never serve, sources serve any number at once
};

// A shard handle's.
struct HandleOptions {
  Nanos connect = seconds(5);  // data plane connect; one attempt at a server
  Nanos stall = seconds(2);    // no progress though the source has more
  Nanos quarantine = seconds(
      20);  // for a queue pair to be drained and destroyed; then the destination is poisoned
  Nanos rpc_retry_first = millis(50);  // doubling
  Nanos rpc_retry_max = seconds(1);
  Nanos rpc_attempt = seconds(3);    // one request, beyond the time a Poll may be held
  Nanos server_silent = seconds(2);  // no answer for so long: the next server of the list is asked
  Nanos server_lost = seconds(15);   // none of the list answers for so long: calls end: ServerLost
  Nanos progress_poll =
      micros(200);  // first pause between looks at a source that has nothing new, doubling
  Nanos progress_poll_max = millis(20);
  uint64_t slice_bytes =
      4ull << 20;  // how the stream is cut: one READ, one checksum. The same on both sides
  uint64_t window_bytes = 64ull << 20;        // READs in flight at most
  uint64_t window_start_bytes = 16ull << 20;  // and before a link has shown that it holds more
  bool checksums = false;                     // end to end, per slice; publisher and reader need it
};

// What a process keeps for others in its host memory (offload.h).
struct OffloadOptions {
  uint64_t limit_bytes = UINT64_MAX;  // of all offloads together
  Nanos transfer = seconds(60);       // for one of them to be whole, on this side
};

}  // namespace weightlane::ros
