// Figure: one figure of the paper as a table: what the paper says, what the simulated world gives,
// and what was assumed. How it is printed, as text, as JSON and for gnuplot, is in figure.cc; what
// is measured is in figures_*.cc.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "flow/result.h"

namespace weightlane::sim::paper {

struct Row {
  std::string series;
  std::string x;  // a number, or a word
  std::string unit;
  std::optional<double> paper;  // nothing: the paper gives no plain number
  double ours = 0;
  std::string assumption;  // of this row; empty: as the row above
};

struct Figure {
  std::string id;  // "7a"
  std::string title;
  std::string x_name;
  std::vector<Row> rows;
  std::vector<std::string> notes;

  void add(std::string series, std::string x, std::string unit, std::optional<double> paper,
           double ours, std::string assumption = {}) {
    rows.push_back(
        {std::move(series), std::move(x), std::move(unit), paper, ours, std::move(assumption)});
  }
};

std::string to_text(const Figure& figure);
std::string to_json(const Figure& figure);  // a line per row
// The machine that all figures assume, and the rivals' parameters: one table.
std::string assumptions_text();
// DIR/figure-ID.dat and .gp, and with gnuplot installed .svg; says what it has written.
Result<std::string> plot(const Figure& figure, const std::string& folder);

// Shortest text of a number: "2.5", "50".
std::string number_text(double value, int digits = 3);

}  // namespace weightlane::sim::paper
