# Headers that nearly every source includes, compiled once for all libraries and once for all tests (FATHOM_PCH).
set(FATHOM_LIBRARY_HEADERS <algorithm> <array> <atomic> <bit> <chrono> <cmath> <cstdint> <cstring> <deque> <filesystem>
  <functional> <limits> <map> <memory> <mutex> <numeric> <optional> <span> <stdexcept> <string> <string_view> <thread>
  <tuple> <unordered_map> <unordered_set> <utility> <variant> <vector> <fmt/format.h>)
set(FATHOM_TEST_HEADERS ${FATHOM_LIBRARY_HEADERS} <condition_variable> <fstream> <iostream> <random> <set> <sstream>
  <gtest/gtest.h> <nlohmann/json.hpp> <rapidcheck.h> <rapidcheck/gtest.h>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")  # reads of them what it needs; GCC instantiates all that waits in them in each object
  list(APPEND FATHOM_LIBRARY_HEADERS <nlohmann/json.hpp>)
endif()
# Clang calls a function for each check of AddressSanitizer in functions with more accesses than this: kernels are inlined
# into functions that it optimises for most of a minute otherwise. The hot ones stay below.
set(FATHOM_CALLED_CHECKS)
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND FATHOM_SANITIZE MATCHES "address")
  set(FATHOM_CALLED_CHECKS -mllvm -asan-instrumentation-with-call-threshold=1500)
endif()

# fathom_precompile(TARGET OWNER HEADERS...): OWNER compiles the headers, every TARGET of the same flags uses them.
function(fathom_precompile target owner)
  if(NOT FATHOM_PCH)
    return()
  elseif(target STREQUAL owner)
    target_precompile_headers(${target} PRIVATE ${ARGN})
  else()
    target_precompile_headers(${target} REUSE_FROM ${owner})
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")  # lets ccache follow them
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
  endif()
endfunction()

