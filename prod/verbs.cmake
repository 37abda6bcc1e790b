# The verbs plane.
find_package(PkgConfig REQUIRED)
pkg_check_modules(IBVERBS REQUIRED IMPORTED_TARGET libibverbs)

wl_library(wl_verbs verbs_device.cc verbs_memory.cc verbs_plane.cc verbs_queue_pair.cc
           verbs_socket.cc verbs_wire.cc
           DEPS wl_net wl_loop wl_checksum PkgConfig::IBVERBS)
