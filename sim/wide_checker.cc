// The rules of P8, one function for each moment at which one can be broken. What the server
// believes is only used to say what is there; who stands where is asked of the plan.
#include "sim/wide_checker.h"

#include <algorithm>
#include <tuple>

#include "flow/assert.h"

namespace weightlane::sim {
namespace {

bool is_newer(const net::Content& content, const net::Content& than) {
  return std::tie(content.generation, content.version) > std::tie(than.generation, than.version);
}

std::string name_of(const net::Content& content) {
  return "version " + std::to_string(content.version.value);
}

bool is_open(const ros::Group& group) {
  return std::none_of(group.members.begin(), group.members.end(),
                      [](const ros::Client* member) { return member == nullptr; });
}

bool receives(const ros::Publication& publication) {
  return publication.receiving && !publication.complete && !publication.hidden;
}

}  // namespace

void WideChecker::add_replica(std::string name, std::string datacenter, bool spot) {
  Place& fresh = places_.emplace_back();
  fresh.replica = std::move(name);
  fresh.datacenter = std::move(datacenter);
  fresh.spot = spot;
}

void WideChecker::server_started() {
  last_assignment_ = 0;
  streaks_.clear();
  touched_.clear();
  rewound_ = false;
  for (Place& place : places_) place.held = {};
}

const WideChecker::Place& WideChecker::place(const ros::Group& group) const {
  for (const Place& known : places_) {
    if (known.replica == group.replica.substr(0, group.replica.find('~'))) return known;
  }
  WL_ASSERT(!"a replica that the workload made");
  return places_.front();
}

WideChecker::Place* WideChecker::place_named(std::string_view replica) {
  for (Place& known : places_) {
    if (known.replica == replica) return &known;
  }
  return nullptr;
}

WideChecker::Streak* WideChecker::streak(const std::string& datacenter) {
  for (Streak& known : streaks_) {
    if (known.datacenter == datacenter) return &known;
  }
  return nullptr;
}

WideChecker::Streak& WideChecker::refused(const std::string& datacenter, Nanos now) {
  if (Streak* known = streak(datacenter)) return *known;
  Streak& fresh = streaks_.emplace_back();
  fresh.datacenter = datacenter;
  fresh.since = now;
  return fresh;
}

void WideChecker::end_streak(const std::string& datacenter) {
  std::erase_if(streaks_, [&](const Streak& known) { return known.datacenter == datacenter; });
}

bool WideChecker::touched(ContentId content, const std::string& datacenter) const {
  return std::any_of(touched_.begin(), touched_.end(), [&](const Touched& known) {
    return known.content == content && known.datacenter == datacenter;
  });
}

bool WideChecker::whole_here(const ros::Directory& directory, ContentId content,
                             const std::string& datacenter) const {
  for (const auto& [name, group] : directory.groups()) {
    if (place(group).datacenter != datacenter) continue;
    for (const auto& [number, publication] : group.publications) {
      if (publication->serves_whole() && publication->content->content.id == content) return true;
    }
  }
  return false;
}

// Of one datacenter, or (null) of all.
net::Content WideChecker::newest_whole(const ros::Directory& directory,
                                       const std::string* datacenter) const {
  net::Content newest;
  for (const auto& [name, group] : directory.groups()) {
    if (datacenter != nullptr && place(group).datacenter != *datacenter) continue;
    for (const auto& [number, publication] : group.publications) {
      if (publication->serves_whole() && is_newer(publication->content->content, newest))
        newest = publication->content->content;
    }
  }
  return newest;
}

// Two contents of one number are whole: the older one counts for nothing.
bool WideChecker::renumbered(const ros::Directory& directory, const net::Content& content) const {
  for (const auto& [name, group] : directory.groups()) {
    for (const auto& [number, publication] : group.publications) {
      const net::Content& other = publication->content->content;
      if (other.version == content.version && other.id != content.id) return true;
    }
  }
  return false;
}

void WideChecker::on_request(const ros::Directory& directory, const net::Request& request) {
  if (!on_) return;
  const auto* release = std::get_if<net::ReleaseRequest>(&request.body);
  if (release == nullptr || release->kind == net::ReleaseKind::kComplete ||
      release->kind == net::ReleaseKind::kNeverOpened)
    return;
  const auto found = directory.all_assignments().find(release->assignment.value);
  if (found == directory.all_assignments().end()) return;
  const ros::Publication& reader = *found->second.reader;
  touched_.push_back({reader.content->content.id, place(*reader.group).datacenter});
}

void WideChecker::on_visible(std::string_view replica) {
  if (const Place* known = place_named(replica); known != nullptr && on_)
    end_streak(known->datacenter);
}

std::string WideChecker::on_applied(const ros::Directory& directory, Nanos now) {
  if (!on_) return {};
  const auto& assignments = directory.all_assignments();
  std::string wrong;
  for (auto at = assignments.upper_bound(last_assignment_); at != assignments.end(); ++at) {
    last_assignment_ = at->first;
    if (wrong.empty() && !at->second.reader->hidden)
      wrong = check_entry(directory, at->second, now);
  }
  for (Place& place : places_) place.held = {};
  for (const auto& [name, group] : directory.groups()) {
    for (const auto& [number, publication] : group.publications) {
      Place* own = place_named(group.replica);
      if (own != nullptr && publication->serves_whole()) own->held = publication->content->content;
    }
  }
  return wrong;
}

std::string WideChecker::check_entry(const ros::Directory& directory,
                                     const ros::Assignment& assignment, Nanos now) {
  const ros::Publication& reader = *assignment.reader;
  const std::string& here = place(*reader.group).datacenter;
  const net::Content content = reader.content->content;
  const bool crosses = place(*assignment.source->group).datacenter != here;
  std::string wrong = check_choice(directory, assignment, crosses, now);
  if (!crosses || !wrong.empty()) return wrong;
  end_streak(here);
  if (touched(content.id, here)) return {};
  const std::string what =
      name_of(content) + " is read into datacenter " + here + " by " + reader.group->replica + ", ";
  if (whole_here(directory, content.id, here)) return what + "where a whole copy is";
  for (const auto& [id, other] : directory.all_assignments()) {
    const bool same = other.reader == &reader || other.reader->hidden ||
                      other.reader->content->content.id != content.id ||
                      place(*other.reader->group).datacenter != here ||
                      place(*other.source->group).datacenter == here;
    if (!same) return what + "and by " + other.reader->group->replica + " as well";
  }
  return {};
}

// Of the first assignment of an update.
std::string WideChecker::check_choice(const ros::Directory& directory,
                                      const ros::Assignment& assignment, bool crosses, Nanos now) {
  const ros::Group& group = *assignment.reader->group;
  if (place_named(group.replica) == nullptr) return {};  // an offload, told what to take
  Place& reader = *place_named(group.replica);
  // Announced and decided in one step: what it held before was never seen (P9).
  if (group.adopted) return {};
  const CallNumber number = assignment.reader->number;
  const auto call = group.calls.find(number.value);
  if (call == group.calls.end() || call->second.kind != net::CallKind::kUpdate) return {};
  const bool judged = reader.judged_group == group.id && reader.judged == number;
  reader.judged_group = group.id;
  reader.judged = number;
  if (judged || rewound_ || touched(assignment.reader->content->content.id, reader.datacenter))
    return {};
  const net::Content taken = assignment.reader->content->content;
  const net::Content near = newest_whole(directory, &reader.datacenter);
  if (call->second.version == net::VersionSpec{}) {
    if (is_newer(near, crosses ? reader.held : taken) && !renumbered(directory, near))
      return reader.replica + " takes " + name_of(taken) + (crosses ? " from far away" : "") +
             ", but " + name_of(near) + " is whole in its datacenter";
  }
  // What it held is gone now.
  if (!crosses || !is_newer(reader.held, near)) return {};
  for (const auto& [name, other] : directory.groups()) {
    const bool there = &other != &group && other.offload == 0 && is_open(other) &&
                       place(other).datacenter == reader.datacenter;
    if (!there) continue;
    const Streak* waited = streak(reader.datacenter);
    if (waited != nullptr && now - waited->since >= patience_ * 98 / 100) return {};
    return reader.replica + " drops " + name_of(reader.held) +
           ", the newest in its datacenter, to fetch " + name_of(taken) + ", though " +
           other.replica + " is there and has not got it";
  }
  return {};
}

std::string WideChecker::on_decided(const ros::Directory& directory, Nanos now,
                                    std::string_view replica, CallNumber number, net::CallKind kind,
                                    bool ok, net::Content content) {
  if (!on_ || !ok || content.id.value != 0) return {};
  if (kind == net::CallKind::kReplicate)
    return std::string(replica) + ": replicate has skipped its version";
  if (kind != net::CallKind::kUpdate || rewound_) return {};
  for (const auto& [name, group] : directory.groups()) {
    if (group.replica != replica) continue;
    const auto call = group.calls.find(number.value);
    if (call == group.calls.end() || !(call->second.version == net::VersionSpec{})) return {};
    return check_refusal(directory, now, group);
  }
  return {};
}

std::string WideChecker::check_refusal(const ros::Directory& directory, Nanos now,
                                       const ros::Group& group) {
  const Place& asker = place(group);
  const net::Content newest = newest_whole(directory, nullptr);
  net::Content held;
  for (const auto& [number, publication] : group.publications) {
    if (!publication->hidden) held = publication->content->content;
  }
  if (!is_newer(newest, held)) return {};
  const std::string what = asker.replica + " is told that there is nothing newer than " +
                           name_of(held) + ", but there is " + name_of(newest);
  const net::Content near = newest_whole(directory, &asker.datacenter);
  if (is_newer(near, held) && !renumbered(directory, near))
    return what + ", and something newer is in its datacenter";
  Streak& waited = refused(asker.datacenter, now);
  bool lacks_it = false;
  bool better = false;
  for (const auto& [name, other] : directory.groups()) {
    if (&other == &group || place(other).datacenter != asker.datacenter) continue;
    bool has = false;
    for (const auto& [number, publication] : other.publications) {
      if (receives(*publication) && is_newer(publication->content->content, held)) return {};
      has = has || (publication->serves_whole() && !is_newer(held, publication->content->content));
    }
    lacks_it = lacks_it || (!has && other.offload == 0);
    better = better || (!place(other).spot && other.offload == 0 && is_open(other));
  }
  if (!(held.id.value != 0 && lacks_it) && !(asker.spot && better))
    return what + ", and nobody brings it";
  if (waited.since_nobody == kForever) waited.since_nobody = now;
  if (now - waited.since_nobody <= patience_ * 102 / 100) return {};
  return what + ": its datacenter has been put off since " +
         std::to_string(waited.since_nobody.count / 1'000'000) + " ms";
}

}  // namespace weightlane::sim
