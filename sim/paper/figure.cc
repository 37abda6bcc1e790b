// A table is printed with one line per row and each assumption once, where it begins to hold.
#include "sim/paper/figure.h"

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>

#include "sim/paper/machine.h"

namespace weightlane::sim::paper {
namespace {

bool is_number(const std::string& text) {
  char* end = nullptr;
  std::strtod(text.c_str(), &end);
  return !text.empty() && *end == '\0';
}

std::string padded(std::string text, size_t width, bool right) {
  if (text.size() >= width) return text;
  const std::string space(width - text.size(), ' ');
  return right ? space + text : text + space;
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

std::string json_number(double value) {
  char text[64];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

}  // namespace

std::string number_text(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  std::string out = text;
  if (out.find('.') == std::string::npos) return out;
  while (out.back() == '0') out.pop_back();
  if (out.back() == '.') out.pop_back();
  return out;
}

std::string to_text(const Figure& figure) {
  std::string out = "Figure " + figure.id + ": " + figure.title + "\n";
  size_t wide = 8;
  size_t wide_x = figure.x_name.size();
  for (const Row& row : figure.rows) {
    wide = std::max(wide, row.series.size());
    wide_x = std::max(wide_x, row.x.size());
  }
  out += "  " + padded("series", wide, false) + "  " + padded(figure.x_name, wide_x, true) +
         "     paper      ours  ratio\n";
  std::string said;
  std::string series;
  for (const Row& row : figure.rows) {
    const bool count = row.unit == "x";
    const auto value = [&](double v) {
      return number_text(v, 2) + (count ? " x" : " " + row.unit);
    };
    out += "  " + padded(row.series == series ? "" : row.series, wide, false) + "  " +
           padded(row.x, wide_x, true) + "  " +
           padded(row.paper ? value(*row.paper) : "-", 8, true) + "  " +
           padded(value(row.ours), 8, true) + "  " +
           padded(row.paper ? number_text(row.ours / *row.paper, 2) : "", 5, true);
    if (!row.assumption.empty() && row.assumption != said) out += "  " + row.assumption;
    said = row.assumption;
    series = row.series;
    while (out.back() == ' ') out.pop_back();
    out += "\n";
  }
  for (const std::string& note : figure.notes) out += "  note: " + note + "\n";
  return out;
}

std::string to_json(const Figure& figure) {
  std::string out;
  for (const Row& row : figure.rows) {
    out += "{\"figure\":\"" + figure.id + "\",\"series\":\"" + escaped(row.series) +
           "\",\"x\":" + (is_number(row.x) ? row.x : "\"" + escaped(row.x) + "\"") +
           ",\"unit\":\"" + row.unit +
           "\",\"paper\":" + (row.paper ? json_number(*row.paper) : "null") +
           ",\"ours\":" + json_number(row.ours) +
           ",\"ratio\":" + (row.paper ? json_number(row.ours / *row.paper) : "null") +
           ",\"assumption\":\"" + escaped(row.assumption) + "\"}\n";
  }
  return out;
}

std::string assumptions_text() {
  const Machine m;
  const auto giga = [](uint64_t rate) { return number_text(static_cast<double>(rate) / 1e9, 2); };
  std::string out = "Assumed of all figures (GB/s unless said otherwise):\n";
  const auto line = [&out](const std::string& what, const std::string& value, const char* from) {
    out += "  " + padded(what, 58, false) + padded(value, 8, true) + "  " + from + "\n";
  };
  line("GPUs per machine", std::to_string(m.gpus), "the paper");
  line("RDMA NIC per GPU, each way", giga(m.nic), "the paper: 4 x 400 Gb/s for 8 GPUs");
  line("PCIe per GPU, each way", giga(m.pcie), "the paper");
  line("weightlane, one flow", giga(m.ours), "the paper's measurement of such a system");
  line("broadcast (NCCL), one chain", giga(m.broadcast), "the paper, measured");
  line("point to point (UCX), one flow", giga(m.point_to_point), "the paper, measured");
  line("object store (Ray): serialise, pull, deserialise, each", giga(m.store_put),
       "fitted to 195 s for 50 GB");
  line("machine to another datacenter, all flows, each way", giga(m.node_wide),
       "fitted to Figure 12");
  line("one pair of hosts in two datacenters", giga(m.wide_flow), "fitted to Figure 12");
  line("a message, one way; a queue pair, one way, us",
       number_text(to_seconds(m.message) * 1e6) + "; " + number_text(to_seconds(m.connect) * 1e6),
       "assumed");
  out +=
      "  A shard is read in 512 or 1024 slices, two in flight; links are shared max-min fairly, a "
      "READ "
      "keeps its rate.\n";
  return out;
}

// ---------------------------------------------------------------- gnuplot

namespace {

// The rows of seconds, by series, in order.
std::vector<std::pair<std::string, std::vector<const Row*>>> curves(const Figure& figure) {
  std::vector<std::pair<std::string, std::vector<const Row*>>> all;
  for (const Row& row : figure.rows) {
    if (row.unit != "s") continue;
    if (all.empty() || all.back().first != row.series) all.push_back({row.series, {}});
    all.back().second.push_back(&row);
  }
  // In Figure 9 series alternate; the same series belongs together.
  std::map<std::string, size_t> place;
  std::vector<std::pair<std::string, std::vector<const Row*>>> joined;
  for (const auto& [series, rows] : all) {
    const auto [known, fresh] = place.emplace(series, joined.size());
    if (fresh) joined.push_back({series, {}});
    auto& into = joined[known->second].second;
    into.insert(into.end(), rows.begin(), rows.end());
  }
  return joined;
}

// As gnuplot wants it between single quotes.
std::string quoted(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\'') out += c;
    out += c;
  }
  return out;
}

std::string data_text(const Figure& figure) {
  std::string out;
  for (const auto& [series, rows] : curves(figure)) {
    out += "# " + series + ": x, ours, paper\n";
    for (const Row* row : rows)
      out += (is_number(row->x) ? row->x : "\"" + row->x + "\"") + " " + json_number(row->ours) +
             " " + (row->paper ? json_number(*row->paper) : "NaN") + "\n";
    out += "\n\n";
  }
  return out;
}

std::string script_text(const Figure& figure, const std::string& stem) {
  const auto all = curves(figure);
  const bool numbers = is_number(all.front().second.front()->x);
  std::string out = "set terminal svg size 760,460 font 'sans,12' background 'white'\n";
  out +=
      "set output '" + stem + ".svg'\nset title 'Figure " + figure.id + ": " +
      quoted(figure.title) + "'\nset ylabel 'seconds'\nset xlabel '" + figure.x_name +
      "'\nset grid ytics lc rgb '#dddddd'\nset key outside bottom center horizontal maxcols 2\nset "
      "datafile missing 'NaN'\n";
  out += figure.id == "7a" ? "set logscale y\n" : "set yrange [0:*]\n";
  if (!numbers) out += "set style data histogram\nset style fill solid 0.7\nset boxwidth 0.9\n";
  out += "plot ";
  for (size_t i = 0; i < all.size(); ++i) {
    const std::string index = "'" + stem + ".dat' index " + std::to_string(i);
    const std::string colour = std::to_string(i + 1);
    if (i > 0) out += ", \\\n     ";
    if (!numbers) {
      out += index + " using 2:xtic(1) title '" + quoted(all[i].first) + "' lc " + colour;
      continue;
    }
    out += index + " using 1:2 with linespoints lw 2 pt 7 ps 0.6 lc " + colour + " title '" +
           quoted(all[i].first) + "'";
    bool said = false;  // in 7c the paper has one curve beside all of ours
    for (const Row* row : all[i].second)
      said = said || (row->paper && (i == 0 || figure.id != "7c"));
    if (said)
      out += ", \\\n     " + index + " using 1:3 with points pt 6 ps 1.4 lw 2 lc " + colour +
             " title 'the paper'";
  }
  return out + "\n";
}

bool write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  return file.good();
}

}  // namespace

Result<std::string> plot(const Figure& figure, const std::string& folder) {
  const std::string stem = "figure-" + figure.id;
  const std::string path = folder + "/" + stem;
  if (!write_file(path + ".dat", data_text(figure)) ||
      !write_file(path + ".gp", script_text(figure, stem)))
    return Error{ErrorCode::kInvalidArgument, "--plot: " + folder + ": " + std::strerror(errno) +
                                                  "; a folder that can be written"};
  const std::string draw = "cd '" + folder + "' && gnuplot " + stem + ".gp 2>/dev/null";
  if (std::system(draw.c_str()) == 0) return path + ".svg";
  return path + ".gp (gnuplot is not installed: apt-get install gnuplot-nox, then gnuplot " + stem +
         ".gp)";
}

}  // namespace weightlane::sim::paper
