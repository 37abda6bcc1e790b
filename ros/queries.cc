// Both are one request, repeated over as many connections as it takes until the deadline.
#include "ros/queries.h"

#include <optional>

namespace weightlane::ros {

namespace {

constexpr Nanos kHold = seconds(10);  // a server holds no Wait longer than its heartbeat
constexpr Nanos kLeast = millis(1);   // shorter holds are not worth a request
constexpr Nanos kGrace = seconds(1);
constexpr HandleOptions kDefaults;

Nanos earlier(Nanos a, Nanos b) { return a < b ? a : b; }

// A conversation of requests that belong to no handle.
class Questions {
 public:
  Questions(Environment environment, std::string server, Nanos deadline)
      : environment_(environment), server_(std::move(server)), deadline_(deadline) {}

  // Nothing: there was no answer by the deadline. `reach`: how long one attempt may take.
  flow::Task<std::optional<net::ResponseBody>> ask(net::RequestBody body, Nanos reach) {
    flow::Runtime& runtime = *environment_.runtime;
    Nanos pause = kDefaults.rpc_retry_first;
    while (true) {
      // An answer that the server gives at the deadline has time to arrive.
      const Nanos until =
          earlier(deadline_after(deadline_, kGrace), deadline_after(runtime.now(), reach));
      if (connection_ == nullptr || connection_->broken()) {
        Result<std::unique_ptr<net::Connection>> made =
            co_await environment_.control->connect(server_, until);
        if (made) connection_ = std::move(made).value();
        if (!made) trouble_ = made.error().message;
      }
      if (connection_ != nullptr) {
        net::CallOutcome outcome = co_await connection_->call(net::Request{{}, body}, until);
        if (auto* response = std::get_if<net::Response>(&outcome))
          co_return std::move(response->body);
        const auto* unknown = std::get_if<net::OutcomeUnknown>(&outcome);
        trouble_ = unknown != nullptr ? unknown->why : std::get<Error>(outcome).message;
        connection_.reset();
      }
      if (runtime.now() + pause >= deadline_) co_return std::nullopt;
      co_await runtime.sleep_for(pause);
      pause = earlier(pause * 2, kDefaults.rpc_retry_max);
    }
  }
  Error lost() const {
    return {ErrorCode::kServerLost,
            "no answer from the reference server at " + server_ + ": " + trouble_};
  }

 private:
  Environment environment_;
  std::string server_;
  Nanos deadline_;
  std::string trouble_ = "no answer yet";
  std::unique_ptr<net::Connection> connection_;
};

}  // namespace

flow::Task<Result<net::Content>> wait_for_version(Environment environment, std::string server,
                                                  std::string model, net::VersionSpec version,
                                                  Nanos timeout) {
  flow::Runtime& runtime = *environment.runtime;
  const Nanos deadline = deadline_after(runtime.now(), timeout);
  Questions questions(environment, std::move(server), deadline);
  bool answered = false;
  while (true) {
    const Nanos left = deadline - runtime.now();
    const net::WaitRequest wait{model, version, earlier(kHold, left)};
    std::optional<net::ResponseBody> body =
        co_await questions.ask(wait, kHold + kDefaults.rpc_attempt);
    if (body.has_value()) {
      const auto* waited = std::get_if<net::WaitedResponse>(&*body);
      if (waited == nullptr)
        co_return Error{ErrorCode::kCorrupt, "the server answered a wait with something else"};
      answered = true;
      if (waited->there) co_return waited->content;
    }
    if (!body.has_value() && !answered) co_return questions.lost();
    if (!body.has_value() || runtime.now() + kLeast >= deadline)
      co_return Error{ErrorCode::kTimeout, "version " + net::to_string(version) + " of model " +
                                               model + " is not there"};
  }
}

flow::Task<Result<Generation>> rewind_model(Environment environment, std::string server,
                                            std::string model, Generation expected, Nanos timeout) {
  flow::Runtime& runtime = *environment.runtime;
  Questions questions(environment, std::move(server), deadline_after(runtime.now(), timeout));
  const net::RewindRequest rewind{std::move(model), expected, runtime.random() | 1};
  std::optional<net::ResponseBody> body = co_await questions.ask(rewind, kDefaults.rpc_attempt);
  if (!body.has_value()) co_return questions.lost();
  if (const auto* done = std::get_if<net::RewoundResponse>(&*body)) co_return done->generation;
  if (const auto* failed = std::get_if<net::Failure>(&*body))
    co_return Error{failed->code, failed->message};
  co_return Error{ErrorCode::kCorrupt, "the server answered a rewind with something else"};
}

}  // namespace weightlane::ros
