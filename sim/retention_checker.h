// RetentionChecker: what the checkers know of retained versions and of copies in host memory.
//
//   P5  whoever gives up a copy on purpose (the server says so before it hides it), or in a call
//       that fails with every member alive, leaves another copy that counts, or nobody retains the
//       version. What is retained comes from the plan, which replicas stand on spot machines too;
//       what is a copy comes from the server's list, whose entries P4 looks after.
//   P1  the memory of an offload carries, below `proven`, what it says.
//   P4  an offload shows when all its shards are whole.
//   P11 the gauge of every process is the sum of the memory of its offloads.
//
// Owned by Checkers, which forwards to it what it sees.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ros/directory.h"
#include "ros/observer.h"
#include "sim/plan.h"
#include "sim/world.h"

namespace weightlane::sim {

class Checkers;

class RetentionChecker {
 public:
  // All outlive it.
  RetentionChecker(Checkers& checkers, World& world, const Plan& plan);
  ~RetentionChecker();

  // For the offloads of one process.
  ros::HandleObserver* watch(HostId host);

  void server_started();
  void request_begins(const net::Request& request);
  void request_ends() { aborting_ = {}; }
  void withdrawing(std::string_view replica, net::Content content);
  void hidden(std::string_view replica, net::Content content);
  void visible(std::string_view replica, net::Content content);
  void dropped(net::Content content) { dropped_.push_back(content.id); }
  void rewound(Generation generation);
  void crashed(HostId host);

  // The generation that the present server is at, and how often there was another server.
  Generation generation() const;
  uint64_t offloads() const { return offloads_; }
  // Of the offloads of one process, as it last said; and whether some of it can never come back.
  uint64_t bytes(HostId host) const;
  bool poisoned(HostId host) const;

 private:
  class Watch;
  struct Shard {
    std::string replica;
    uint32_t shard = 0;
    HostId host;
    net::MemoryRange memory;
    Stamp stamp;
    net::Content content;
    uint64_t proven = 0;  // granules
    bool poisoned = false;
  };
  Shard* find(HostId host, ros::HandleName name);
  void memory_changed(HostId host, ros::HandleName name, net::MemoryRange memory, uint64_t all);
  void stamp_changed(HostId host, ros::HandleName name, Stamp stamp, net::Content content);
  void proven(HostId host, ros::HandleName name, net::Content content, uint64_t bytes);
  void call_ended(HostId host, ros::HandleName name, bool ok, ErrorCode code);
  bool retained(net::Content content) const;
  bool spot(std::string_view replica) const;
  bool other_copy(std::string_view replica, net::Content content) const;
  uint64_t granules(uint32_t shard) const;

  Checkers& checkers_;
  World& world_;
  const Plan& plan_;
  std::map<uint32_t, std::unique_ptr<Watch>> watches_;  // by host
  std::vector<Shard> shards_;
  std::map<uint32_t, uint64_t> gauges_;  // by host
  std::vector<ContentId> dropped_;
  Generation generation_{1};
  Incarnation aborting_;       // whose Abort is being applied
  std::string leaving_;        // the replica whose hiding was announced ...
  net::Content leaving_what_;  // ... and what it hides
  uint64_t offloads_ = 0;      // that became whole
};

}  // namespace weightlane::sim
