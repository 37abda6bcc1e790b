# The binary: its commands, and the safetensors files they read and write.
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)

wl_library(wl_safetensors safetensors.cc DEPS wl_flow nlohmann_json::nlohmann_json)
wl_library(wl_demo_weights demo_weights.cc DEPS wl_safetensors PkgConfig::XXHASH)

add_executable(weightlane main.cc cluster_bench.cc command.cc command_bench.cc command_demo.cc command_demo_worker.cc command_list.cc command_peer.cc
               command_publish.cc command_pull.cc command_server.cc command_wait.cc child_process.cc demo_run.cc demo_table.cc)
target_link_libraries(weightlane PRIVATE wl_demo_weights wl_metrics wl_rpc wl_ros CLI11::CLI11)
