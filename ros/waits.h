// Who waits for whom: for a person who looks at a process that does not get on. The server says of
// every call that is not decided which shards have not come, which read from whom and which wait
// for a source, and of every drain who still reads. Nothing here decides anything.
#pragma once

#include <string>
#include <vector>

#include "ros/directory.h"

namespace weightlane::ros {

// One line for each shard that waits. Empty: nobody waits.
std::vector<std::string> who_waits(const Directory& directory);

}  // namespace weightlane::ros
