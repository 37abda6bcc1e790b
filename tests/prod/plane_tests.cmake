# Tests of the TCP, same-host and composite planes beyond the conformance suite.
wl_test(plane_bench_test SOURCES plane_bench_test.cc DEPS wl_planes LABELS nosanitize serial TIMEOUT 300)
