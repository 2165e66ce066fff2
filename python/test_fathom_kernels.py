#!/usr/bin/env python3
"""Tests of fathom_kernels.py: the ctypes layer everywhere, the torch functions against float64 where torch sees a GPU.

usage: test_fathom_kernels.py [--library PATH] [unittest arguments]
"""
import ctypes
import math
import os
import struct
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import fathom_kernels as fk

LIBRARY = None


def gpu_torch():
    try:
        import torch
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


class Ctypes(unittest.TestCase):
    """What needs neither torch nor a GPU."""

    def setUp(self):
        self.library = fk.load(LIBRARY)

    def small(self):
        """One token, one head, bf16 rows of ones and of threes."""
        rows = struct.pack("<512H", *[0x3F80] * 512) + struct.pack("<512H", *[0x4040] * 512)
        raw = ctypes.create_string_buffer(rows + bytes(16 * 2 + 16), len(rows) + 48)
        self.pool = raw
        self.q = (ctypes.c_uint16 * 512)()
        self.out = (ctypes.c_uint16 * 512)(*[0xFFFF] * 512)
        self.lse = (ctypes.c_float * 1)()
        self.index = (ctypes.c_int32 * 3)(1, -1, 0)
        at = ctypes.addressof
        window = fk.RowSet(pool=at(raw), page_stride=2048, page_rows=2, index=at(self.index), index_stride=3, most_rows=3)
        return fk.SparseAttentionArgs(
            size=ctypes.sizeof(fk.SparseAttentionArgs), tokens=1, heads=1, q=at(self.q), q_token_stride=512, q_head_stride=512,
            row_format=fk.ROWS_BF16, window=window, scale=512 ** -0.5, out=at(self.out), out_token_stride=512,
            out_head_stride=512, lse=at(self.lse), lse_token_stride=1)

    def test_attention_on_the_cpu_averages_two_rows(self):
        self.library.sparse_attention(self.small(), self.library.device(fk.CPU))
        self.assertEqual(set(self.out), {0x4000})
        self.assertAlmostEqual(self.lse[0], math.log(2), places=5)

    def test_a_refusal_carries_the_librarys_words(self):
        args = self.small()
        args.scale = 0
        with self.assertRaisesRegex(fk.KernelError, "scale is 0") as caught:
            self.library.sparse_attention(args, self.library.device(fk.CPU))
        self.assertEqual(caught.exception.status, 1)

    def test_lists_variants_and_build(self):
        self.assertEqual(self.library.variants()[0], "ref")
        self.assertIn("fathom", self.library.build())

    def test_a_missing_library_is_named(self):
        with self.assertRaisesRegex(ImportError, "nowhere.so"):
            fk.load("/nonexistent/nowhere.so")


