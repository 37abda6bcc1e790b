// A run as a trace for ui.perfetto.dev (Chrome's JSON trace event format): a process for each host,
// a track for each shard, spans for its calls, its transfers and its READs, marks for everything
// else, arrows from an assignment to the transfer that follows it. One event a line, in the order
// in which they happened.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "sim/checkers.h"
#include "sim/events.h"
#include "sim/world.h"

namespace weightlane::sim {

class PerfettoTrace final : public StoryTeller, public EventSink {
 public:
  // `world` outlives its use as a sink; `next` hears the story too, and may be null.
  PerfettoTrace(World& world, StoryTeller* next);

  void line(Nanos at, const std::string& who, const std::string& what,
            const std::string& detail) override;
  void on_event(const EventRecord& record) override;

  // Closes what is open at this time and gives the whole document.
  std::string finish(Nanos at);

 private:
  struct Track {
    uint32_t process = 0;
    uint32_t number = 0;
    bool call_open = false;
    bool transfer_open = false;
  };
  using ReadKey = std::pair<uint64_t, uint64_t>;  // queue pair, work id
  struct Read {
    uint64_t id = 0;  // of its span; spans of READs may overlap
    uint32_t process = 0;
    uint64_t pair = 0;
  };

  uint32_t process(const std::string& host);
  Track& track(const std::string& host, const std::string& shard);
  void add(const std::string& event);
  void begin(Nanos at, const Track& track, const std::string& name, const std::string& detail);
  void end(Nanos at, const Track& track);
  void mark(Nanos at, uint32_t process, uint32_t number, const std::string& name,
            const std::string& detail, char scope);
  void end_open(Nanos at, Track& track);
  void message(const EventRecord& record);
  void arrow(Nanos at, uint32_t process, uint32_t number, uint64_t id, bool begins);
  void end_read(Nanos at, const Read& read);
  static std::string read_head(const char* phase, Nanos at, const Read& read);

  World& world_;
  StoryTeller* next_;
  std::string events_;
  std::map<std::string, uint32_t> processes_;
  std::map<std::pair<std::string, std::string>, Track> tracks_;
  std::map<ReadKey, Read> reads_;           // under way
  std::map<std::string, uint64_t> arrows_;  // by shard: assigned, not yet connected
  uint64_t next_read_ = 0;
  uint64_t next_arrow_ = 0;
};

}  // namespace weightlane::sim
