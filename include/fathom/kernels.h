/* C interface of fathom's kernels: raw pointers and a stream, nothing else. Library: libfathom_kernels.so.
 *
 * The CUDA runtime is linked in; the driver is used when it is there. No call allocates device memory, synchronises, or
 * keeps anything: the caller owns every buffer, and calls may be captured in CUDA graphs. Calls are thread-safe.
 * Pointers must be memory of the current device (or host memory, for the CPU device).
 *
 * Errors: every function returns a status, and fathom_last_error() gives one line about the last failure of this
 * thread.
 *
 * Growth: structs begin with their size. Set it to sizeof and zero the rest; a library that knows more fields takes
 * them as zero, one that knows fewer refuses a struct whose unknown fields are not zero. FATHOM_KERNELS_VERSION changes
 * when a program must be compiled again.
 */
#ifndef FATHOM_KERNELS_H
#define FATHOM_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FATHOM_KERNELS_VERSION 1

enum {
  FATHOM_OK = 0,
  FATHOM_BAD_ARGUMENT = 1, /* a null pointer, a size, a stride: see fathom_last_error() */
  FATHOM_UNSUPPORTED = 2,  /* valid, but no kernel of this library takes these shapes on this device */
  FATHOM_SMALL_WORKSPACE = 3,
  FATHOM_NO_GPU = 4,        /* no driver, no device, or a library without CUDA kernels */
  FATHOM_CUDA_ERROR = 5,    /* CUDA refused; a fault inside a kernel shows at a later call */
  FATHOM_INTERNAL_ERROR = 6 /* a bug: please report it */
};
typedef int32_t fathom_status;

/* FATHOM_KERNELS_VERSION of the library itself. */
int32_t fathom_kernels_version(void);
/* What the library was built from: "fathom 0.1.0, CUDA 13.0" or "fathom 0.1.0, no CUDA". */
const char* fathom_kernels_build(void);
/* A status in words. Never null. */
const char* fathom_status_text(fathom_status status);
/* The last failure of a call on this thread, or "". Valid until the next call on this thread. */
const char* fathom_last_error(void);

/* A device to plan for. sm_count, shared_bytes and compute_capability may be lowered to plan as a smaller GPU would. */
typedef struct fathom_device {
  size_t size;
  int32_t ordinal;            /* CUDA device, or FATHOM_CPU */
  int32_t compute_capability; /* 80, 89, 90, 120 ...; 0 on the CPU */
  int32_t sm_count;
  int32_t reserved;
  int64_t shared_bytes; /* most shared memory of a block */
  int64_t l2_bytes;
} fathom_device;

#define FATHOM_CPU (-1)

/* Fills *device (whose size must be set) for CUDA device `ordinal`, or for the CPU. */
fathom_status fathom_device_info(int32_t ordinal, fathom_device* device);

/* ---- Sparse MLA attention for decode
 * ----------------------------------------------------------------------------------
 *
 * For token t and head h, over the rows named by window.index[t] and extra.index[t]:
 *   s_r = scale * q[t,h] . kv_r;   o = sum_r softmax(s)_r kv_r, where exp(sink[h]) also enters the softmax's
 * denominator then, with `position`, the inverse RoPE of o[448:512]. K and V are the same 512-channel row, shared by
 * all heads. A token without rows gives o = 0 and lse = -inf. Results do not change from run to run, nor with other
 * tokens' data.
 */

/* Row formats. Page p of a pool starts at pool + p * page_stride (bytes) and holds page_rows rows.
 *   FATHOM_ROWS_V4    page_rows x 576 bytes (448 e4m3 codes, then 64 bf16), then page_rows x 8 bytes (7 e8m0 scales,
 * one for each 64 codes, and a pad byte); pages are usually padded to a multiple of 576 bytes FATHOM_ROWS_BF16
 * page_rows x 512 bf16
 */
enum { FATHOM_ROWS_V4 = 0, FATHOM_ROWS_BF16 = 1 };

/* Rows that each token may attend to. All null: none. This struct never grows. */
typedef struct fathom_row_set {
  const void* pool;    /* 16-byte aligned */
  int64_t page_stride; /* bytes from one page to the next, a multiple of 16 */
  int32_t page_rows;
  int32_t reserved;
  const int32_t* index; /* [tokens][most_rows]: page * page_rows + row in page, or -1: skipped */
  int64_t index_stride; /* elements from one token to the next */
  int64_t most_rows;
  const int32_t* length; /* [tokens]: how many leading elements of index[t] count; null: all most_rows */
} fathom_row_set;

typedef struct fathom_sparse_attention_args {
  size_t size;
  int64_t tokens, heads;
  const void* q;          /* bf16 [tokens][heads][512], 16-byte aligned rows */
  int64_t q_token_stride; /* elements */
  int64_t q_head_stride;
  int32_t row_format;
  int32_t queries_per_request; /* hint: so many consecutive tokens name the same slots in nearly all
                                  columns of their lists; 0 or 1 where each has a list of its own (top-k) */
  fathom_row_set window, extra;
  const float* sink; /* [heads], natural-log units; null: no sink */
  float scale;       /* of the scores: 512^-0.5 for DeepSeek-V4 */
  int32_t reserved;
  const int32_t* position;  /* [tokens]; null: no inverse RoPE */
  const float* rope_freq;   /* [32] base frequencies, with position */
  void* out;                /* bf16 [tokens][heads][512]; null when only codes are wanted */
  int64_t out_token_stride; /* elements */
  int64_t out_head_stride;
  float* lse;               /* [tokens][heads]: ln of the sum of exp(s), sink excluded; null: not written */
  int64_t lse_token_stride; /* elements */
  uint8_t* out_codes;       /* e4m3 [tokens][heads][512], dense: out quantised per 128 channels; null: not written */
  uint8_t* out_scale;       /* e8m0 [tokens][heads][4], dense, with out_codes */
  const char* variant; /* name of a kernel variant (fathom_sparse_attention_variant()); null: the best for the device */
} fathom_sparse_attention_args;

/* Name of variant i = 0, 1, ...; null past the last. "exact" gives a token the same bits alone and in any batch, the
 * others may divide its rows differently when the batch changes. */
const char* fathom_sparse_attention_variant(int32_t i);

/* Bytes of scratch memory that a call with these static shapes needs on this device (0: none): tokens, heads,
 * most_rows, format, strides and whether codes are wanted count, contents of index and length do not.
 *
 * The memory must be 256-byte aligned. Fill it with zeros once, when it is allocated. After that it serves any
 * sequence of calls, of any shapes for which it is large enough: its first part, some 27 MiB and never more than the
 * answer, holds counters and what blocks tell each other, and each call leaves it fit for the next one. Two
 * conditions: one call at a time (calls on one stream, or ordered by events; a captured graph counts as its calls),
 * and nobody else writes to the memory. After a call that failed on the device, fill it with zeros again. */
fathom_status fathom_sparse_attention_workspace(const fathom_sparse_attention_args* args, const fathom_device* device,
                                                size_t* bytes);

/* Launches on `stream` (a cudaStream_t; ignored on the CPU, where the work is done on return). */
fathom_status fathom_sparse_attention(const fathom_sparse_attention_args* args, const fathom_device* device,
                                      void* workspace, size_t workspace_bytes, void* stream);

#ifdef __cplusplus
}
#endif

#endif
