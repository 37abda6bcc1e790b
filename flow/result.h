// Expected outcomes as values: Result<T> is either a T or an Error.
//
// A code exists only where a caller reacts differently to it (STYLE: "a code exists only where a
// caller reacts differently"); everything else is in the message, one line, which names the thing
// and says what would be right. Broken invariants are not errors: they are WL_ASSERT
// (flow/assert.h).
#pragma once

#include <string>
#include <utility>
#include <variant>

#include "flow/assert.h"

namespace weightlane {

enum class ErrorCode : unsigned char {
  kInvalidArgument,      // the caller's mistake; nothing was changed
  kWrongState,           // a call that the handle's state does not allow; nothing was changed
  kLayoutMismatch,       // the two sides' tensors differ in name, dtype, shape or order
  kCallMismatch,         // the shards of a replica made different n-th calls (P3)
  kVersionUnavailable,   // nobody holds the version asked for, any more or yet
  kTimeout,              // a deadline passed; the message names whom was waited for
  kReplicaLost,          // a member of the replica was lost; this replica now holds nothing (P3)
  kServerLost,           // no reference server could be reached in the bounded time
  kSuperseded,           // a newer process opened this shard; this handle is dead
  kAlreadyOpen,          // the shard is open in a live process
  kUnreachable,          // the other side could not be reached or refused; retried elsewhere by the
                         // protocol
  kRefused,              // the other side answered and said no (identity, stamp, key)
  kResourceExhausted,    // memory, queue pairs, registrations, ports
  kDestinationPoisoned,  // a queue pair could not be destroyed: the memory must not be used,
                         // restart the process
  kClosed,               // the object was closed meanwhile
  kCorrupt,              // bytes that cannot be what they claim to be
  kRetained,             // the last copy of a retained version could not be kept elsewhere: it is
                         // still published here (P5)
};

const char* error_code_name(ErrorCode code);

struct Error {
  ErrorCode code = ErrorCode::kInvalidArgument;
  std::string message;
};

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  T& value() & {
    WL_ASSERT(ok());
    return *std::get_if<0>(&state_);
  }
  const T& value() const& {
    WL_ASSERT(ok());
    return *std::get_if<0>(&state_);
  }
  T&& value() && {
    WL_ASSERT(ok());
    return std::move(*std::get_if<0>(&state_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  const Error& error() const {
    WL_ASSERT(!ok());
    return *std::get_if<1>(&state_);
  }

 private:
  std::variant<T, Error> state_;
};

// For outcomes with nothing to carry: Result<Done>.
struct Done {};

}  // namespace weightlane
