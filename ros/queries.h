// What can be asked of a reference server without a handle: waiting for a version, and rewinding.
// (list_replicas is in shard_handle.h.)
#pragma once

#include <string>

#include "ros/shard_handle.h"

namespace weightlane::ros {

// Returns when the version is whole and visible somewhere, or after `timeout`. `latest` waits for
// any version of the present generation. A rewind meanwhile shows in the answer's generation.
// Errors: kTimeout, kServerLost (nobody answered by then).
flow::Task<Result<net::Content>> wait_for_version(Environment environment, std::string server,
                                                  std::string model, net::VersionSpec version,
                                                  Nanos timeout);

// Begins the next generation of a model, if the present one is `expected`: a trainer goes back to
// an older step, and the versions published before stop being `latest`. Returns the new one. Asked
// again until it is answered, and carried out once (P10). Errors: kInvalidArgument (it is at
// another generation, which the message names; nobody has the model open), kServerLost.
flow::Task<Result<Generation>> rewind_model(Environment environment, std::string server,
                                            std::string model, Generation expected, Nanos timeout);

}  // namespace weightlane::ros
