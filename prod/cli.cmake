# The binary: its commands, and the safetensors files they read and write.
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)

wl_library(wl_safetensors safetensors.cc DEPS wl_flow nlohmann_json::nlohmann_json)
