# Tests of the TCP, same-host and composite planes beyond the conformance suite.
wl_test(plane_tcp_test SOURCES plane_tcp_test.cc DEPS wl_planes LABELS sanitize)
wl_test(plane_same_host_test SOURCES plane_same_host_test.cc DEPS wl_planes LABELS sanitize)
wl_test(plane_composite_test SOURCES plane_composite_test.cc DEPS wl_planes LABELS sanitize)
wl_test(plane_parts_prop_test SOURCES plane_parts_prop_test.cc DEPS wl_planes LABELS sanitize)
wl_test(plane_bench_test SOURCES plane_bench_test.cc DEPS wl_bench LABELS nosanitize serial TIMEOUT 300)
