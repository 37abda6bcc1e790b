// Which data plane a worker gets for the transport it asked for.
#pragma once

#include <memory>

#include "flow/result.h"
#include "net/data_plane.h"
#include "prod/event_loop.h"
#include "prod/log.h"
#include "prod/shared_memory.h"
#include "prod/worker.h"

namespace weightlane::prod {

// On the loop's thread. kInvalidArgument, kUnreachable: this transport cannot be had here. `loop`,
// `log` and `arenas` outlive the plane.
Result<std::unique_ptr<net::DataPlane>> make_worker_plane(EventLoop& loop, Log& log,
                                                          SharedArenas& arenas,
                                                          const WorkerOptions& options);

}  // namespace weightlane::prod
