# CUDA library of one folder. Architectures: real code for each supported GPU generation; the suffix "a"
# of 90 and 120 opens the instructions that exist only there.
set(FATHOM_CUDA_ARCHS "80;89;90a;120a" CACHE STRING "Compute capabilities to build kernels for")

if(NOT TARGET cuda_kernels)
  add_custom_target(cuda_kernels)  # every kernel library and nothing else
  add_test(NAME cuda.kernel_resources COMMAND python3 ${CMAKE_SOURCE_DIR}/tools/kernel_resources.py ${CMAKE_BINARY_DIR})
endif()

function(fathom_cuda_library name)
  add_library(fathom_${name}_cuda STATIC ${ARGN})
  target_include_directories(fathom_${name}_cuda PUBLIC ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include)
  # CMake 3.25 does not know C++20 for this nvcc: the flag is passed by hand and CUDA_STANDARD stays unset.
  set(flags -std=c++20 --expt-relaxed-constexpr -lineinfo -Xptxas=-v)
  foreach(arch ${FATHOM_CUDA_ARCHS})
    list(APPEND flags "SHELL:-gencode arch=compute_${arch},code=sm_${arch}")
  endforeach()
  target_compile_options(fathom_${name}_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:${flags}>)
  # The launcher keeps ptxas' report of each object for tools/kernel_resources.py.
  set_target_properties(fathom_${name}_cuda PROPERTIES CUDA_STANDARD_REQUIRED OFF
    CUDA_COMPILER_LAUNCHER "${CMAKE_SOURCE_DIR}/tools/keep_ptxas_report;${CMAKE_CUDA_COMPILER_LAUNCHER}")
  add_dependencies(cuda_kernels fathom_${name}_cuda)
  target_link_libraries(fathom_${name} PUBLIC fathom_${name}_cuda)
  target_link_libraries(fathom_${name}_cuda PUBLIC CUDA::cudart_static)
  target_compile_definitions(fathom_${name} PUBLIC FATHOM_HAVE_CUDA=1)
endfunction()

# The checker and bench of the sparse attention kernels, run on a machine with a GPU (tools/gpu_attention/main.cpp).
function(fathom_gpu_attention)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tools/gpu_attention/*.cpp)
  add_executable(fathom_gpu_attention EXCLUDE_FROM_ALL ${sources} ${CMAKE_SOURCE_DIR}/tests/ops/sparse_attention_case.cpp)
  target_include_directories(fathom_gpu_attention PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  target_link_libraries(fathom_gpu_attention PRIVATE fathom_ops CUDA::cudart_static)
endfunction()

# The checker of sums over two GPUs and of steps that fail on one (tools/gpu_ranks/main.cpp).
function(fathom_gpu_ranks)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tools/gpu_ranks/*.cpp)
  add_executable(fathom_gpu_ranks EXCLUDE_FROM_ALL ${sources})
  target_link_libraries(fathom_gpu_ranks PRIVATE fathom_engine CUDA::cudart_static GTest::gtest)
endfunction()
