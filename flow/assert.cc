// Prints a failed assertion and aborts. The context hook is per thread, because each thread may run
// a world of its own.
#include "flow/assert.h"

#include <cstdio>
#include <cstdlib>

namespace weightlane {
namespace {
constinit thread_local AssertContext context_hook = nullptr;
}  // namespace

void set_assert_context(AssertContext context) { context_hook = context; }

void assertion_failed(const char* expression, const char* file, int line,
                      const std::string& operands) {
  std::fprintf(stderr, "assertion failed: %s%s%s\n  at %s:%d\n", expression,
               operands.empty() ? "" : "  with ", operands.c_str(), file, line);
  const AssertContext hook = context_hook;
  context_hook = nullptr;  // a hook that asserts itself must not recurse
  if (hook != nullptr) std::fprintf(stderr, "  %s\n", hook().c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace weightlane
