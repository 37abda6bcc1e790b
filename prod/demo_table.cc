// Painting of the demo's table; see the header.
#include "prod/demo_table.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>

#include "prod/command.h"
#include "prod/kj_runtime.h"

namespace weightlane::prod {
namespace {

constexpr size_t kBarCells = 20;

std::string bar(uint64_t done, uint64_t all) {
  if (all == 0) return std::string(kBarCells, ' ');
  const size_t cells = static_cast<size_t>(std::min(done, all) * kBarCells / all);
  return std::string(cells, '#') + std::string(kBarCells - cells, '.');
}

// The replica as a whole: sums of its shards, and the slowest of them.
DemoShardView merged(const DemoReplicaView& replica) {
  DemoShardView out = replica.shards.front();
  out.sealed_bytes = out.total_bytes = 0;
  out.transfer = out.stall = kZeroNanos;
  for (const DemoShardView& shard : replica.shards) {
    if (shard.state != "holds") out.state = shard.state;
    out.holds = out.holds && shard.holds;
    out.version = std::min(out.version, shard.version);
    out.sealed_bytes += shard.sealed_bytes;
    out.total_bytes += shard.total_bytes;
    out.transfer = std::max(out.transfer, shard.transfer);
    out.stall = std::max(out.stall, shard.stall);
    out.verified = std::min(out.verified, shard.verified);
    if (out.source.empty()) out.source = shard.source;
  }
  return out;
}

std::string row(const DemoReplicaView& replica, const std::vector<size_t>& widths) {
  const DemoShardView all = merged(replica);
  const std::string version = all.holds ? "v" + std::to_string(all.version) : "-";
  if (replica.trainer) return show_row({replica.name, all.state, version}, widths);
  const std::string percent =
      all.total_bytes == 0 ? "" : std::to_string(all.sealed_bytes * 100 / all.total_bytes) + " %";
  return show_row(
      {replica.name, all.state, version, bar(all.sealed_bytes, all.total_bytes), percent,
       all.source, all.transfer.count > 0 ? show_rate(all.sealed_bytes, all.transfer) : "",
       all.stall.count > 0 ? show_duration(all.stall) : "",
       all.verified > 0 ? std::to_string(all.verified) : ""},
      widths);
}

}  // namespace

Nanos DemoTable::now() { return monotonic_now(); }

void DemoTable::erase() {
  if (painted_lines_ > 0) std::printf("\033[%zuA\033[J", painted_lines_);
  painted_lines_ = 0;
}

void DemoTable::paint(const std::string& title, const std::vector<DemoReplicaView>& replicas) {
  if (!live_) return;
  const std::vector<size_t> widths{9, 9, 5, kBarCells, 5, 22, 10, 8, 8};
  std::vector<std::string> lines{title, show_row({"replica", "state", "holds", "progress", "",
                                                  "source", "rate", "stall", "verified"},
                                                 widths)};
  for (const DemoReplicaView& replica : replicas) lines.push_back(row(replica, widths));
  winsize window{};
  size_t columns = 80;
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0)
    columns = window.ws_col;
  erase();
  for (const std::string& text : lines) std::printf("%s\n", text.substr(0, columns).c_str());
  std::fflush(stdout);
  painted_lines_ = lines.size();
}

void DemoTable::line(const std::string& text) {
  erase();
  std::printf("%7.2f s  %s\n", to_seconds(now() - started_), text.c_str());
  std::fflush(stdout);
}

void DemoTable::summary(const std::vector<DemoStepView>& steps) {
  const std::vector<size_t> widths{7, 10, 10, 10, 12, 10, 10};
  std::printf(
      "\n%s\n",
      show_row({"version", "train", "publish", "update", "rate", "stall", "stall max"}, widths)
          .c_str());
  for (const DemoStepView& step : steps) {
    std::vector<std::string> values{
        "v" + std::to_string(step.version), show_duration(step.train),
        show_duration(step.publish),        show_duration(step.update),
        show_rate(step.bytes, step.update), show_duration(step.stall_mean),
        show_duration(step.stall_max)};
    if (!step.remark.empty()) values.push_back(step.remark);
    std::printf("%s\n", show_row(values, widths).c_str());
  }
  std::fflush(stdout);
}

}  // namespace weightlane::prod
