// Goal: `auto` takes verbs where one machine's memory can't be read across, before TCP, and TCP
// where verbs lead nowhere either. Method: two workers' planes in the guest; the endpoint of one is
// spoilt part by part, best first, as another machine's would be.
#include "prod/worker_plane.h"

#include "prod/log.h"
#include "tests/prod/plane_test_kit.h"

namespace weightlane::prod {
namespace {

TEST(WorkerPlane, AutoTriesSameHostThenVerbsThenTcp) {
  EventLoop loop;
  SharedArenas arenas;
  Log log(Log::Options{});  // the choices can be read in the test's output
  const auto make = [&] {
    WorkerOptions options;
    options.transport = "auto";
    Result<std::unique_ptr<net::DataPlane>> plane = make_worker_plane(loop, log, arenas, options);
    WL_ASSERT(plane.ok());
    return std::move(*plane);
  };
  const auto source = make();
  const auto reader = make();
  KeepingAcceptor acceptor;
  std::string endpoint = *source->listen(&acceptor);
  const size_t verbs = endpoint.find(";verbs=");
  const size_t tcp = endpoint.find(";tcp=");
  ASSERT_EQ(endpoint.rfind("same-host=", 0), 0u) << endpoint;
  ASSERT_NE(verbs, std::string::npos) << endpoint;
  ASSERT_NE(tcp, std::string::npos) << endpoint;
  ASSERT_LT(verbs, tcp) << endpoint;

  const auto expect_transport = [&](const char* name) {
    TestLink link(loop);
    const Result<Done> connected = connect_link(loop, *reader, endpoint, link);
    ASSERT_TRUE(connected.ok()) << connected.error().message;
    EXPECT_EQ(link.pair->transport(), name);
    EXPECT_EQ(acceptor.pairs.back()->transport(), name);
    EXPECT_TRUE(destroy_link(loop, link));
  };
  expect_transport("same-host");
  endpoint.replace(sizeof "same-host=" - 1, 4, "zzzz");  // another machine's boot id
  expect_transport("verbs");
  endpoint.replace(verbs, sizeof ";verbs=" - 1, ";other=");  // a peer without them
  expect_transport("tcp");
  acceptor.pairs.clear();
}

}  // namespace
}  // namespace weightlane::prod
