// Makes kj 0.9.2's headers compile in C++20. Force-included (-include) before anything else in
// every target that links wl_kj; nobody includes it by hand.
//
// The trouble: where the compiler has three-way comparison, kj/string.h leaves out
// `operator==(const char*, StringPtr)` and counts on C++20 turning `pointer == text` into `text ==
// pointer`. But its classes declare operator!= beside operator==, and since P2468 (clang 16 and
// later) an operator== with a matching operator!= is never reversed. So kj's and capnp's own
// headers fail at such comparisons, which is why these must be declared before kj/string.h is
// parsed. Undefining the three-way macro does not work. The classes' layouts do not change, so
// Debian's libraries still link.
#pragma once

namespace kj {
class StringPtr;
class String;

bool operator==(const char* left, const StringPtr& right);
bool operator!=(const char* left, const StringPtr& right);
bool operator==(const char* left, const String& right);
bool operator!=(const char* left, const String& right);
}  // namespace kj

#include <kj/string.h>

namespace kj {
inline bool operator==(const char* left, const StringPtr& right) {
  return right == StringPtr(left);
}
inline bool operator!=(const char* left, const StringPtr& right) {
  return right != StringPtr(left);
}
inline bool operator==(const char* left, const String& right) { return right == StringPtr(left); }
inline bool operator!=(const char* left, const String& right) { return right != StringPtr(left); }
}  // namespace kj
