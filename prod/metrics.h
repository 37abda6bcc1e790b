// Metrics for Prometheus: observers of handles and of the server that count, and the registry.
//
// A process makes one Metrics, hands the observers down, and serves the registry with a
// MetricsPort. Thread-safe as prometheus-cpp is; observers are called on the loops' threads. Names:
//
//   weightlane_read_bytes_total{transport}          counter    sealed or not, as read
//   weightlane_calls_total{call,outcome}            counter    outcome: ok, or the error's name
//   weightlane_call_seconds{call}                   histogram  calls that ended well
//   weightlane_sources_connected_total{transport}   counter
//   weightlane_source_failures_total                counter    reads that went elsewhere
//   weightlane_seal_failures_total                  counter    reads thrown away
//   weightlane_fences_total                         counter    readers cut off at the drain's end
//   weightlane_server_lost_total                    counter
//   weightlane_offload_bytes                        gauge      kept for others; 0 when nothing is
//   weightlane_server_failovers_total{outcome}      counter    resumed, or refused: handed back
//   weightlane_registered_bytes                     gauge      of all handles; 0 when all is
//   returned weightlane_held_version{model,replica,shard}    gauge      gone when nothing is held
//
//   weightlane_server_requests_total{kind,repeated} counter
//   weightlane_server_assignments_total             counter
//   weightlane_server_decisions_total{call,outcome} counter
//   weightlane_server_evictions_total               counter
//   weightlane_server_visible_replicas              gauge
//   weightlane_server_offloads_total                counter    copies in host memory asked for
//   weightlane_server_retention_dropped_total       counter    retained versions let go
//   weightlane_server_rewinds_total                 counter
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "ros/observer.h"

namespace weightlane::prod {

class Metrics {
 public:
  Metrics();
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  ros::HandleObserver& handles();
  ros::ServerObserver& server();
  // All of it in Prometheus' text format.
  std::string text() const;

 private:
  class HandleMetrics;
  class ServerMetrics;
  struct Registry;
  std::unique_ptr<Registry> registry_;
  std::unique_ptr<HandleMetrics> handles_;
  std::unique_ptr<ServerMetrics> server_;
};

}  // namespace weightlane::prod
