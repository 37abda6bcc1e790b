// Server: the reference server as a running thing. A thin shell that carries messages and timers to
// the Directory, which decides. It holds soft state only and never sees a weight.
#pragma once

#include <memory>
#include <string>

#include "flow/runtime.h"
#include "net/control_plane.h"
#include "ros/observer.h"
#include "ros/options.h"

namespace weightlane::ros {

class ServerCore;

class Server {
 public:
  // Serves until destroyed. `runtime`, `control` and `observer` (may be null) outlive it. Errors
  // are serve()'s.
  static Result<std::unique_ptr<Server>> start(flow::Runtime* runtime, net::ControlPlane* control,
                                               std::string address, ServerOptions options,
                                               ServerObserver* observer);
  ~Server();

  std::string address() const;
  const Directory& directory() const;

 private:
  explicit Server(std::unique_ptr<ServerCore> core);
  std::unique_ptr<ServerCore> core_;
};

}  // namespace weightlane::ros
