// The names of fields are the same everywhere, so that one search finds a version's whole story.
#include "prod/event_log.h"

#include "ros/directory.h"

namespace weightlane::prod {
namespace {

LogLevel level_of(bool ok) { return ok ? LogLevel::kInfo : LogLevel::kWarning; }
const char* outcome_of(bool ok, ErrorCode code) { return ok ? "ok" : error_code_name(code); }

}  // namespace

HandleLog::HandleLog(Log* log, ros::HandleObserver* next)
    : log_(log), next_(next != nullptr ? next : &nobody_) {}

void HandleLog::on_call_started(ros::HandleName name, CallNumber number, net::CallKind kind) {
  log_->debug("handle.call_started", {{"model", name.model},
                                      {"replica", name.replica},
                                      {"shard", name.shard.value},
                                      {"call", net::call_kind_name(kind)},
                                      {"number", number.value}});
  next_->on_call_started(name, number, kind);
}

void HandleLog::on_call_ended(ros::HandleName name, CallNumber number, net::CallKind kind, bool ok,
                              ErrorCode code, net::Content content, Nanos elapsed) {
  // An update that finds nothing newer is the normal case of a poller.
  const bool nothing = ok && kind == net::CallKind::kUpdate && content.id.value == 0;
  log_->write(nothing ? LogLevel::kDebug : level_of(ok), "handle.call_ended",
              {{"model", name.model},
               {"replica", name.replica},
               {"shard", name.shard.value},
               {"call", net::call_kind_name(kind)},
               {"number", number.value},
               {"outcome", outcome_of(ok, code)},
               {"version", content.version.value},
               {"seconds", to_seconds(elapsed)}});
  next_->on_call_ended(name, number, kind, ok, code, content, elapsed);
}

void HandleLog::on_stamp(ros::HandleName name, Stamp stamp, net::Content content) {
  log_->debug("handle.stamp", {{"model", name.model},
                               {"replica", name.replica},
                               {"shard", name.shard.value},
                               {"valid", stamp.value != 0},
                               {"version", content.version.value}});
  next_->on_stamp(name, stamp, content);
}

void HandleLog::on_proven(ros::HandleName name, Stamp stamp, net::Content content,
                          uint64_t proven) {
  next_->on_proven(name, stamp, content, proven);
}

void HandleLog::on_source_connected(ros::HandleName name, AssignmentId assignment,
                                    std::string_view transport) {
  log_->debug("handle.source_connected", {{"model", name.model},
                                          {"replica", name.replica},
                                          {"shard", name.shard.value},
                                          {"assignment", assignment.value},
                                          {"transport", transport}});
  next_->on_source_connected(name, assignment, transport);
}

void HandleLog::on_bytes_read(ros::HandleName name, uint64_t bytes, std::string_view transport) {
  next_->on_bytes_read(name, bytes, transport);
}

void HandleLog::on_seal_failed(ros::HandleName name, AssignmentId assignment) {
  log_->warning("handle.seal_failed", {{"model", name.model},
                                       {"replica", name.replica},
                                       {"shard", name.shard.value},
                                       {"assignment", assignment.value}});
  next_->on_seal_failed(name, assignment);
}

void HandleLog::on_source_failed(ros::HandleName name, AssignmentId assignment,
                                 std::string_view reason) {
  log_->warning("handle.source_failed", {{"model", name.model},
                                         {"replica", name.replica},
                                         {"shard", name.shard.value},
                                         {"assignment", assignment.value},
                                         {"reason", reason}});
  next_->on_source_failed(name, assignment, reason);
}

void HandleLog::on_fenced(ros::HandleName name) {
  log_->warning("handle.fenced",
                {{"model", name.model}, {"replica", name.replica}, {"shard", name.shard.value}});
  next_->on_fenced(name);
}

void HandleLog::on_registered_bytes(ros::HandleName name, uint64_t bytes) {
  log_->debug("handle.registered", {{"model", name.model},
                                    {"replica", name.replica},
                                    {"shard", name.shard.value},
                                    {"bytes", bytes}});
  next_->on_registered_bytes(name, bytes);
}

void HandleLog::on_server_lost(ros::HandleName name) {
  log_->warning("handle.server_lost",
                {{"model", name.model}, {"replica", name.replica}, {"shard", name.shard.value}});
  next_->on_server_lost(name);
}

void HandleLog::on_offload(ros::HandleName name, net::MemoryRange memory, uint64_t all) {
  log_->info(memory.length > 0 ? "offload.kept" : "offload.returned", {{"model", name.model},
                                                                       {"replica", name.replica},
                                                                       {"shard", name.shard.value},
                                                                       {"bytes", memory.length},
                                                                       {"all_bytes", all}});
  next_->on_offload(name, memory, all);
}

void HandleLog::on_server_left(ros::HandleName name, std::string_view why) {
  log_->warning("handle.server_left", {{"model", name.model},
                                       {"replica", name.replica},
                                       {"shard", name.shard.value},
                                       {"why", why}});
  next_->on_server_left(name, why);
}

void HandleLog::on_opened(ros::HandleName name, std::string_view server, uint64_t lineage,
                          ros::Opening opening) {
  const char* how = opening == ros::Opening::kFirst   ? "first"
                    : opening == ros::Opening::kAgain ? "announced"
                                                      : "refused";
  log_->info("handle.opened", {{"model", name.model},
                               {"replica", name.replica},
                               {"shard", name.shard.value},
                               {"server", server},
                               {"how", how}});
  next_->on_opened(name, server, lineage, opening);
}

ServerLog::ServerLog(Log* log, ros::ServerObserver* next)
    : log_(log), next_(next != nullptr ? next : &nobody_) {}

void ServerLog::on_applied(const ros::Directory& directory, Nanos now) {
  next_->on_applied(directory, now);
}

void ServerLog::on_visible(std::string_view model, std::string_view replica, net::Content content) {
  log_->info("server.visible", {{"model", model},
                                {"replica", replica},
                                {"version", content.version.value},
                                {"content", content.id.value}});
  next_->on_visible(model, replica, content);
}

void ServerLog::on_hidden(std::string_view model, std::string_view replica, net::Content content) {
  log_->info("server.hidden",
             {{"model", model}, {"replica", replica}, {"version", content.version.value}});
  next_->on_hidden(model, replica, content);
}

void ServerLog::on_assigned(std::string_view reader, std::string_view source, ShardIndex shard,
                            net::Content content) {
  log_->debug("server.assigned", {{"reader", reader},
                                  {"source", source},
                                  {"shard", shard.value},
                                  {"version", content.version.value}});
  next_->on_assigned(reader, source, shard, content);
}

void ServerLog::on_decided(std::string_view model, std::string_view replica, CallNumber number,
                           net::CallKind kind, bool ok, ErrorCode code, net::Content content) {
  const bool nothing = ok && kind == net::CallKind::kUpdate && content.id.value == 0;
  log_->write(nothing ? LogLevel::kDebug : level_of(ok), "server.decided",
              {{"model", model},
               {"replica", replica},
               {"call", net::call_kind_name(kind)},
               {"number", number.value},
               {"outcome", outcome_of(ok, code)},
               {"version", content.version.value}});
  next_->on_decided(model, replica, number, kind, ok, code, content);
}

void ServerLog::on_evicted(std::string_view model, std::string_view replica, ShardIndex shard) {
  log_->warning("server.evicted", {{"model", model}, {"replica", replica}, {"shard", shard.value}});
  next_->on_evicted(model, replica, shard);
}

void ServerLog::on_withdrawing(std::string_view model, std::string_view replica,
                               net::Content content) {
  next_->on_withdrawing(model, replica, content);
}

void ServerLog::on_offload_directed(std::string_view model, std::string_view offload,
                                    net::Content content) {
  log_->info("server.offload",
             {{"model", model}, {"replica", offload}, {"version", content.version.value}});
  next_->on_offload_directed(model, offload, content);
}

void ServerLog::on_retention_dropped(std::string_view model, net::Content content,
                                     std::string_view why) {
  log_->warning("server.retention_dropped",
                {{"model", model}, {"version", content.version.value}, {"reason", why}});
  next_->on_retention_dropped(model, content, why);
}

void ServerLog::on_rewound(std::string_view model, Generation generation) {
  log_->info("server.rewound", {{"model", model}, {"generation", generation.value}});
  next_->on_rewound(model, generation);
}

void ServerLog::on_seed_begun(const ros::Group& group, net::Content content) {
  log_->info("server.seed", {{"model", group.model},
                             {"replica", group.replica},
                             {"datacenter", group.datacenter},
                             {"version", content.version.value}});
  next_->on_seed_begun(group, content);
}

void ServerLog::on_seed_skipped(const ros::Group& group, net::Content content) {
  log_->debug("server.seed_skipped", {{"model", group.model},
                                      {"replica", group.replica},
                                      {"datacenter", group.datacenter},
                                      {"version", content.version.value}});
  next_->on_seed_skipped(group, content);
}

void ServerLog::on_request(const net::Request& request, bool repeated) {
  next_->on_request(request, repeated);
}

void ServerLog::on_probe(const flow::ProbePoint& point) { next_->on_probe(point); }

}  // namespace weightlane::prod
