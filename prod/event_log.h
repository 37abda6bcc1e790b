// Observers that write what happened to the log, one line per event, and pass everything on.
//
// Levels: a call or decision that ended is info (a failed one a warning); trouble is a warning;
// what happens for every transfer is debug.
#pragma once

#include "prod/log.h"
#include "ros/observer.h"

namespace weightlane::prod {

class HandleLog final : public ros::HandleObserver {
 public:
  // Both outlive it; `next` may be null.
  HandleLog(Log* log, ros::HandleObserver* next);

  void on_call_started(ros::HandleName name, CallNumber number, net::CallKind kind) override;
  void on_call_ended(ros::HandleName name, CallNumber number, net::CallKind kind, bool ok,
                     ErrorCode code, net::Content content, Nanos elapsed) override;
  void on_stamp(ros::HandleName name, Stamp stamp, net::Content content) override;
  void on_proven(ros::HandleName name, Stamp stamp, net::Content content, uint64_t proven) override;
  void on_source_connected(ros::HandleName name, AssignmentId assignment,
                           std::string_view transport) override;
  void on_bytes_read(ros::HandleName name, uint64_t bytes, std::string_view transport) override;
  void on_seal_failed(ros::HandleName name, AssignmentId assignment) override;
  void on_source_failed(ros::HandleName name, AssignmentId assignment,
                        std::string_view reason) override;
  void on_fenced(ros::HandleName name) override;
  void on_registered_bytes(ros::HandleName name, uint64_t bytes) override;
  void on_server_lost(ros::HandleName name) override;
  void on_offload(ros::HandleName name, net::MemoryRange memory, uint64_t all) override;
  void on_server_left(ros::HandleName name, std::string_view why) override;
  void on_opened(ros::HandleName name, std::string_view server, uint64_t lineage,
                 ros::Opening opening) override;

 private:
  Log* const log_;
  ros::HandleObserver* const next_;  // never null
  ros::HandleObserver nobody_;
};

class ServerLog final : public ros::ServerObserver {
 public:
  // Both outlive it; `next` may be null.
  ServerLog(Log* log, ros::ServerObserver* next);

  void on_applied(const ros::Directory& directory, Nanos now) override;
  void on_visible(std::string_view model, std::string_view replica, net::Content content) override;
  void on_hidden(std::string_view model, std::string_view replica, net::Content content) override;
  void on_assigned(std::string_view reader, std::string_view source, ShardIndex shard,
                   net::Content content) override;
  void on_decided(std::string_view model, std::string_view replica, CallNumber number,
                  net::CallKind kind, bool ok, ErrorCode code, net::Content content) override;
  void on_seed_begun(const ros::Group& group, net::Content content) override;
  void on_seed_skipped(const ros::Group& group, net::Content content) override;
  void on_evicted(std::string_view model, std::string_view replica, ShardIndex shard) override;
  void on_withdrawing(std::string_view model, std::string_view replica,
                      net::Content content) override;
  void on_offload_directed(std::string_view model, std::string_view offload,
                           net::Content content) override;
  void on_retention_dropped(std::string_view model, net::Content content,
                            std::string_view why) override;
  void on_rewound(std::string_view model, Generation generation) override;
  void on_request(const net::Request& request, bool repeated) override;
  void on_probe(const flow::ProbePoint& point) override;

 private:
  Log* const log_;
  ros::ServerObserver* const next_;  // never null
  ros::ServerObserver nobody_;
};

}  // namespace weightlane::prod