@unittest.skipUnless(gpu_torch(), "torch with a GPU is not here")
class Torch(unittest.TestCase):
    """The torch functions on the GPU, against attention in float64 on the same tensors."""

    @classmethod
    def setUpClass(cls):
        cls.torch = gpu_torch()
        fk.load(LIBRARY)
        cls.generator = cls.torch.Generator(device="cuda").manual_seed(int.from_bytes(os.urandom(4), "little"))
        print("seed", cls.generator.initial_seed(), file=sys.stderr)

    def cache(self, pages, page_rows):
        """A cache of V4 rows as SGLang and FlashMLA hold it, and its rows in float64."""
        torch, g = self.torch, self.generator
        page_bytes = (page_rows * 584 + 575) // 576 * 576
        raw = torch.randint(0, 256, (pages, page_bytes), dtype=torch.uint8, device="cuda", generator=g)
        data = raw[:, : page_rows * 576].view(pages, page_rows, 576)
        scales = raw[:, page_rows * 576: page_rows * 584].view(pages, page_rows, 8)
        codes = (torch.randn(pages, page_rows, 448, device="cuda", generator=g) * 100).clamp(-448, 448).to(torch.float8_e4m3fn)
        rope = torch.randn(pages, page_rows, 64, device="cuda", generator=g).to(torch.bfloat16)
        exponents = torch.randint(119, 122, (pages, page_rows, 7), device="cuda", generator=g).to(torch.uint8)
        data[..., :448] = codes.view(torch.uint8)
        data[..., 448:] = rope.view(torch.uint8)
        scales[..., :7] = exponents
        values = torch.cat([codes.double() * torch.exp2(exponents.double() - 127).repeat_interleave(64, dim=2),
                            rope.double()], dim=2).view(pages * page_rows, 512)
        cache = raw.as_strided((pages, page_rows, 1, 584), (page_bytes, 584, 584, 1)).view(torch.float8_e4m3fn)
        return cache, values

    def bf16_cache(self, pages, page_rows):
        cache = self.torch.randn(pages, page_rows, 1, 512, device="cuda", generator=self.generator).to(self.torch.bfloat16)
        return cache, cache.double().view(-1, 512)

    def indices(self, *shape, rows, masked=0.1):
        torch, g = self.torch, self.generator
        index = torch.randint(0, rows, shape, dtype=torch.int32, device="cuda", generator=g)
        return torch.where(torch.rand(shape, device="cuda", generator=g) < masked, -1, index).to(torch.int32)

    def reference(self, q, parts, sink):
        """parts: (rows [R, 512] float64, indices [B, S, N], lengths [B] or None). Returns out and lse without the sink."""
        torch = self.torch
        batch, queries, heads, _ = q.shape
        out = torch.zeros(q.shape, dtype=torch.float64, device="cuda")
        lse = torch.full((batch, queries, heads), -math.inf, dtype=torch.float64, device="cuda")
        for b in range(batch):
            for s in range(queries):
                chosen = []
                for rows, index, length in parts:
                    picked = index[b, s][: int(length[b])] if length is not None else index[b, s]
                    chosen.append(rows[picked[picked >= 0].long()])
                kv = torch.cat(chosen)
                if len(kv) == 0:
                    continue
                score = q[b, s].double() @ kv.T * 512 ** -0.5
                lse[b, s] = score.logsumexp(1)
                total = lse[b, s] if sink is None else torch.logaddexp(lse[b, s], sink.double())
                out[b, s] = torch.exp(score - total[:, None]) @ kv
        return out, lse

    def agrees(self, out, lse, want_out, want_lse):
        torch = self.torch
        error = (out.double() - want_out).norm() / want_out.norm().clamp_min(1e-30)
        self.assertLessEqual(float(error), 1.75e-3)
        self.assertFalse(torch.isnan(out).any() or torch.isnan(lse).any())
        finite = torch.isfinite(want_lse)
        self.assertTrue(torch.equal(torch.isfinite(lse), finite))
        self.assertLess(float((lse.double() - want_lse)[finite].abs().max() if finite.any() else 0), 2e-3)
        return float(error)

    def q(self, batch, queries, heads):
        return self.torch.randn(batch, queries, heads, 512, device="cuda", generator=self.generator).to(self.torch.bfloat16)

    def sink(self, heads):
        return self.torch.randn(heads, device="cuda", generator=self.generator)

    def test_sglang_arguments(self):
        torch = self.torch
        for batch, heads, page, extra_page, rows, extra in [(1, 64, 256, 64, 128, 512), (5, 64, 256, 2, 128, 1024), (3, 16, 64, 7, 37, 5),
                                                            (2, 128, 256, 64, 128, 512), (7, 8, 1, 64, 1, 100)]:
            with self.subTest(batch=batch, heads=heads, rows=rows, extra=extra):
                q, sink = self.q(batch, 1, heads), self.sink(heads)
                k, k_rows = self.cache(5, page)
                e, e_rows = self.cache(40, extra_page)
                index, extra_index = self.indices(batch, 1, rows, rows=len(k_rows)), self.indices(batch, 1, extra, rows=len(e_rows))
                length = torch.randint(0, rows + 1, (batch,), dtype=torch.int32, device="cuda", generator=self.generator)
                out, lse = fk.flash_mla_sparse_decode(q, k, index, length, sink, 512, None, e, extra_index, None)
                want, want_lse = self.reference(q, [(k_rows, index, length), (e_rows, extra_index, None)], sink)
                self.assertEqual(tuple(lse.shape), (batch, heads, 1))
                self.agrees(out, lse[:, :, 0][:, None], want, torch.logaddexp(want_lse, sink.double().view(1, 1, -1)))

    def test_flashmla_arguments_with_several_tokens_a_request(self):
        torch = self.torch
        batch, queries, heads = 3, 6, 64
        q, sink = self.q(batch, queries, heads), self.sink(heads)
        k, k_rows = self.cache(6, 256)
        e, e_rows = self.cache(30, 64)
        index, extra_index = self.indices(batch, queries, 128, rows=len(k_rows)), self.indices(batch, queries, 512, rows=len(e_rows))
        length = torch.tensor([0, 77, 128], dtype=torch.int32, device="cuda")
        extra_length = torch.tensor([0, 512, 3], dtype=torch.int32, device="cuda")
        out, lse = fk.flash_mla_with_kvcache(q, k, None, None, 512, None, None, None, False, True, index, sink, e, extra_index,
                                             length, extra_length)
        want, want_lse = self.reference(q, [(k_rows, index, length), (e_rows, extra_index, extra_length)], sink)
        self.assertEqual(tuple(lse.shape), (batch, heads, queries))
        self.assertTrue(torch.isposinf(lse[0]).all(), "a request without rows has lse +inf, as in FlashMLA")
        self.assertEqual(float(out[0].abs().max()), 0)
        self.agrees(out, lse.permute(0, 2, 1), want, torch.where(torch.isneginf(want_lse), math.inf, want_lse))

    def test_bf16_rows_and_no_sink(self):
        q = self.q(2, 1, 32)
        k, rows = self.bf16_cache(4, 64)
        index = self.indices(2, 1, 100, rows=len(rows))
        out, lse = fk.flash_mla_with_kvcache(q, k, is_fp8_kvcache=False, indices=index)
        want, want_lse = self.reference(q, [(rows, index, None)], None)
        self.agrees(out, lse.permute(0, 2, 1), want, want_lse)

    def test_strided_queries_and_every_variant(self):
        wide = self.q(4, 1, 96)
        q = wide[:, :, 16:80]
        k, rows = self.cache(4, 256)
        index = self.indices(4, 1, 128, rows=len(rows))
        want, want_lse = self.reference(q, [(rows, index, None)], None)
        ran = []
        for variant in [None] + fk.load().variants():
            try:
                out, lse = fk.flash_mla_sparse_decode(q, k, index, None, None, 512, None, variant=variant)
            except fk.KernelError as refused:  # CPU variants, and those of other GPUs
                self.assertIn(refused.status, (1, 2))
                continue
            ran.append(variant)
            self.agrees(out, lse.permute(0, 2, 1), want, want_lse)
        self.assertGreaterEqual(len(ran), 2)

    def test_replays_in_a_cuda_graph_with_new_contents(self):
        torch = self.torch
        q = self.q(2, 1, 64)
        k, rows = self.cache(4, 256)
        index = self.indices(2, 1, 640, rows=len(rows))
        call = lambda: fk.flash_mla_sparse_decode(q, k, index, None, None, 512, None)
        call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out, lse = call()
        for _ in range(3):
            q.copy_(self.q(2, 1, 64))
            index.copy_(self.indices(2, 1, 640, rows=len(rows)))
            graph.replay()
            want, want_lse = self.reference(q, [(rows, index, None)], None)
            self.agrees(out, lse.permute(0, 2, 1), want, want_lse)

    def test_the_same_inputs_give_the_same_bits(self):
        q = self.q(9, 1, 64)
        k, rows = self.cache(4, 256)
        index = self.indices(9, 1, 640, rows=len(rows))
        first = fk.flash_mla_sparse_decode(q, k, index, None, None, 512, None)
        for _ in range(5):
            again = fk.flash_mla_sparse_decode(q, k, index, None, None, 512, None)
            self.assertTrue(self.torch.equal(first[0], again[0]) and self.torch.equal(first[1], again[1]))

    def test_an_empty_batch(self):
        k, _ = self.cache(1, 64)
        out, _ = fk.flash_mla_sparse_decode(self.q(0, 1, 64), k, self.indices(0, 1, 8, rows=64), None, None, 512, None)
        self.assertEqual(tuple(out.shape), (0, 1, 64, 512))

    def test_wrong_tensors_are_named(self):
        torch = self.torch
        q = self.q(2, 1, 64)
        k, rows = self.cache(4, 256)
        index = self.indices(2, 1, 128, rows=len(rows))
        sink = self.sink(64)
        good = dict(q=q, k_cache=k, indices=index, topk_length=None, attn_sink=sink, head_dim_v=512, softmax_scale=None)
        for text, change in [
                ("q has dtype", dict(q=q.float())), ("q is on cpu", dict(q=q.cpu())), ("one token", dict(q=self.q(2, 2, 64))),
                ("q has shape", dict(q=self.q(2, 1, 64)[..., :256])), ("head_dim_v", dict(head_dim_v=576)),
                ("k_cache has dtype", dict(k_cache=k.view(torch.uint8).to(torch.int32))),
                ("rows of 656", dict(k_cache=torch.zeros(2, 64, 1, 656, dtype=torch.uint8, device="cuda"))),
                ("k_cache has shape", dict(k_cache=k[:, :, 0])), ("k_cache is on cpu", dict(k_cache=k.view(torch.uint8).cpu())),
                ("indices has dtype", dict(indices=index.long())), ("indices has shape", dict(indices=index[:1])),
                ("topk_length has", dict(topk_length=torch.zeros(3, dtype=torch.int32, device="cuda"))),
                ("topk_length has dtype", dict(topk_length=torch.zeros(2, device="cuda"))),
                ("attn_sink", dict(attn_sink=sink[:32])), ("go together", dict(extra_k_cache=k)),
                ("different formats", dict(extra_k_cache=self.bf16_cache(1, 64)[0], extra_indices=index)),
                ("out must be", dict(out=torch.empty(2, 1, 64, 512, device="cuda")))]:
            with self.subTest(text), self.assertRaisesRegex(ValueError, text):
                fk.flash_mla_sparse_decode(**{**good, **change})
        with self.assertRaisesRegex(ValueError, "causal"):
            fk.flash_mla_with_kvcache(q, k, indices=index, causal=True)
        with self.assertRaisesRegex(ValueError, "is_fp8_kvcache"):
            fk.flash_mla_with_kvcache(q, k, indices=index, is_fp8_kvcache=False)
        with self.assertRaisesRegex(fk.KernelError, "no variant"):
            fk.flash_mla_sparse_decode(**good, variant="fastest")


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if "--library" in arguments:
        at = arguments.index("--library")
        LIBRARY = arguments[at + 1]
        del arguments[at: at + 2]
    unittest.main(argv=[sys.argv[0], *arguments])
