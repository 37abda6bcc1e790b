// The printed form of a story: one line per transition in fixed columns, and its legend.
#include "sim/story.h"

namespace weightlane::sim {

const char* story_legend() {
  return "columns: virtual time in seconds | who | what happened | details\n"
         "who: server, world (the network), checker, or a process: t0-1 is the process of trainer "
         "t0 that has its\n"
         "     shard 1 (and those after it, when a replica shares one process); r = rollout, f = "
         "the fresh replica of\n"
         "     phase 2. A shard is written t0/1.\n"
         "v7 (1a2b3c4d): version 7, and the first half of the id of its content.\n"
         "call began, call ended: the n-th publish, unpublish, replicate or update of that shard, "
         "and its outcome.\n"
         "stamp set, stamp zero: the control block; zero means that the memory is handed back.\n"
         "proven a/b: so many of the shard's granules are sealed. assigned: the server reserved "
         "that source.\n"
         "\n";
}

void PrintedStory::line(Nanos at, const std::string& who, const std::string& what,
                        const std::string& detail) {
  ++lines_;
  std::fprintf(out_, "%14.9f  %-8s  %-22s  %s\n", to_seconds(at), who.c_str(), what.c_str(),
               detail.c_str());
}

}  // namespace weightlane::sim
