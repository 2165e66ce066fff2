/* A C program over the C interface, on the CPU: two rows, a query of zeros, so the output is their average. */
#include <fathom/kernels.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static int failures = 0;

static void expect(int condition, const char* what) {
  if (condition) return;
  printf("FAILED: %s (last error: %s)\n", what, fathom_last_error());
  ++failures;
}

int main(void) {
  static uint16_t q[512], rows[2][512], out[512];
  static float lse[1];
  static const int32_t index[3] = {1, -1, 0};
  fathom_device device;
  fathom_sparse_attention_args args;
  size_t bytes = 123;
  int i;
  expect(fathom_kernels_version() == FATHOM_KERNELS_VERSION, "header and library have one version");
  memset(&device, 0, sizeof device);
  device.size = sizeof device;
  expect(fathom_device_info(FATHOM_CPU, &device) == FATHOM_OK, "the CPU is a device");
  for (i = 0; i < 512; ++i) rows[0][i] = 0x3F80, rows[1][i] = 0x4040, out[i] = 0xFFFF; /* 1 and 3 in bf16 */
  memset(&args, 0, sizeof args);
  args.size = sizeof args;
  args.tokens = 1, args.heads = 1;
  args.q = q, args.q_token_stride = 512, args.q_head_stride = 512;
  args.row_format = FATHOM_ROWS_BF16;
  args.window.pool = rows, args.window.page_stride = sizeof rows, args.window.page_rows = 2;
  args.window.index = index, args.window.index_stride = 3, args.window.most_rows = 3;
  args.scale = 0.044194174f;
  args.out = out, args.out_token_stride = 512, args.out_head_stride = 512;
  args.lse = lse, args.lse_token_stride = 1;
  expect(fathom_sparse_attention_workspace(&args, &device, &bytes) == FATHOM_OK, "workspace query");
  expect(bytes != 123, "the query answers");
  expect(bytes == 0 && fathom_sparse_attention(&args, &device, NULL, 0, NULL) == FATHOM_OK, "attention runs");
  for (i = 0; i < 512; ++i) expect(out[i] == 0x4000, "the output is 2 everywhere");
  expect(fabsf(lse[0] - 0.69314718f) < 1e-5f, "lse is ln 2");
  printf("%s: %s\n", fathom_kernels_build(), failures ? "FAILED" : "ok");
  return failures != 0;
}
