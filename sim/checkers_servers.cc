// What the checkers see of the reference servers: P4, P7, P9, P10. Each server has an observer of
// its own; a server knows only what it was told, so what is demanded of one is demanded of what it
// could know.
#include <algorithm>
#include <memory>

#include "sim/checkers.h"
#include "sim/hash.h"

namespace weightlane::sim {

// One server's observer knows which.
class Checkers::ServerWatch final : public ros::ServerObserver {
 public:
  ServerWatch(Checkers& checkers, uint32_t server) : checkers_(checkers), index_(server) {}
  void on_applied(const ros::Directory& directory, Nanos) override {
    checkers_.server_applied(directory);
  }
  void on_visible(std::string_view, std::string_view replica, net::Content content) override {
    tell("visible", replica, content);
    checkers_.server_visible(server(), replica, content);
  }
  void on_hidden(std::string_view, std::string_view replica, net::Content content) override {
    tell("hidden", replica, content);
    checkers_.retention_.hidden(replica, content);
  }
  void on_assigned(std::string_view reader, std::string_view source, ShardIndex shard,
                   net::Content content) override {
    if (checkers_.story_ != nullptr) {
      checkers_.server_story(server(), "assigned",
                             std::string(reader) + "/" + std::to_string(shard.value) + " reads " +
                                 describe(content) + " from " + std::string(source));
    }
    checkers_.server_assigned(reader, source, shard, content);
  }
  void on_decided(std::string_view, std::string_view replica, CallNumber number, net::CallKind kind,
                  bool ok, ErrorCode code, net::Content content) override {
    if (checkers_.story_ != nullptr) {
      checkers_.server_story(server(), "decided",
                             std::string(replica) + " call " + std::to_string(number.value) + " " +
                                 call_kind_name(kind) + " " +
                                 (ok ? describe(content) : error_code_name(code)));
    }
    checkers_.server_decided(server(), replica, number, ok, code);
    // What a server was told by another one is not its own choice (P8).
    if (checkers_.one_server() && server().directory != nullptr)
      checkers_.judge_wide(checkers_.wide_.on_decided(*server().directory, checkers_.world_.now(),
                                                      replica, number, kind, ok, content));
  }
  void on_evicted(std::string_view, std::string_view replica, ShardIndex shard) override {
    if (checkers_.story_ == nullptr) return;
    checkers_.server_story(server(), "evicted",
                           std::string(replica) + "/" + std::to_string(shard.value));
  }
  void on_request(const net::Request& request, bool repeated) override {
    checkers_.server_request(server(), request, repeated);
  }
  void on_withdrawing(std::string_view, std::string_view replica, net::Content content) override {
    tell("withdraws", replica, content);
    checkers_.retention_.withdrawing(replica, content);
  }
  void on_offload_directed(std::string_view, std::string_view replica,
                           net::Content content) override {
    tell("offload", replica, content);
  }
  void on_retention_dropped(std::string_view, net::Content content, std::string_view why) override {
    tell("let go", why, content);
    checkers_.retention_.dropped(content);
  }
  void on_rewound(std::string_view, Generation generation) override {
    if (checkers_.story_ != nullptr)
      checkers_.server_story(server(), "rewound", "generation " + std::to_string(generation.value));
    checkers_.retention_.rewound(generation);
    checkers_.wide_.on_rewound();
  }

