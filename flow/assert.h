// Assertions that are always on. A broken invariant stops the process and says what it saw:
// operands, place, and what the world adds (the simulator: virtual time, host and seed) through the
// thread's context hook.
#pragma once

#include <string>

namespace weightlane {

// Returns a line to print under a failed assertion; set by whoever runs the loop on this thread.
// May be null.
using AssertContext = std::string (*)();
void set_assert_context(AssertContext context);

[[noreturn]] void assertion_failed(const char* expression, const char* file, int line,
                                   const std::string& operands);

}  // namespace weightlane

#define WL_ASSERT(condition)                                                           \
  do {                                                                                 \
    if (!(condition)) [[unlikely]]                                                     \
      ::weightlane::assertion_failed(#condition, __FILE__, __LINE__, ::std::string()); \
  } while (false)

// Prints both operands, which must be integral or enums converted by the caller.
#define WL_ASSERT_OP(a, op, b)                                                     \
  do {                                                                             \
    const auto wl_left_ = (a);                                                     \
    const auto wl_right_ = (b);                                                    \
    if (!(wl_left_ op wl_right_)) [[unlikely]]                                     \
      ::weightlane::assertion_failed(                                              \
          #a " " #op " " #b, __FILE__, __LINE__,                                   \
          ::std::to_string(wl_left_) + " " #op " " + ::std::to_string(wl_right_)); \
  } while (false)
