# What stands above the simulated world: plans, workload, checkers, campaigns, and the two programs.
# wl_campaign is compiled once and linked with either build of ros.
wl_library(wl_campaign campaign.cc checkers.cc checkers_servers.cc explain.cc explore.cc judge.cc perfetto.cc plan.cc
                       pool.cc retention_checker.cc schedule.cc script.cc script_play.cc shrink.cc shrink_plan.cc
                       story.cc tools.cc trace_file.cc wide_checker.cc workload.cc workload_steps.cc
           DEPS wl_sim)

include(paper/paper.cmake)

add_executable(weightlane-sim main.cc)
target_link_libraries(weightlane-sim PRIVATE wl_campaign wl_paper wl_ros)
add_executable(weightlane-sim-bugs main.cc bugs.cc bug_traces.cc)
target_link_libraries(weightlane-sim-bugs PRIVATE wl_campaign wl_ros_bugs)
foreach(program IN ITEMS weightlane-sim weightlane-sim-bugs)
  target_link_options(${program} PRIVATE -Wl,--build-id=sha1)
endforeach()
