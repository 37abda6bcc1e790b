// All figures there are, by the paper's numbers.
#pragma once

#include <array>

#include "sim/paper/figure.h"

namespace weightlane::sim::paper {

Figure figure_7a();
Figure figure_7b();
Figure figure_7c();
Figure figure_9();
Figure figure_11();

struct NamedFigure {
  const char* id;
  Figure (*make)();
};
constexpr std::array kFigures = {NamedFigure{"7a", figure_7a}, NamedFigure{"7b", figure_7b},
                                 NamedFigure{"7c", figure_7c}, NamedFigure{"9", figure_9},
                                 NamedFigure{"11", figure_11}};

}  // namespace weightlane::sim::paper
