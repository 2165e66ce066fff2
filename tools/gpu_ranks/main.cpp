// fathom_gpu_ranks: checks sums over two GPUs and steps of a model divided over them, failures included. A machine with
// two GPUs of one kind is needed, and models/fairy in the present folder.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstdio>

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count < 2) {
    std::fprintf(stderr, "fathom_gpu_ranks: two GPUs are needed, %d found\n", count);
    return 2;
  }
  return RUN_ALL_TESTS();
}
