// Writing and reading of trace files. The reader takes a line apart by blanks and refuses what it
// does not know, with the number of the line.
#include "sim/trace_file.h"

#include <link.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

namespace weightlane::sim {
namespace {

constexpr const char* kFirstLine = "weightlane-trace 1";

std::string hex(uint64_t value) {
  char text[32];
  std::snprintf(text, sizeof text, "0x%016llx", static_cast<unsigned long long>(value));
  return text;
}

// False when `text` is not wholly a number.
bool number(const std::string& text, uint64_t& value) {
  if (text.empty()) return false;
  char* end = nullptr;
  errno = 0;
  value = std::strtoull(text.c_str(), &end, 0);
  return errno == 0 && *end == '\0' && text[0] != '-';
}

bool number32(const std::string& text, uint32_t& value) {
  uint64_t wide = 0;
  if (!number(text, wide) || wide > UINT32_MAX) return false;
  value = static_cast<uint32_t>(wide);
  return true;
}

bool read_choice(std::istringstream& words, TraceChoice& choice) {
  std::string stream;
  std::string index;
  std::string n;
  std::string value;
  words >> stream >> index >> n >> value >> choice.name;
  return number32(stream, choice.stream.value) && number(index, choice.index) &&
         number32(n, choice.n) && number32(value, choice.value) && choice.value < choice.n;
}

// What the word of a line asks for; empty when the line was understood.
std::string read_line(const std::string& word, const std::string& rest, TraceFile& trace) {
  std::istringstream words(rest);
  if (word == "about") {
    trace.about.push_back(rest);
  } else if (word == "story") {
    trace.story = rest;
  } else if (word == "build") {
    trace.build = rest;
  } else if (word == "scenario") {
    trace.scenario = rest;
  } else if (word == "bug") {
    trace.bug = rest;
  } else if (word == "promise") {
    trace.promise = rest;
  } else if (word == "seed") {
    if (!number(rest, trace.seed)) return "seed NUMBER";
  } else if (word == "hash") {
    if (!number(rest, trace.hash)) return "hash 0xHEX";
  } else if (word == "events") {
    if (!number(rest, trace.events)) return "events NUMBER";
  } else if (word == "fault") {
    trace.faults.push_back(rest);
  } else if (word == "config") {
    std::string name;
    std::string value;
    words >> name >> value;
    if (value.empty()) return "config NAME VALUE";
    trace.config.emplace_back(name, value);
  } else if (word == "choice") {
    TraceChoice choice;
    if (!read_choice(words, choice)) return "choice STREAM DRAW OUTCOMES OUTCOME NAME";
    trace.choices.push_back(choice);
  } else {
    return "one of about, story, build, scenario, seed, bug, promise, hash, events, config, "
           "choice, fault";
  }
  return {};
}

}  // namespace

std::string format_trace(const TraceFile& trace) {
  std::ostringstream out;
  out << kFirstLine << "\n";
  for (const std::string& line : trace.about) out << "about    " << line << "\n";
  out << "story    " << trace.story << "\n";
  out << "build    " << trace.build << "\n";
  out << "scenario " << trace.scenario << "\n";
  out << "seed     " << trace.seed << "\n";
  if (!trace.bug.empty()) out << "bug      " << trace.bug << "\n";
  out << "promise  " << trace.promise << "\n";
  out << "hash     " << hex(trace.hash) << "\n";
  out << "events   " << trace.events << "\n";
  for (const auto& [name, value] : trace.config) out << "config   " << name << " " << value << "\n";
  for (const TraceChoice& choice : trace.choices) {
    out << "choice   " << choice.stream.value << " " << choice.index << " " << choice.n << " "
        << choice.value << " " << choice.name << "\n";
  }
  for (const std::string& fault : trace.faults) out << "fault    " << fault << "\n";
  return out.str();
}

Result<TraceFile> parse_trace(const std::string& text) {
  std::istringstream lines(text);
  std::string line;
  size_t at = 1;
  if (!std::getline(lines, line) || line != kFirstLine) {
    return Error{ErrorCode::kCorrupt,
                 std::string("line 1: not a trace; it would begin with: ") + kFirstLine};
  }
  TraceFile trace;
  while (std::getline(lines, line)) {
    ++at;
    if (line.empty()) continue;
    const size_t blank = line.find(' ');
    const std::string word = line.substr(0, blank);
    const size_t start = blank == std::string::npos ? blank : line.find_first_not_of(' ', blank);
    const std::string rest = start == std::string::npos ? std::string() : line.substr(start);
    const std::string wanted = read_line(word, rest, trace);
    if (!wanted.empty()) {
      return Error{ErrorCode::kCorrupt,
                   "line " + std::to_string(at) + ": '" + word + "' is not right here: " + wanted};
    }
  }
  return trace;
}

Result<TraceFile> read_trace(const std::string& path) {
  std::ifstream in(path);
  if (!in)
    return Error{ErrorCode::kInvalidArgument, path + ": cannot be read: " + std::strerror(errno)};
  std::ostringstream text;
  text << in.rdbuf();
  Result<TraceFile> trace = parse_trace(text.str());
  if (!trace.ok()) return Error{trace.error().code, path + ": " + trace.error().message};
  return trace;
}

Result<Done> write_trace(const std::string& path, const TraceFile& trace) {
  std::ofstream out(path, std::ios::trunc);
  out << format_trace(trace);
  out.close();
  if (!out)
    return Error{ErrorCode::kInvalidArgument,
                 path + ": cannot be written: " + std::strerror(errno)};
  return Done{};
}

std::string build_id() {
  std::string id = "unknown";
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* into) {
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const ElfW(Phdr)& header = info->dlpi_phdr[i];
          if (header.p_type != PT_NOTE) continue;
          const auto* at = reinterpret_cast<const unsigned char*>(info->dlpi_addr + header.p_vaddr);
          const unsigned char* end = at + header.p_memsz;
          while (at + sizeof(ElfW(Nhdr)) <= end) {
            ElfW(Nhdr) note;
            std::memcpy(&note, at, sizeof note);
            const unsigned char* name = at + sizeof note;
            const unsigned char* value = name + (note.n_namesz + 3) / 4 * 4;
            if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 &&
                std::memcmp(name, "GNU", 4) == 0) {
              std::string text;
              for (uint32_t k = 0; k < note.n_descsz; ++k) {
                char two[3];
                std::snprintf(two, sizeof two, "%02x", value[k]);
                text += two;
              }
              *static_cast<std::string*>(into) = text;
              return 1;
            }
            at = value + (note.n_descsz + 3) / 4 * 4;
          }
        }
        return 1;  // the first object is the program itself
      },
      &id);
  return id;
}

}  // namespace weightlane::sim
