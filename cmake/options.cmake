# Build options and compiler flags shared by every target.
option(FATHOM_CUDA "Build the CUDA kernels (needs nvcc 12.8 or newer)" ON)
option(FATHOM_TESTS "Build the tests" ON)
option(FATHOM_BENCHES "Build the benchmarks" ON)
option(FATHOM_FUZZ "Build the libFuzzer targets (clang only)" OFF)
set(FATHOM_FUZZED base formats text trace serve)  # libraries that the libFuzzer targets see into
# From nothing they halve the time of a build. The compiler cache needs CCACHE_SLOPPINESS=pch_defines,time_macros for them.
option(FATHOM_PCH "Precompiled headers" OFF)
set(FATHOM_SANITIZE "" CACHE STRING "Sanitizers, for example address,undefined or thread")
set(FATHOM_TOOL_FLAGS "" CACHE STRING "More compiler flags for the libraries of commands that neither serve nor compute")
set(FATHOM_TOOLS html plan bench doctor cli)
set(FATHOM_TEST_FLAGS "" CACHE STRING "More compiler flags for the tests, for example a lower optimisation")

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_CXX_FLAGS_RELEASE "-O3 -g1")

# Contraction would let the compiler fuse a*b+c on some machines and not on others: the references must
# round where the specification rounds.
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>
  $<$<COMPILE_LANGUAGE:CXX>:-Wall> $<$<COMPILE_LANGUAGE:CXX>:-Wextra> $<$<COMPILE_LANGUAGE:CXX>:-Wno-missing-field-initializers>
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-stringop-overflow>  # fmt 9 trips it falsely
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-restrict>)          # as GCC 12 does at "text" + string

if(FATHOM_SANITIZE)
  add_compile_definitions(FATHOM_SANITIZED)  # tests take fewer cases; compilers do not agree on a macro of their own
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${FATHOM_SANITIZE}> $<$<COMPILE_LANGUAGE:CXX>:-fno-omit-frame-pointer>
    $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize-recover=undefined>)
  add_link_options(-fsanitize=${FATHOM_SANITIZE})
  # Instruction sets for which the CPU variants are not compiled: most of the time of src/ops goes there.
  if(FATHOM_SANITIZE STREQUAL "thread")
    add_compile_definitions(FATHOM_SKIPPED_TARGETS=HWY_SSE4|HWY_AVX3)
  else()
    add_compile_definitions(FATHOM_SKIPPED_TARGETS=HWY_SSE4)
  endif()
endif()

find_program(FATHOM_CCACHE ccache)
if(FATHOM_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${FATHOM_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${FATHOM_CCACHE})
endif()
find_program(FATHOM_MOLD mold)
if(FATHOM_MOLD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_link_options(-fuse-ld=mold)
endif()

if(FATHOM_PCH AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")  # the header alone fills GCC's heap: without more it is swept at once
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-heapsize=786432>)
endif()
if(FATHOM_PCH AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang")  # lets ccache use precompiled headers
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:SHELL:-Xclang -fno-pch-timestamp>")
endif()

if(FATHOM_CUDA)
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_ARCHITECTURES OFF)  # every target names its own -gencode list
    enable_language(CUDA)
    set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  else()
    message(STATUS "nvcc not found: building without CUDA")
    set(FATHOM_CUDA OFF)
  endif()
endif()
