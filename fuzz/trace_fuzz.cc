// Trace files: text that people edit and machines shrink.
//
// What parses must come back from its printed form: a trace that changes when it is saved would not
// replay.
#include "fuzz/target.h"
#include "sim/trace_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weightlane;
  using namespace weightlane::sim;
  const Result<TraceFile> trace = parse_trace(std::string(data, data + size));
  if (!trace.ok()) {
    WL_ASSERT(trace.error().code == ErrorCode::kCorrupt);
    WL_ASSERT(trace.error().message.starts_with("line "));
    return 0;
  }
  const Result<TraceFile> again = parse_trace(format_trace(*trace));
  WL_ASSERT(again.ok());
  WL_ASSERT(*again == *trace);
  return 0;
}