# One library, one test binary and one benchmark binary for each folder of src/.
#
# fathom_library(NAME DEPS ... TEST_DEPS ... COMPUTING_TESTS) collects the sources by pattern, so adding a file needs no
# edit here. COMPUTING_TESTS: its tests compute for long themselves and are optimised as the library is.
#   src/NAME/**.cpp                     -> library fathom_NAME (not *_test.cpp, *_bench.cpp)
#   src/NAME/**.cu                      -> library fathom_NAME_cuda, when CUDA is on
#   tests/NAME/**.cpp, src/NAME/**_test.cpp    -> executable test_NAME, one ctest entry for each test case
#   bench/NAME/**.cpp, src/NAME/**_bench.cpp   -> executable bench_NAME
function(fathom_library name)
  cmake_parse_arguments(arg "COMPUTING_TESTS" "" "DEPS;TEST_DEPS" ${ARGN})
  set(dir ${CMAKE_SOURCE_DIR}/src/${name})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${dir}/*.cpp)
  file(GLOB_RECURSE tests CONFIGURE_DEPENDS ${dir}/*_test.cpp ${CMAKE_SOURCE_DIR}/tests/${name}/*.cpp)
  file(GLOB_RECURSE benches CONFIGURE_DEPENDS ${dir}/*_bench.cpp ${CMAKE_SOURCE_DIR}/bench/${name}/*.cpp)
  list(FILTER sources EXCLUDE REGEX "_(test|bench)\\.cpp$")
  if(name STREQUAL cli)
    list(FILTER sources EXCLUDE REGEX "/main\\.cpp$")
  endif()

  set(deps)
  foreach(dep ${arg_DEPS})
    if(TARGET fathom_${dep})
      list(APPEND deps fathom_${dep})
    elseif(NOT IS_DIRECTORY ${CMAKE_SOURCE_DIR}/src/${dep})
      list(APPEND deps ${dep})
    endif()
  endforeach()

  if(sources)
    add_library(fathom_${name} STATIC ${sources})
    target_include_directories(fathom_${name} PUBLIC ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include)
    target_link_libraries(fathom_${name} PUBLIC ${deps} fmt::fmt Threads::Threads)
    # Vector code is all pointers: checks of each would take most of the build and, of threads, most of the run. It shares
    # nothing between threads but what its callers hand it; AddressSanitizer stays.
    foreach(source ${sources})
      file(STRINGS ${source} vectors REGEX "hwy/foreach_target.h")
      if(vectors AND FATHOM_SANITIZE STREQUAL "thread")
        set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS -fno-sanitize=thread SKIP_PRECOMPILE_HEADERS ON)
      elseif(vectors AND FATHOM_SANITIZE MATCHES "undefined")
        set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS
          "-fno-sanitize=null,alignment,object-size,pointer-overflow;${FATHOM_CALLED_CHECKS}")
      endif()
    endforeach()
    set(precompiled fathom_base)
    if(FATHOM_TOOL_FLAGS AND name IN_LIST FATHOM_TOOLS)  # the first of them compiles the headers with these flags
      list(GET FATHOM_TOOLS 0 first)
      set(precompiled fathom_${first})
      target_compile_options(fathom_${name} PRIVATE ${FATHOM_TOOL_FLAGS})
    endif()
    fathom_precompile(fathom_${name} ${precompiled} ${FATHOM_LIBRARY_HEADERS})
    if(FATHOM_FUZZ AND name IN_LIST FATHOM_FUZZED)
      target_compile_options(fathom_${name} PRIVATE -fsanitize-coverage=inline-8bit-counters,pc-table,trace-cmp)
    endif()
  else()  # nothing here yet: pass the dependencies on
    add_library(fathom_${name} INTERFACE)
    target_link_libraries(fathom_${name} INTERFACE ${deps})
    return()
  endif()

  file(GLOB_RECURSE kernels CONFIGURE_DEPENDS ${dir}/*.cu)
  if(FATHOM_CUDA AND kernels)
    include(cuda)
    fathom_cuda_library(${name} ${kernels})
  endif()

  if(FATHOM_TESTS AND tests)
    add_executable(test_${name} ${tests})
    target_include_directories(test_${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
    target_compile_definitions(test_${name} PRIVATE FATHOM_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
    foreach(dep ${arg_TEST_DEPS})
      target_link_libraries(test_${name} PRIVATE fathom_${dep})
    endforeach()
    target_link_libraries(test_${name} PRIVATE fathom_${name} GTest::gtest_main rapidcheck::rapidcheck)
    set(precompiled test_base)
    if(arg_COMPUTING_TESTS)
      set(precompiled test_${name})
      if(FATHOM_SANITIZE MATCHES "undefined")  # kernels add offsets to the null of scales that a format does not have
        target_compile_options(test_${name} PRIVATE -fno-sanitize=pointer-overflow)
      endif()
    else()
      target_compile_options(test_${name} PRIVATE ${FATHOM_TEST_FLAGS})
    endif()
    fathom_precompile(test_${name} ${precompiled} ${FATHOM_TEST_HEADERS})
    include(GoogleTest)
    if(FATHOM_SANITIZE STREQUAL "thread")  # on one processor operations stay on their thread: TBB knows nothing of the sanitizer
      set_target_properties(test_${name} PROPERTIES CROSSCOMPILING_EMULATOR ${CMAKE_SOURCE_DIR}/tools/on_one_processor)
    endif()
    gtest_discover_tests(test_${name} TEST_PREFIX ${name}. DISCOVERY_TIMEOUT 60 PROPERTIES LABELS ${name} TIMEOUT 300)
  endif()
  if(FATHOM_BENCHES AND benches)
    add_executable(bench_${name} ${benches})
    target_compile_definitions(bench_${name} PRIVATE FATHOM_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
    target_link_libraries(bench_${name} PRIVATE fathom_${name} benchmark::benchmark_main)
  endif()
endfunction()

# fathom_embed(LIBRARY FILE SYMBOL): the bytes of FILE as `std::string_view fathom::embedded::SYMBOL()` in the library.
function(fathom_embed name file symbol)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${file})
  file(READ ${CMAKE_SOURCE_DIR}/${file} bytes HEX)
  string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
  set(out ${CMAKE_BINARY_DIR}/embedded/${symbol}.cpp)
  file(CONFIGURE OUTPUT ${out} @ONLY CONTENT "#include <string_view>
namespace fathom::embedded {
static const unsigned char bytes[] = {@bytes@};
std::string_view @symbol@() { return {reinterpret_cast<const char*>(bytes), sizeof bytes}; }
}  // namespace fathom::embedded
")
  target_sources(fathom_${name} PRIVATE ${out})
endfunction()