 private:
  const Server& server() const { return checkers_.servers_[index_]; }
  void tell(const char* what, std::string_view replica, net::Content content) {
    if (checkers_.story_ == nullptr) return;
    checkers_.server_story(server(), what, std::string(replica) + " " + describe(content));
  }
  Checkers& checkers_;
  uint32_t index_;
};

void Checkers::add_server(HostId host, std::string address) {
  server_hosts_ |= host_bit(host);
  Server& server = servers_.emplace_back();
  server.address = std::move(address);
  server.watch = std::make_shared<ServerWatch>(*this, static_cast<uint32_t>(servers_.size() - 1));
}

ros::ServerObserver* Checkers::watch_server(uint32_t server) {
  return servers_[server].watch.get();
}

void Checkers::server_started(uint32_t server, const ros::Directory* directory) {
  servers_[server].directory = directory;
  servers_[server].started = world_.now();
  ++server_starts_;
  retention_.server_started();
  wide_.server_started();
}

const ros::Directory* Checkers::directory() const {
  for (const Server& server : servers_)
    if (server.directory != nullptr) return server.directory;
  return nullptr;
}

std::string Checkers::remembered() const {
  for (const Server& server : servers_) {
    if (server.directory == nullptr) continue;
    const ros::Directory& directory = *server.directory;
    if (directory.clients() == 0 && directory.contents() == 0 && directory.assignments() == 0 &&
        directory.groups().empty() && directory.all_offloads().empty() &&
        directory.rewound_models() == 0) {
      continue;
    }
    return server.address + ": " + std::to_string(directory.clients()) + " clients, " +
           std::to_string(directory.groups().size()) + " groups, " +
           std::to_string(directory.contents()) + " contents, " +
           std::to_string(directory.assignments()) + " assignments";
  }
  return directory() == nullptr ? "no server is left" : std::string();
}

// ---------------------------------------------------------------- the server's side: P4, P7, P10

void Checkers::server_visible(const Server& server, std::string_view name, net::Content content) {
  retention_.visible(name, content);
  wide_.on_visible(name);
  Replica* replica = replica_named(name);
  if (replica == nullptr) return;
  const bool one_server = server_starts_ == 1;
  for (const WorkerId worker : replica->shards) {
    View& view = views_[worker.value];
    // Of a shard that has gone elsewhere a server may believe what it likes, for one lease: nobody
    // is let in there.
    if (view.server != server.address) continue;
    if (view.publishing != content.version) {
      const bool had =
          std::find(view.had.begin(), view.had.end(), content.id.value) != view.had.end();
      if (view.sealed == content || (had && !one_server)) continue;
      violate("P4",
              view.name + ": " + describe(content) +
                  " became visible, but this shard has neither published nor sealed it; it has " +
                  describe(view.sealed));
      return;
    }
    bind(view, content);
    note_sealed(view, content);
  }
}

// The bytes that this shard publishes are this content. Published again as it was received:
// whatever those bytes were, they are this content too.
void Checkers::bind(const View& view, net::Content content) {
  const auto add = [content](Publication& publication) {
    std::vector<uint64_t>& contents = publication.contents;
    const bool known =
        std::find(contents.begin(), contents.end(), content.id.value) != contents.end();
    if (!known) contents.push_back(content.id.value);
  };
  if (view.publication.value != 0) {
    add(publications_[view.publication.value]);
    return;
  }
  for (Publication& publication : publications_) {
    const std::vector<uint64_t>& contents = publication.contents;
    if (std::find(contents.begin(), contents.end(), view.sealed.id.value) != contents.end()) {
      add(publication);
    }
  }
}

void Checkers::server_story(const Server& server, const char* what, const std::string& detail) {
  const std::string name = server.address.substr(0, server.address.find(':'));
  story_->line(world_.now(), servers_.size() == 1 ? "server" : "server " + name, what, detail);
}

void Checkers::server_assigned(std::string_view reader, std::string_view source, ShardIndex,
                               net::Content) {
  assigned_ = true;
  if (reader == source) violate("P7", std::string(reader) + " was told to read from itself");
}

// P9: who has not spoken to this server yet may be the one that holds it. What a shard was told by
// another server is only passed on.
void Checkers::server_decided(const Server& server, std::string_view name, CallNumber number,
                              bool ok, ErrorCode code) {
  if (ok || code != ErrorCode::kVersionUnavailable) return;
  if (world_.now() - server.started >= plan_.server.lease * 99 / 100) {
    unavailable_.push_back({std::string(name), number});
    return;
  }
  const Unavailable told{std::string(name), number};
  if (std::find(unavailable_.begin(), unavailable_.end(), told) != unavailable_.end()) return;
  violate("P9", std::string(name) + ": call " + std::to_string(number.value) +
                    " ended with VersionUnavailable " +
                    seconds_text(world_.now() - server.started) + " after this server started");
}

void Checkers::server_request(const Server& server, const net::Request& request, bool repeated) {
  check_session(request.header);
  retention_.request_begins(request);
  if (one_server() && server.directory != nullptr) wide_.on_request(*server.directory, request);
  repeated_ = repeated && !std::holds_alternative<net::PollRequest>(request.body) &&
              server.directory != nullptr;
  if (repeated_) digest_before_ = directory_digest(*server.directory);
}

void Checkers::check_session(const net::RequestHeader& header) {
  for (Session& session : sessions_) {
    if (session.incarnation != header.incarnation) continue;
    if (header.session < session.newest) {
      violate("P10", "session " + std::to_string(header.session) +
                         " of a client was served after its session " +
                         std::to_string(session.newest));
    }
    session.newest = std::max(session.newest, header.session);
    return;
  }
  sessions_.push_back({header.incarnation, header.session});
}

bool Checkers::closes_at_leisure(std::string_view name, uint32_t shard) {
  const Replica* replica = replica_named(name);
  if (replica == nullptr) return false;
  const View& view = views_[replica->shards[shard].value];
  return view.call != nullptr && std::string_view(view.call) == "close" && !view.noticed;
}

void Checkers::latest_received(WorkerId worker, Generation generation, uint64_t epoch) {
  const View& view = views_[worker.value];
  // A server that has let everybody go has forgotten the generation too; nobody tells it yet.
  if (generation > retention_.generation()) return;
  if (epoch != server_starts_ || !one_server() || view.content.generation >= generation) return;
  violate("P3", view.name + ": asked for the latest when the model was at generation " +
                    std::to_string(generation.value) + ", it got " + describe(view.content) +
                    " of generation " + std::to_string(view.content.generation.value));
}

void Checkers::server_applied(const ros::Directory& directory) {
  retention_.request_ends();
  if (repeated_) {
    repeated_ = false;
    if (directory_digest(directory) != digest_before_) {
      violate("P10", "a request that came twice changed the directory twice");
    }
  }
  if (directory.rewound_models() == 0 && one_server()) retention_.rewound(Generation{1});
  if (one_server()) judge_wide(wide_.on_applied(directory, world_.now()));
  if (!assigned_) return;
  assigned_ = false;
  check_feeding(directory);
}

void Checkers::check_feeding(const ros::Directory& directory) {
  if (!directory.options().pipelining) return;
  struct Edge {
    const ros::Publication* reader;
    const ros::Publication* source;
  };
  std::vector<Edge> edges;
  for (const auto& [id, assignment] : directory.all_assignments()) {
    bool known = false;
    for (const Edge& edge : edges) {
      if (edge.source != assignment.source) continue;
      known = known || edge.reader == assignment.reader;
      // A copy within the processes takes nothing of what others have.
      const auto within = [&assignment](const ros::Publication* reader) {
        return reader->group->offload != 0 && reader->group->beside == assignment.source->group->id;
      };
      if (within(edge.reader) || within(assignment.reader)) continue;
      if (edge.reader == assignment.reader) continue;
      violate("P7", "replica " + assignment.source->group->replica + " feeds " +
                        edge.reader->group->replica + " and " + assignment.reader->group->replica +
                        " at once");
      return;
    }
    if (!known) edges.push_back({assignment.reader, assignment.source});
  }
  // Take away what ends at a source that reads from nobody; what stays is a cycle.
  bool shrinks = true;
  while (shrinks && !edges.empty()) {
    const auto ends = [&edges](const Edge& edge) {
      return std::none_of(edges.begin(), edges.end(),
                          [&](const Edge& other) { return other.reader == edge.source; });
    };
    const auto at = std::find_if(edges.begin(), edges.end(), ends);
    shrinks = at != edges.end();
    if (shrinks) edges.erase(at);
  }
  if (edges.empty()) return;
  std::string text = "partial replicas feed each other:";
  for (const Edge& edge : edges)
    text += " " + edge.reader->group->replica + " from " + edge.source->group->replica + ";";
  violate("P7", text);
}

uint64_t Checkers::directory_digest(const ros::Directory& directory) const {
  RollingHash hash;
  hash.add(directory.clients());
  hash.add(directory.contents());
  for (const auto& [name, group] : directory.groups()) {
    hash.add(group.id);
    hash.add(group.poisoned_upto);
    for (const ros::Client* member : group.members) {
      hash.add(member == nullptr ? 0 : member->last_call.value * 2 + member->last_answered);
      hash.add(member == nullptr ? 0 : member->next_event);
    }
    for (const auto& [number, call] : group.calls) {
      hash.add(number);
      hash.add(call.made * 2u + call.decided);
    }
    for (const auto& [number, publication] : group.publications) {
      hash.add(number);
      hash.add(publication->complete * 2u + publication->hidden);
      for (const ros::ShardHolding& shard : publication->shards) {
        hash.add(shard.reading.value);
        hash.add(shard.present * 4u + shard.complete * 2u + shard.drained);
      }
    }
  }
  return hash.value();
}

}  // namespace weightlane::sim
