// The printable names of net's enumerations, and the classes of completion statuses (R7).
#include "net/messages.h"

namespace weightlane::net {

const char* completion_status_name(CompletionStatus status) {
  switch (status) {
    case CompletionStatus::kSuccess:
      return "SUCCESS";
    case CompletionStatus::kLocalLength:
      return "LOC_LEN_ERR";
    case CompletionStatus::kLocalQpOperation:
      return "LOC_QP_OP_ERR";
    case CompletionStatus::kLocalProtection:
      return "LOC_PROT_ERR";
    case CompletionStatus::kFlushed:
      return "WR_FLUSH_ERR";
    case CompletionStatus::kBadResponse:
      return "BAD_RESP_ERR";
    case CompletionStatus::kLocalAccess:
      return "LOC_ACCESS_ERR";
    case CompletionStatus::kRemoteInvalidRequest:
      return "REM_INV_REQ_ERR";
    case CompletionStatus::kRemoteAccess:
      return "REM_ACCESS_ERR";
    case CompletionStatus::kRemoteOperation:
      return "REM_OP_ERR";
    case CompletionStatus::kRetryExceeded:
      return "RETRY_EXC_ERR";
    case CompletionStatus::kRnrRetryExceeded:
      return "RNR_RETRY_EXC_ERR";
    case CompletionStatus::kFatal:
      return "FATAL_ERR";
    case CompletionStatus::kResponseTimeout:
      return "RESP_TIMEOUT_ERR";
    case CompletionStatus::kGeneral:
      return "GENERAL_ERR";
  }
  return "UNKNOWN_STATUS";
}

ErrorClass classify(CompletionStatus status) {
  switch (status) {
    case CompletionStatus::kSuccess:
      return ErrorClass::kNone;
    case CompletionStatus::kLocalLength:
    case CompletionStatus::kLocalQpOperation:
    case CompletionStatus::kLocalProtection:
    case CompletionStatus::kLocalAccess:
      return ErrorClass::kLocal;
    case CompletionStatus::kFlushed:
      return ErrorClass::kUnknown;
    case CompletionStatus::kBadResponse:
    case CompletionStatus::kRemoteInvalidRequest:
    case CompletionStatus::kRemoteAccess:
    case CompletionStatus::kRemoteOperation:
      return ErrorClass::kRemote;
    case CompletionStatus::kRetryExceeded:
    case CompletionStatus::kRnrRetryExceeded:
      return ErrorClass::kPath;
    case CompletionStatus::kFatal:
    case CompletionStatus::kResponseTimeout:
    case CompletionStatus::kGeneral:
      return ErrorClass::kDevice;
  }
  return ErrorClass::kDevice;
}

const char* call_kind_name(CallKind kind) {
  switch (kind) {
    case CallKind::kPublish:
      return "publish";
    case CallKind::kUnpublish:
      return "unpublish";
    case CallKind::kReplicate:
      return "replicate";
    case CallKind::kUpdate:
      return "update";
  }
  return "unknown";
}

const char* replica_state_name(ReplicaState state) {
  switch (state) {
    case ReplicaState::kPublishing:
      return "publishing";
    case ReplicaState::kComplete:
      return "complete";
    case ReplicaState::kReceiving:
      return "receiving";
    case ReplicaState::kHidden:
      return "hidden";
  }
  return "unknown";
}

std::string to_string(const VersionSpec& spec) {
  if (spec.kind == VersionKind::kExact) return std::to_string(spec.exact.value);
  if (spec.back == 0) return "latest";
  return "latest-" + std::to_string(spec.back);
}

}  // namespace weightlane::net
