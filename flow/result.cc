// The names of error codes, as logs, traces and tests show them.
#include "flow/result.h"

namespace weightlane {

const char* error_code_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "InvalidArgument";
    case ErrorCode::kWrongState:
      return "WrongState";
    case ErrorCode::kLayoutMismatch:
      return "LayoutMismatch";
    case ErrorCode::kCallMismatch:
      return "CallMismatch";
    case ErrorCode::kVersionUnavailable:
      return "VersionUnavailable";
    case ErrorCode::kTimeout:
      return "Timeout";
    case ErrorCode::kReplicaLost:
      return "ReplicaLost";
    case ErrorCode::kServerLost:
      return "ServerLost";
    case ErrorCode::kSuperseded:
      return "Superseded";
    case ErrorCode::kAlreadyOpen:
      return "AlreadyOpen";
    case ErrorCode::kUnreachable:
      return "Unreachable";
    case ErrorCode::kRefused:
      return "Refused";
    case ErrorCode::kResourceExhausted:
      return "ResourceExhausted";
    case ErrorCode::kDestinationPoisoned:
      return "DestinationPoisoned";
    case ErrorCode::kClosed:
      return "Closed";
    case ErrorCode::kCorrupt:
      return "Corrupt";
    case ErrorCode::kRetained:
      return "Retained";
  }
  return "Unknown";
}

}  // namespace weightlane
