// Which process of which machine: boot id, pid, and when the process was started, so that a number
// that was used again is not mistaken for the process that had it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

namespace weightlane::prod {

// "5f0c...": differs for every start of every machine. Empty where the system does not tell.
std::string boot_id();
// In clock ticks since the machine was started; nothing when there is no such process (any more).
std::optional<uint64_t> process_start_time(pid_t pid);

}  // namespace weightlane::prod
