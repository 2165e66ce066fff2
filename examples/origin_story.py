#!/usr/bin/env python3
"""Writes two synthetic PyTorch profiler traces with the time shares of the measurement that fathom began with.

One GPU of an eight-GPU RTX PRO 6000 box decodes DeepSeek-V4-Flash (43 layers) with kernels that were not made for it:
sparse attention with one block for each query and head, products in FP32 without tensor cores, and everything around
them as single small kernels (the stream mixing alone iterates 20 times). docs/origin-story.md reads the traces.

  batch1.json.gz    63 % attention, 10 % FP32 products, 6 % copies, 2 % communication: 10 tokens/s
  batch16.json.gz   57.1 % attention, 8.8 % FP32 products, 8.2 % copies, 28 % small kernels in all: 24 tokens/s

usage: origin_story.py FOLDER
"""
import gzip
import json
import os
import sys

LAYERS, STEPS, HEADS, SMS = 43, 3, 64, 188
GAP = 0.02  # us between kernels

COPY = "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::direct_copy_kernel_cuda" \
       "(at::TensorIteratorBase&)::{lambda()#3}>(at::TensorIteratorBase&)>(int)"
SGEMM = "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_tn_align1>(cutlass_80_simt_sgemm_128x64_8x5_tn_align1::Params)"
# One round of the mixing of the residual streams, each operation a kernel of its own.
MIXING = ["void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::func_wrapper_t<float, sum_functor>>>(int)",
          "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float, float, float, "
          "at::native::binary_internal::DivFunctor<float>>, std::array<char*, 3ul>>(int)",
          "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctorOnSelf_add<float>, std::array<char*, 2ul>>(int)"]
SMALL = ["void rms_norm_kernel<c10::BFloat16>(c10::BFloat16*)", "_rotary_embedding_kernel", "_per_token_group_quant_fp8",
         "void silu_and_mul_kernel<c10::BFloat16>(c10::BFloat16*)"]


def layer(shares, batch):
    """The kernels of a layer in order: (group, name, grid, block, registers)."""
    def copies(n):
        return [("copy", COPY, [batch * 8, 1, 1], [128, 1, 1], 24)] * n

    def rounds():
        return [("glue", name, [batch, 1, 1], [512, 1, 1], 32) for _ in range(20) for name in MIXING]

    def product():
        return [("simt", SGEMM, [batch * 8, 32, 1], [128, 1, 1], 122)]

    attention = [("attention", "sparse_mla_decode_kernel", [batch, HEADS, 1], [128, 1, 1], 168)]
    small = [("glue", name, [batch * 2, 1, 1], [256, 1, 1], 40) for name in SMALL]
    experts = [("experts", "fused_moe_kernel", [192, 1, 1], [256, 1, 1], 128)] * 2
    reduce = [("communication", "void vllm::cross_device_reduce_1stage<c10::BFloat16, 8>(vllm::RankData*)", [36, 1, 1], [512, 1, 1], 40)]
    kernels = (rounds() + small[:1] + product() + small[:3] + copies(5) + attention + copies(10) + attention + copies(10) + small[1:3] +
               product() + reduce + rounds() + small[:1] + product() + small[2:] + experts + copies(5) + reduce)
    assert {group for group, *_ in kernels} == set(shares)
    return kernels


def trace(shares, batch, call_us):
    """`shares`: percent of each group; `call_us`: microseconds of one call of the attention kernel."""
    kernels = layer(shares, batch)
    calls = {group: sum(k[0] == group for k in kernels) for group in shares}
    total = call_us * calls["attention"] / shares["attention"] * 100
    duration = {group: round(total * shares[group] / 100 / calls[group], 3) for group in shares}
    events, at, correlation = [], 1000.0, 100
    for step in range(STEPS):
        events.append({"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "pid": 4242, "tid": 4242,
                       "ts": round(at - 200, 3), "dur": 50.0, "args": {"correlation": correlation}})
        for group, name, grid, block, registers in kernels * LAYERS:
            events.append({"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": round(at, 3), "dur": duration[group],
                           "args": {"device": 0, "stream": 7, "correlation": correlation, "grid": grid, "block": block,
                                    "registers per thread": registers, "shared memory": 0}})
            at += duration[group] + GAP
        at += 40.0  # the host samples and schedules
        correlation += 1
    device = {"id": 0, "name": "NVIDIA RTX PRO 6000 Blackwell Server Edition", "computeMajor": 12, "computeMinor": 0,
              "maxThreadsPerMultiprocessor": 1536, "regsPerMultiprocessor": 65536, "warpSize": 32,
              "sharedMemPerMultiprocessor": 102400, "numSms": SMS}
    return {"schemaVersion": 1, "deviceProperties": [device], "traceEvents": events}


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    # A call of 736 us with 64 blocks on 188 SMs; sixteen queries are 1,024 blocks, which is six times as many rounds.
    stories = {"batch1": ({"attention": 63.0, "simt": 10.0, "copy": 6.0, "glue": 15.0, "experts": 4.0, "communication": 2.0}, 1, 736.0),
               "batch16": ({"attention": 57.1, "simt": 8.8, "copy": 8.2, "glue": 19.8, "experts": 4.1, "communication": 2.0}, 16, 6 * 736.0)}
    for name, (shares, batch, call_us) in stories.items():
        with gzip.open(os.path.join(folder, name + ".json.gz"), "wt", compresslevel=4) as out:
            json.dump(trace(shares, batch, call_us), out)


if __name__ == "__main__":
    main()
