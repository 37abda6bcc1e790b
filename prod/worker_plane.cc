// One place where a transport's name becomes planes. Always behind a composite, also when there is
// one only, so that a worker that forces a transport and one that doesn't can still talk.
#include "prod/worker_plane.h"

#include <string>
#include <utility>

#include "prod/composite_plane.h"
#include "prod/same_host_plane.h"
#include "prod/tcp_plane.h"
#include "prod/verbs_plane.h"

namespace weightlane::prod {
namespace {

TcpOptions tcp_options(const WorkerOptions& options) {
  TcpOptions tcp;
  tcp.host = options.data_host;
  tcp.port_first = options.port_first;
  tcp.port_last = options.port_last;
  return tcp;
}

VerbsOptions verbs_options(const WorkerOptions& options) {
  VerbsOptions verbs;
  verbs.host = options.data_host;
  verbs.port_first = options.port_first;
  verbs.port_last = options.port_last;
  return verbs;
}

CompositeOptions composite_options(Log& log) {
  CompositeOptions composite;
  composite.on_choice = [&log](const TransportChoice& choice) {
    log.info("transport.chosen",
             {{"transport", choice.transport}, {"passed_over", choice.passed_over}});
  };
  return composite;
}

}  // namespace

Result<std::unique_ptr<net::DataPlane>> make_worker_plane(EventLoop& loop, Log& log,
                                                          SharedArenas& arenas,
                                                          const WorkerOptions& options) {
  const std::string& wanted = options.transport;
  const bool any = wanted == "auto";
  if (!any && wanted != "same-host" && wanted != "tcp" && wanted != "verbs") {
    return Error{ErrorCode::kInvalidArgument,
                 "transport \"" + wanted + "\" is not one of auto, same-host, tcp, verbs"};
  }
  auto composite = std::make_unique<CompositePlane>(loop, arenas, composite_options(log));
  // What `auto` cannot have is left out, and said; what was asked for by name is an error.
  const auto missing = [&log](const char* name, const Error& error) {
    log.info("transport.missing", {{"transport", name}, {"reason", error.message}});
  };
  if (any || wanted == "same-host") {
    SameHostOptions same_host;
    same_host.arenas = &arenas;
    Result<std::unique_ptr<SameHostPlane>> plane = SameHostPlane::create(loop, same_host);
    if (!plane && !any) return plane.error();
    if (plane) composite->add("same-host", std::move(plane).value());
    if (!plane) missing("same-host", plane.error());
  }
  if (any || wanted == "verbs") {
    Result<std::unique_ptr<VerbsPlane>> plane = VerbsPlane::open(loop, verbs_options(options));
    if (!plane && !any) return plane.error();
    if (plane) composite->add("verbs", std::move(plane).value());
    if (!plane) missing("verbs", plane.error());
  }
  if (any || wanted == "tcp") {
    composite->add("tcp", std::make_unique<TcpPlane>(loop, tcp_options(options)));
  }
  log.info("transport.offered", {{"transports", composite->transports()}});
  return std::unique_ptr<net::DataPlane>(std::move(composite));
}

}  // namespace weightlane::prod
