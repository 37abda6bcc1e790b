// The face only waits for the core's jobs: dropping a caller drops the waiting, not the call.
#include "ros/shard_handle.h"

#include "ros/handle_core.h"
#include "ros/probes.h"

namespace weightlane::ros {

namespace {

// A job's promise dies unset only when the handle does.
template <typename T>
flow::Task<Result<T>> outcome_of(flow::Future<Result<T>> future) {
  Result<Result<T>> result = co_await future;
  if (!result) co_return Error{ErrorCode::kClosed, "the handle was destroyed during the call"};
  co_return std::move(result).value();
}

}  // namespace

ShardHandle::ShardHandle(std::shared_ptr<HandleCore> core) : core_(std::move(core)) {}
ShardHandle::~ShardHandle() = default;

flow::Task<Result<std::unique_ptr<ShardHandle>>> ShardHandle::open(Environment environment,
                                                                   OpenOptions options,
                                                                   Nanos deadline) {
  auto core = std::make_shared<HandleCore>(environment, std::move(options));
  Result<Done> opened = co_await core->open(deadline);
  if (!opened) co_return opened.error();
  co_return std::unique_ptr<ShardHandle>(new ShardHandle(std::move(core)));
}

flow::Task<Result<Done>> ShardHandle::register_tensors(std::vector<TensorSpec> tensors) {
  return outcome_of(core_->register_tensors(std::move(tensors)));
}

flow::Task<Result<Done>> ShardHandle::unregister_tensors() {
  return outcome_of(core_->unregister_tensors());
}

flow::Task<Result<Done>> ShardHandle::publish(VersionId version) {
  return outcome_of(core_->publish(version));
}

flow::Task<Result<Done>> ShardHandle::unpublish() { return outcome_of(core_->unpublish()); }

flow::Task<Result<VersionId>> ShardHandle::replicate(net::VersionSpec version, Nanos timeout) {
  flow::Future<Result<std::optional<VersionId>>> future =
      core_->receive(net::CallKind::kReplicate, version, timeout);
  Result<std::optional<VersionId>> result = co_await outcome_of(std::move(future));
  if (!result) co_return result.error();
  WL_ASSERT(result->has_value());
  co_return **result;
}

flow::Task<Result<std::optional<VersionId>>> ShardHandle::update(net::VersionSpec version,
                                                                 Nanos timeout) {
  return outcome_of(core_->receive(net::CallKind::kUpdate, version, timeout));
}

flow::Task<Result<Done>> ShardHandle::close(Nanos deadline) {
  return outcome_of(core_->close(deadline));
}

void ShardHandle::give_up(std::string why) { core_->give_up(std::move(why)); }

HandleState ShardHandle::state() const { return core_->state(); }
std::optional<VersionId> ShardHandle::holds() const { return core_->holds(); }
bool ShardHandle::rewound() const { return core_->rewound(); }
Progress ShardHandle::progress() const { return core_->progress(); }
uint64_t ShardHandle::registered_bytes() const { return core_->registered_bytes(); }
std::string ShardHandle::waits_for() const { return core_->waits_for(); }
CallNumber ShardHandle::next_call() const { return core_->next_call(); }
uint64_t ShardHandle::lineage() const { return core_->lineage(); }

flow::Task<Result<net::ListResponse>> list_replicas(Environment environment, std::string server,
                                                    std::string model, Nanos deadline) {
  Result<std::unique_ptr<net::Connection>> connection =
      co_await environment.control->connect(server, deadline);
  if (!connection) co_return connection.error();
  net::Request request{{}, net::ListRequest{std::move(model)}};
  net::CallOutcome outcome = co_await (*connection)->call(std::move(request), deadline);
  if (auto* response = std::get_if<net::Response>(&outcome)) {
    if (auto* list = std::get_if<net::ListResponse>(&response->body)) co_return std::move(*list);
    if (auto* failed = std::get_if<net::Failure>(&response->body))
      co_return Error{failed->code, failed->message};
    co_return Error{ErrorCode::kCorrupt, server + " answered a list request with something else"};
  }
  if (auto* unknown = std::get_if<net::OutcomeUnknown>(&outcome))
    co_return Error{ErrorCode::kUnreachable, unknown->why};
  co_return std::get<Error>(outcome);
}

}  // namespace weightlane::ros
