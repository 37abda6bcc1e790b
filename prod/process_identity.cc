// See proc(5): the 22nd field of stat, counted behind the name's closing parenthesis, which may
// itself contain blanks and parentheses.
#include "prod/process_identity.h"

#include <charconv>
#include <fstream>
#include <sstream>

namespace weightlane::prod {

std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

std::optional<uint64_t> process_start_time(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(line.substr(name_end + 1));
  std::string field;
  constexpr int kStartTime = 22;
  for (int number = 3; number <= kStartTime; ++number) {
    if (!(fields >> field)) return std::nullopt;
  }
  uint64_t ticks = 0;
  const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), ticks);
  if (error != std::errc{}) return std::nullopt;
  return ticks;
}

}  // namespace weightlane::prod
