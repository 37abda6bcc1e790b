// Lines are in the order of the directory's maps, so the same state gives the same text.
#include "ros/waits.h"

namespace weightlane::ros {

namespace {

std::string shard_text(size_t shard) { return "shard " + std::to_string(shard); }

void tell_receiving(const Directory& directory, const std::string& call,
                    const Publication& publication, std::vector<std::string>& lines) {
  for (size_t s = 0; s < publication.shards.size(); ++s) {
    const ShardHolding& holding = publication.shards[s];
    const auto reading = directory.all_assignments().find(holding.reading.value);
    if (reading != directory.all_assignments().end()) {
      lines.push_back(call + shard_text(s) + " reads from " +
                      reading->second.source->group->name() +
                      (reading->second.abandoned ? ", and was told to stop" : ""));
    } else if (!holding.complete) {
      lines.push_back(call + shard_text(s) + " waits for a source");
    }
  }
}

void tell_call(const Directory& directory, const Group& group, const GroupCall& call,
               std::vector<std::string>& lines) {
  const std::string name = std::string(net::call_kind_name(call.kind)) + " " +
                           std::to_string(call.number.value) + " of " + group.name() + ": ";
  const size_t before = lines.size();
  for (size_t s = 0; s < call.shards.size(); ++s) {
    if (call.gathers() && !call.shards[s].made)
      lines.push_back(name + shard_text(s) +
                      (group.members[s] == nullptr ? " is not open" : " has not made this call"));
  }
  if (call.receiving != nullptr) tell_receiving(directory, name, *call.receiving, lines);
  if (lines.size() == before && call.receives())
    lines.push_back(name + "no free source has version " + net::to_string(call.version));
}

}  // namespace

std::vector<std::string> who_waits(const Directory& directory) {
  std::vector<std::string> lines;
  for (const auto& [name, group] : directory.groups()) {
    for (const auto& [number, call] : group.calls) {
      if (!call.decided) tell_call(directory, group, call, lines);
    }
    for (const auto& [number, publication] : group.publications) {
      if (!publication->hidden) continue;
      for (const Assignment* reader : publication->outgoing) {
        lines.push_back("drain of " + group.name() + ": " + shard_text(reader->shard.value) +
                        " is still read by " + reader->reader->group->name());
      }
    }
  }
  return lines;
}

}  // namespace weightlane::ros
