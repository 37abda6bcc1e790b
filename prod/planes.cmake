# The planes that need no RDMA: TCP, same-host, and the composite that chooses between all.
#
# wl_checksum  the checksum all production planes share
# wl_planes    TCP and same-host planes, and what both are made of
find_package(PkgConfig REQUIRED)
pkg_check_modules(ISAL REQUIRED IMPORTED_TARGET libisal)

wl_library(wl_checksum checksum.cc DEPS PkgConfig::ISAL)
wl_library(wl_planes
           arena_cache.cc composite_plane.cc copy.cc memory_registry.cc
           process_identity.cc read_queue.cc same_host_board.cc same_host_plane.cc
           same_host_reader.cc shared_memory.cc tcp_address.cc tcp_connect.cc tcp_plane.cc
           tcp_reader.cc tcp_socket.cc tcp_source.cc thread_group.cc unix_channel.cc
           DEPS wl_net wl_loop wl_checksum)
