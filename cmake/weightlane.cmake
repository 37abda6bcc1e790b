# What every layer's CMakeLists.txt is written with.
#
#   wl_library(NAME source... [DEPS target...])
#       A static library. DEPS are PUBLIC: who links it links them.
#   wl_test(NAME SOURCES source... [DEPS target...] [LABELS label...] [TIMEOUT seconds])
#       A GoogleTest binary (main from gtest_main; gmock and RapidCheck linked) and one ctest entry of that name.
#       Labels with a meaning:  nightly   left out of ./run test
#                               sanitize  also built and run under ASan+UBSan and under TSan by ./run test
#                               serial    never beside another test (RUN_SERIAL): measures time, or owns the machine
#       TIMEOUT is for an optimised build (default 120); builds with a sanitizer get four times as much.
#       Its environment: WL_SOURCE_DIR, WL_BIN_DIR, and RC_PARAMS with a fixed seed.
#   wl_script_test(NAME COMMAND word... [LABELS ...] [TIMEOUT ...])      the same entry for a script
#   wl_benchmark(NAME SOURCES source... [DEPS target...])                a Google Benchmark binary, in bin/bench
#   wl_kj     link this instead of CapnProto's targets: libraries + the header clang-19 needs before kj's
#   wl_cuda   link this to use CUDA where the toolkit was found: defines WL_HAVE_CUDA then, and is empty otherwise.
#             Only the static runtime is linked, so the same binary starts on a machine that has no driver and is told so
#             by the first call; functions of the driver come from cudaGetDriverEntryPoint.

find_package(Threads REQUIRED)
find_package(CapnProto REQUIRED)
find_package(GTest REQUIRED)
find_package(rapidcheck REQUIRED)
find_package(benchmark REQUIRED)

# ccache, when there is one. Objects do not depend on the build folder here, so several build folders share a cache.
find_program(WL_CCACHE ccache)
if(WL_CCACHE AND (NOT CMAKE_CXX_COMPILER_LAUNCHER OR CMAKE_CXX_COMPILER_LAUNCHER STREQUAL "ccache"))
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_NOHASHDIR=1 CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} ${WL_CCACHE})
endif()

if(CMAKE_CXX_FLAGS MATCHES "-fsanitize=")
  set(WL_SANITIZED ON)
else()
  set(WL_SANITIZED OFF)
endif()
add_custom_target(wl_sanitize_tests)  # builds only what ./run sanitize runs

add_library(wl_kj INTERFACE)
target_compile_options(wl_kj INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:SHELL:-include ${CMAKE_SOURCE_DIR}/net/kj_compat.h>")
target_link_libraries(wl_kj INTERFACE CapnProto::capnp-rpc CapnProto::capnp CapnProto::kj-async CapnProto::kj)

add_library(wl_cuda INTERFACE)
find_package(CUDAToolkit QUIET)
if(CUDAToolkit_FOUND AND TARGET CUDA::cudart_static)
  message(STATUS "CUDA: ${CUDAToolkit_VERSION} found, device memory is built in")
  target_compile_definitions(wl_cuda INTERFACE WL_HAVE_CUDA=1)
  target_link_libraries(wl_cuda INTERFACE CUDA::cudart_static)
else()
  message(STATUS "CUDA: not found, skipped (host memory only)")
endif()

function(wl_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "DEPS")
  add_library(${name} STATIC ${arg_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PUBLIC ${arg_DEPS})
endfunction()

function(wl_register_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "TIMEOUT" "LABELS")
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  if(WL_SANITIZED)
    math(EXPR arg_TIMEOUT "${arg_TIMEOUT} * 4")
  endif()
  set_tests_properties(${name} PROPERTIES
    TIMEOUT ${arg_TIMEOUT}
    LABELS "${arg_LABELS}"
    SKIP_RETURN_CODE 77
    ENVIRONMENT "WL_SOURCE_DIR=${CMAKE_SOURCE_DIR};WL_BIN_DIR=${CMAKE_BINARY_DIR}/bin;RC_PARAMS=seed=20260731")
  if("serial" IN_LIST arg_LABELS)
    set_tests_properties(${name} PROPERTIES RUN_SERIAL ON)
  endif()
endfunction()

function(wl_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "TIMEOUT" "SOURCES;DEPS;LABELS")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR " wl_test(${name}): unknown words ${arg_UNPARSED_ARGUMENTS}; sources go after SOURCES")
  endif()
  add_executable(${name} ${arg_SOURCES})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin/tests)
  target_link_libraries(${name} PRIVATE ${arg_DEPS} GTest::gtest_main GTest::gmock rapidcheck rapidcheck_gtest
                                        Threads::Threads)
  add_test(NAME ${name} COMMAND ${name})
  wl_register_test(${name} TIMEOUT "${arg_TIMEOUT}" LABELS ${arg_LABELS})
  if("sanitize" IN_LIST arg_LABELS)
    add_dependencies(wl_sanitize_tests ${name})
  endif()
endfunction()

function(wl_script_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "TIMEOUT" "COMMAND;LABELS")
  add_test(NAME ${name} COMMAND ${arg_COMMAND})
  wl_register_test(${name} TIMEOUT "${arg_TIMEOUT}" LABELS ${arg_LABELS})
endfunction()

function(wl_benchmark name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;DEPS")
  add_executable(${name} ${arg_SOURCES})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin/bench)
  target_link_libraries(${name} PRIVATE ${arg_DEPS} benchmark::benchmark Threads::Threads)
endfunction()
