# The paper's figures, from the protocol at full scale. Linked with ros by whoever uses it.
wl_library(wl_paper paper/command.cc paper/figure.cc paper/figures_pairs.cc paper/figures_steps.cc paper/fleet.cc
                    paper/rivals.cc
           DEPS wl_sim)
