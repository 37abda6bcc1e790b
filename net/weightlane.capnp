# The messages of net/messages.h on the wire, in the same order and with the same names; what they mean is said there.
# net/codec.cc converts. New fields go at the end of their struct with the next number: older readers skip them.

@0xaff96380123402cc;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("weightlane::net::wire");

# What a reference server answers on its port.
interface ReferenceServer {
  call @0 (request :Request) -> (response :Response);
}

struct Content {
  generation @0 :UInt64;
  version @1 :UInt64;
  id @2 :UInt64;
}

struct LayoutSummary {
  digestHigh @0 :UInt64;
  digestLow @1 :UInt64;
  tensors @2 :UInt64;
  bytes @3 :UInt64;
}

# Enumerations travel as numbers; the decoder refuses those it does not know.
struct VersionSpec {
  kind @0 :UInt8;
  exact @1 :UInt64;
  back @2 :UInt32;
}

struct RetainSpec {
  latest @0 :UInt32;
  versions @1 :List(UInt64);
}

struct Request {
  incarnation @0 :UInt64;
  session @1 :UInt64;
  sequence @2 :UInt64;
  body :union {
    open @3 :Open;
    groupCall @4 :GroupCall;
    poll @5 :Poll;
    release @6 :Release;
    abort @7 :Abort;
    close @8 :Void;
    list @9 :List;
    withdraw @10 :Withdraw;
    offloadFailed @11 :OffloadFailed;
    rewind @12 :Rewind;
    wait @13 :Wait;
    ping @14 :Void;
  }

  struct Open {
    model @0 :Text;
    replica @1 :Text;
    shard @2 :UInt32;
    numShards @3 :UInt32;
    node @4 :Text;
    endpoint @5 :Text;
    spot @6 :Bool;
    retain @7 :RetainSpec;
    onOffloadFailure @8 :UInt8;
    offload @9 :UInt64;
    datacenter @10 :Text;
    handle @11 :UInt64;
    opening @12 :UInt64;
    announced @13 :Announcement;
  }
  struct GroupCall {
    number @0 :UInt64;
    kind @1 :UInt8;
    version @2 :VersionSpec;
    timeoutNanos @3 :Int64;
    layout @4 :LayoutSummary;
  }
  struct Poll {
    acknowledged @0 :UInt64;
    sealedBytes @1 :UInt64;
    holdNanos @2 :Int64;
    homesick @3 :Bool;
  }
  struct Release {
    assignment @0 :UInt64;
    kind @1 :UInt8;
    sealedBytes @2 :UInt64;
    reason @3 :Text;
  }
  struct Abort {
    number @0 :UInt64;
    code @1 :UInt8;
    reason @2 :Text;
  }
  struct List {
    model @0 :Text;
  }
  struct Withdraw {
    number @0 :UInt64;
  }
  struct OffloadFailed {
    token @0 :UInt64;
    reason @1 :Text;
  }
  struct Rewind {
    model @0 :Text;
    expected @1 :UInt64;
    ticket @2 :UInt64;
  }
  struct Wait {
    model @0 :Text;
    version @1 :VersionSpec;
    holdNanos @2 :Int64;
  }
}

struct DoneCall {
  number @0 :UInt64;
  kind @1 :UInt8;
  version @2 :VersionSpec;
  ok @3 :Bool;
  content @4 :Content;
  code @5 :UInt8;
  message @6 :Text;
  kept @7 :Bool;
}

struct Holding {
  number @0 :UInt64;
  content @1 :Content;
  layout @2 :LayoutSummary;
  receiving @3 :Bool;
  whole @4 :Bool;
  sealedBytes @5 :UInt64;
  reading @6 :UInt64;
  upstream @7 :Text;
}

struct Announcement {
  resumed @0 :Bool;
  lastCall @1 :UInt64;
  done @2 :List(DoneCall);
  held @3 :Holding;
  begun @4 :Bool;
  pending @5 :Request.GroupCall;
  lineage @6 :UInt64;
}

struct SourceDescription {
  replica @0 :Text;
  incarnation @1 :UInt64;
  endpoint @2 :Text;
  node @3 :Text;
  complete @4 :Bool;
}

struct Event {
  number @0 :UInt64;
  body :union {
    assigned @1 :Assigned;
    drained @2 :Drained;
    decided @3 :Decided;
    yield @4 :Yield;
    abandon @5 :Abandon;
    offload @6 :Offload;
    drop @7 :Drop;
    withdrawn @8 :Withdrawn;
    move @9 :Void;
  }

  struct Assigned {
    number @0 :UInt64;
    assignment @1 :UInt64;
    content @2 :Content;
    source @3 :SourceDescription;
  }
  struct Drained {
    number @0 :UInt64;
  }
  struct Decided {
    number @0 :UInt64;
    ok @1 :Bool;
    content @2 :Content;
    code @3 :UInt8;
    message @4 :Text;
    kept @5 :Bool;
    rewound @6 :Bool;
  }
  struct Yield {
    assignment @0 :UInt64;
  }
  struct Abandon {
    assignment @0 :UInt64;
    reason @1 :Text;
  }
  struct Offload {
    token @0 :UInt64;
    replica @1 :Text;
    content @2 :Content;
  }
  struct Drop {
    reason @0 :Text;
  }
  struct Withdrawn {
    number @0 :UInt64;
    ok @1 :Bool;
    message @2 :Text;
  }
}

struct Response {
  server @0 :UInt64;
  body :union {
    failure @1 :Failure;
    opened @2 :Opened;
    accepted @3 :Void;
    events @4 :List(Event);
    list @5 :Listed;
    rewound @6 :UInt64;
    waited @7 :Waited;
  }

  struct Failure {
    kind @0 :UInt8;
    code @1 :UInt8;
    message @2 :Text;
    heardAgoNanos @3 :Int64;
    holder @4 :UInt64;
  }
  struct Opened {
    nextCall @0 :UInt64;
    heartbeatNanos @1 :Int64;
    leaseNanos @2 :Int64;
    drainNanos @3 :Int64;
    refused @4 :Bool;
    lineage @5 :UInt64;
  }
  struct Listed {
    replicas @0 :List(ListedReplica);
    openShards @1 :UInt64;
    models @2 :List(ListedModel);
  }
  struct Waited {
    there @0 :Bool;
    content @1 :Content;
    generation @2 :UInt64;
  }
}

struct ListedModel {
  model @0 :Text;
  generation @1 :UInt64;
}

struct ListedReplica {
  model @0 :Text;
  replica @1 :Text;
  content @2 :Content;
  state @3 :UInt8;
  numShards @4 :UInt32;
  bytes @5 :UInt64;
  sealedBytes @6 :UInt64;
  source @7 :Text;
  offload @8 :Bool;
  spot @9 :Bool;
  retained @10 :Bool;
  datacenter @11 :Text;
}

struct HelloMessage {
  source @0 :UInt64;
  assignment @1 :UInt64;
  content @2 :Content;
  layout @3 :LayoutSummary;
  reader @4 :Text;
}

struct RemoteRegion {
  key @0 :UInt64;
  base @1 :UInt64;
  length @2 :UInt64;
}

struct TensorPlace {
  region @0 :UInt32;
  offset @1 :UInt64;
}

struct WelcomeMessage {
  stamp @0 :UInt64;
  control @1 :RemoteRegion;
  digests @2 :RemoteRegion;
  sliceBytes @3 :UInt64;
  regions @4 :List(RemoteRegion);
  tensors @5 :List(TensorPlace);
}
