"""fathom's sparse MLA decode attention for PyTorch, through the C interface of libfathom_kernels.so (ctypes, no build step).

Two functions take the tensors that other libraries' functions take, so that a call can be swapped:

    flash_mla_sparse_decode(...)   SGLang's flash_mla_sparse_decode_triton
    flash_mla_with_kvcache(...)    FlashMLA's flash_mla_with_kvcache in its sparse FP8 form

Both run one fused kernel: window and selected rows, sink and combination of splits included. They run on the current
stream, may be captured in CUDA graphs (warm up once before), allocate only their outputs (and scratch memory, when what a
stream has is too small), and do not synchronise. Deterministic: the same inputs give the same bits.

Importing this module needs neither torch nor a GPU; torch is imported by the first call of the functions above.
"""

import ctypes
import os
from pathlib import Path

ABI_VERSION = 1
CPU = -1
ROWS_V4, ROWS_BF16 = 0, 1
HEAD_DIM = 512
V4_ROW_BYTES = 584  # 448 e4m3, 64 bf16, 7 e8m0 scales and a pad byte

__all__ = ["KernelError", "Library", "load", "flash_mla_sparse_decode", "flash_mla_with_kvcache"]


class KernelError(RuntimeError):
    """A call that the library refused; `status` is its number in kernels.h."""

    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


class Device(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t), ("ordinal", ctypes.c_int32), ("compute_capability", ctypes.c_int32),
        ("sm_count", ctypes.c_int32), ("reserved", ctypes.c_int32), ("shared_bytes", ctypes.c_int64),
        ("l2_bytes", ctypes.c_int64)]


class RowSet(ctypes.Structure):
    _fields_ = [
        ("pool", ctypes.c_void_p), ("page_stride", ctypes.c_int64), ("page_rows", ctypes.c_int32),
        ("reserved", ctypes.c_int32), ("index", ctypes.c_void_p), ("index_stride", ctypes.c_int64),
        ("most_rows", ctypes.c_int64), ("length", ctypes.c_void_p)]


class SparseAttentionArgs(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t), ("tokens", ctypes.c_int64), ("heads", ctypes.c_int64), ("q", ctypes.c_void_p),
        ("q_token_stride", ctypes.c_int64), ("q_head_stride", ctypes.c_int64), ("row_format", ctypes.c_int32),
        ("queries_per_request", ctypes.c_int32), ("window", RowSet), ("extra", RowSet), ("sink", ctypes.c_void_p),
        ("scale", ctypes.c_float), ("reserved", ctypes.c_int32), ("position", ctypes.c_void_p),
        ("rope_freq", ctypes.c_void_p), ("out", ctypes.c_void_p), ("out_token_stride", ctypes.c_int64),
        ("out_head_stride", ctypes.c_int64), ("lse", ctypes.c_void_p), ("lse_token_stride", ctypes.c_int64),
        ("out_codes", ctypes.c_void_p), ("out_scale", ctypes.c_void_p), ("variant", ctypes.c_char_p)]


class Library:
    """The loaded library; methods raise KernelError with its one-line message."""

    def __init__(self, path):
        self.path = str(path)
        self._c = ctypes.CDLL(self.path)
        for name in ("fathom_kernels_build", "fathom_last_error", "fathom_status_text", "fathom_sparse_attention_variant"):
            getattr(self._c, name).restype = ctypes.c_char_p
        version = self._c.fathom_kernels_version()
        if version != ABI_VERSION:
            raise ImportError(f"{self.path} has interface version {version}, this module is made for {ABI_VERSION}")
        attention = ctypes.POINTER(SparseAttentionArgs), ctypes.POINTER(Device)
        self._c.fathom_device_info.argtypes = [ctypes.c_int32, ctypes.POINTER(Device)]
        self._c.fathom_sparse_attention_workspace.argtypes = [*attention, ctypes.POINTER(ctypes.c_size_t)]
        self._c.fathom_sparse_attention.argtypes = [*attention, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
        self._devices = {}

    def _check(self, status):
        if status != 0:
            text = self._c.fathom_last_error().decode(errors="replace")
            raise KernelError(status, text or self._c.fathom_status_text(status).decode())

    def build(self):
        return self._c.fathom_kernels_build().decode()

    def variants(self):
        """Names of the attention variants, the reference first."""
        names, i = [], 0
        while (name := self._c.fathom_sparse_attention_variant(i)) is not None:
            names.append(name.decode())
            i += 1
        return names

    def device(self, ordinal):
        """The Device of a CUDA ordinal, or of CPU; asked for once."""
        if ordinal not in self._devices:
            device = Device(size=ctypes.sizeof(Device))
            self._check(self._c.fathom_device_info(ordinal, ctypes.byref(device)))
            self._devices[ordinal] = device
        return self._devices[ordinal]

    def workspace_bytes(self, args, device):
        size = ctypes.c_size_t()
        self._check(self._c.fathom_sparse_attention_workspace(ctypes.byref(args), ctypes.byref(device), ctypes.byref(size)))
        return size.value

    def sparse_attention(self, args, device, workspace=None, workspace_bytes=0, stream=None):
        """args: SparseAttentionArgs with raw addresses; workspace and stream: addresses as int, or None."""
        self._check(self._c.fathom_sparse_attention(
            ctypes.byref(args), ctypes.byref(device), workspace, workspace_bytes, stream))


_loaded = None


def load(path=None):
    """Loads libfathom_kernels.so, once. Without a path: beside this file, then below build/ of the repository, the newest
    first, then where the system's loader looks. Returns the Library."""
    global _loaded
    if _loaded is not None and (path is None or os.path.abspath(path) == os.path.abspath(_loaded.path)):
        return _loaded
    if path is None:
        here = Path(__file__).resolve().parent
        found = [p for p in [here / "libfathom_kernels.so"] if p.is_file()]
        found += sorted(here.parent.glob("build/*/lib/libfathom_kernels.so"), key=lambda p: -p.stat().st_mtime)
        path = found[0] if found else "libfathom_kernels.so"
    try:
        _loaded = Library(path)
    except OSError as error:
        raise ImportError(f"cannot load {path}: {error}; build the target fathom_kernels or pass its path to load()") from None
    return _loaded


# Torch side ---------------------------------------------------------------------------------------------------------------


def _torch():
    import torch
    return torch


def _need(condition, text):
    if not condition:
        raise ValueError(text)


def _shape(t):
    return "x".join(str(n) for n in t.shape)


def _cache(name, cache, device):
    """(RowSet without index, row format) of a cache [pages, page_rows, 1, width]."""
    torch = _torch()
    _need(cache.dim() == 4 and cache.shape[2] == 1,
          f"{name} has shape {_shape(cache)}; expected [pages, page_rows, 1, {V4_ROW_BYTES}] bytes or [..., {HEAD_DIM}] bf16")
    _need(cache.device == device, f"{name} is on {cache.device}, q on {device}")
    pages, page_rows, _, width = cache.shape
    _need(page_rows >= 1, f"{name} has pages without rows")
    if cache.dtype == torch.bfloat16:
        _need(width == HEAD_DIM, f"{name} is bf16 with {width} channels, expected {HEAD_DIM}")
        _need(page_rows == 1 or cache.stride(1) == HEAD_DIM, f"{name}: rows of a bf16 page must be contiguous")
        row_format, row_bytes = ROWS_BF16, 2 * HEAD_DIM
    else:
        bytes_types = [torch.uint8, torch.int8] + [getattr(torch, n) for n in ("float8_e4m3fn",) if hasattr(torch, n)]
        _need(cache.dtype in bytes_types, f"{name} has dtype {cache.dtype}, expected uint8, int8, float8_e4m3fn or bfloat16")
        _need(width == V4_ROW_BYTES, f"{name} has rows of {width} bytes, expected {V4_ROW_BYTES} (DeepSeek-V4)")
        row_format, row_bytes = ROWS_V4, V4_ROW_BYTES
    page_stride = cache.stride(0) * cache.element_size() if pages > 1 else max(
        cache.stride(0) * cache.element_size(), row_bytes * page_rows)
    page_stride = (page_stride + 15) // 16 * 16 if pages <= 1 else page_stride
    _need(page_stride >= row_bytes * page_rows, f"{name}: stride(0) is {page_stride} bytes, a page needs {row_bytes * page_rows}")
    _need(page_stride % 16 == 0, f"{name}: stride(0) is {page_stride} bytes, a multiple of 16 is needed")
    _need(cache.data_ptr() % 16 == 0, f"{name} is not 16-byte aligned")
    return RowSet(pool=cache.data_ptr(), page_stride=page_stride, page_rows=page_rows), row_format


def _rows(name, cache, indices, length, batch, queries, device, keep):
    """The RowSet of one cache with its indices [batch, queries, most]. `keep` holds temporaries until the launch."""
    torch = _torch()
    rows, row_format = _cache(f"{name}k_cache", cache, device)
    _need(indices.dtype == torch.int32, f"{name}indices has dtype {indices.dtype}, expected int32")
    _need(indices.device == device, f"{name}indices is on {indices.device}, q on {device}")
    _need(indices.dim() in (2, 3) and indices.shape[0] == batch,
          f"{name}indices has shape {_shape(indices)}, expected [{batch}, {queries}, rows]")
    if indices.dim() == 2:
        _need(queries == 1, f"{name}indices has shape {_shape(indices)}, but q has {queries} tokens a request")
        indices = indices.unsqueeze(1)
    _need(indices.shape[1] == queries, f"{name}indices has shape {_shape(indices)}, expected [{batch}, {queries}, rows]")
    flat = indices.reshape(batch * queries, indices.shape[2])
    if flat.shape[1] > 1 and flat.stride(1) != 1:
        flat = flat.contiguous()
    rows.index, rows.index_stride, rows.most_rows = flat.data_ptr(), max(flat.stride(0), flat.shape[1]), flat.shape[1]
    if flat.numel() == 0:  # no rows at all: a null pointer is not an index
        rows = RowSet()
    keep.append(flat)
    if length is not None and flat.numel() > 0:
        _need(length.dtype == torch.int32, f"{name}topk_length has dtype {length.dtype}, expected int32")
        _need(length.device == device, f"{name}topk_length is on {length.device}, q on {device}")
        _need(length.numel() == batch, f"{name}topk_length has {length.numel()} elements, expected {batch}")
        per_token = length.reshape(batch)
        per_token = per_token.repeat_interleave(queries, output_size=batch * queries) if queries > 1 else per_token.contiguous()
        rows.length = per_token.data_ptr()
        keep.append(per_token)
    return rows, row_format


_workspaces = {}


def _workspace(library, args, device, torch_device, stream):
    """(address, bytes, tensor) of scratch memory, zeroed when it is made. One for each stream serves all shapes."""
    torch = _torch()
    needed = library.workspace_bytes(args, device)
    if needed == 0:
        return None, 0, None
    if torch.cuda.is_current_stream_capturing():  # memory of the graph, zeroed in every replay
        memory = torch.zeros(needed, dtype=torch.uint8, device=torch_device)
        return memory.data_ptr(), needed, memory
    memory = _workspaces.get((torch_device.index, stream))
    if memory is None or memory.numel() < needed:
        if len(_workspaces) >= 64:  # streams come and go; the allocator keeps the order of the stream
            _workspaces.pop(next(iter(_workspaces)))
        memory = _workspaces[torch_device.index, stream] = torch.zeros(needed, dtype=torch.uint8, device=torch_device)
    return memory.data_ptr(), needed, memory


def _attend(q, window, extra, sink, scale, position, rope_freq, out, variant, row_formats, keep):
    """q [batch, queries, heads, 512] -> (out of the same shape, lse [batch, queries, heads])."""
    torch = _torch()
    library = load()
    batch, queries, heads, _ = q.shape
    _need(len(set(row_formats)) == 1, "k_cache and extra_k_cache hold rows of different formats")
    flat = q.reshape(batch * queries, heads, HEAD_DIM)
    if flat.stride(2) != 1 or flat.stride(1) % 8 or flat.stride(0) % 8 or flat.data_ptr() % 16:
        flat = flat.contiguous()
    keep.append(flat)
    if out is None:
        out = torch.empty(batch, queries, heads, HEAD_DIM, dtype=torch.bfloat16, device=q.device)
    else:
        _need(out.shape == q.shape and out.dtype == torch.bfloat16 and out.device == q.device and out.is_contiguous(),
              f"out must be a contiguous bf16 tensor of shape {_shape(q)} on {q.device}")
    lse = torch.empty(batch, queries, heads, dtype=torch.float32, device=q.device)
    args = SparseAttentionArgs(
        size=ctypes.sizeof(SparseAttentionArgs), tokens=batch * queries, heads=heads, q=flat.data_ptr(),
        q_token_stride=max(flat.stride(0), HEAD_DIM), q_head_stride=max(flat.stride(1), HEAD_DIM), row_format=row_formats[0],
        queries_per_request=1,  # each token has a list of its own
        window=window, extra=extra, scale=scale, out=out.data_ptr(),
        out_token_stride=heads * HEAD_DIM, out_head_stride=HEAD_DIM, lse=lse.data_ptr(), lse_token_stride=heads,
        variant=variant.encode() if variant else None)
    if sink is not None:
        _need(sink.dtype == torch.float32 and sink.numel() == heads and sink.is_contiguous() and sink.device == q.device,
              f"attn_sink must be {heads} contiguous float32 on {q.device}")
        args.sink = sink.data_ptr()
    if position is not None:
        _need(position.dtype == torch.int32 and position.numel() == batch * queries and position.device == q.device,
              f"position must be {batch * queries} int32 on {q.device}")
        _need(rope_freq is not None and rope_freq.dtype == torch.float32 and rope_freq.numel() == 32 and
              rope_freq.device == q.device, f"rope_freq must be 32 float32 on {q.device}")
        position, rope_freq = position.contiguous(), rope_freq.contiguous()
        keep += [position, rope_freq]
        args.position, args.rope_freq = position.data_ptr(), rope_freq.data_ptr()
    if batch * queries == 0:
        return out, lse
    with torch.cuda.device(q.device):
        stream = torch.cuda.current_stream(q.device).cuda_stream
        device = library.device(q.device.index if q.device.index is not None else torch.cuda.current_device())
        address, size, memory = _workspace(library, args, device, q.device, stream)
        keep.append(memory)
        library.sparse_attention(args, device, address, size, stream)
    return out, lse


def _check_q(q):
    torch = _torch()
    _need(q.dtype == torch.bfloat16, f"q has dtype {q.dtype}, expected bfloat16")
    _need(q.device.type == "cuda", f"q is on {q.device}, expected a GPU")
    _need(q.dim() == 4 and q.shape[3] == HEAD_DIM, f"q has shape {_shape(q)}, expected [batch, tokens, heads, {HEAD_DIM}]")


def flash_mla_sparse_decode(q, k_cache, indices, topk_length, attn_sink, head_dim_v, softmax_scale, extra_k_cache=None,
                            extra_indices=None, extra_topk_length=None, *, position=None, rope_freq=None, out=None,
                            variant=None):
    """Sparse decode attention with the arguments of SGLang's flash_mla_sparse_decode_triton.

    q                 [B, 1, H, 512] bf16, H from 1 to 128. Any strides whose last dimension is contiguous.
    k_cache           window rows [pages, page_rows, 1, 584], uint8 / int8 / float8_e4m3fn, stride(0) = bytes of a page: 576
                      data bytes a row, then 8 scale bytes a row (layout of FlashMLA's MODEL1, "fp8_ds_mla"); any page_rows.
                      Or [pages, page_rows, 1, 512] bf16.
    indices           [B, 1, N] or [B, N] int32: page * page_rows + row, -1 = masked.
    topk_length       [B] int32: how many leading indices count; None: all N.
    attn_sink         [H] float32, natural-log units; None: no sink.
    head_dim_v        must be 512.
    softmax_scale     None: 512^-0.5.
    extra_k_cache     compressed rows (C4 or C128), same format, own page_rows; None: no such rows.
    extra_indices     as indices, for extra_k_cache.
    extra_topk_length as topk_length.
    position          [B] int32: applies the inverse RoPE at this position to the last 64 channels (not in SGLang's call).
    rope_freq         [32] float32 base frequencies, with position.
    out               where to put the result; None: a new tensor.
    variant           name of a kernel variant (load().variants()); None: the fastest. "exact" gives a token the same bits
                      alone and in any batch.

    Returns (out [B, 1, H, 512] bf16, lse [B, H, 1] float32). As in SGLang, lse includes the sink when there is one. Requests
    without rows give zeros, and lse = the sink (or -inf).
    """
    torch = _torch()
    _check_q(q)
    _need(q.shape[1] == 1, f"q has shape {_shape(q)}, expected one token a request (use flash_mla_with_kvcache for more)")
    _need(head_dim_v == HEAD_DIM, f"head_dim_v is {head_dim_v}, expected {HEAD_DIM}")
    _need((extra_k_cache is None) == (extra_indices is None), "extra_k_cache and extra_indices go together")
    keep, formats = [], []
    window, row_format = _rows("", k_cache, indices, topk_length, q.shape[0], 1, q.device, keep)
    formats.append(row_format)
    extra = RowSet()
    if extra_k_cache is not None:
        extra, row_format = _rows("extra_", extra_k_cache, extra_indices, extra_topk_length, q.shape[0], 1, q.device, keep)
        formats.append(row_format)
    scale = HEAD_DIM ** -0.5 if softmax_scale is None else softmax_scale
    out, lse = _attend(q, window, extra, attn_sink, scale, position, rope_freq, out, variant, formats, keep)
    if attn_sink is not None:
        lse = torch.logaddexp(lse, attn_sink.view(1, 1, -1))
    return out, lse.permute(0, 2, 1)


def flash_mla_with_kvcache(q, k_cache, block_table=None, cache_seqlens=None, head_dim_v=HEAD_DIM, tile_scheduler_metadata=None,
                           num_splits=None, softmax_scale=None, causal=False, is_fp8_kvcache=True, indices=None, attn_sink=None,
                           extra_k_cache=None, extra_indices_in_kvcache=None, topk_length=None, extra_topk_length=None, *,
                           out=None, variant=None):
    """Sparse decode attention with the arguments of FlashMLA's flash_mla_with_kvcache (sparse form, DeepSeek-V4 rows).

    q                        [B, S, H, 512] bf16, S tokens a request (1, or several when drafts are verified), H 1 to 128.
    k_cache                  as in flash_mla_sparse_decode.
    block_table              must be None (indices name rows directly), as in FlashMLA's sparse form.
    cache_seqlens            must be None.
    head_dim_v               must be 512.
    tile_scheduler_metadata  ignored: no scheduler state is needed. Anything, also None, may be passed.
    num_splits               must be None, as in FlashMLA.
    softmax_scale            None: 512^-0.5.
    causal                   must be False, as in FlashMLA's sparse form: indices say what a token sees.
    is_fp8_kvcache           must be True for 584-byte rows; False goes with a bf16 cache.
    indices                  [B, S, N] int32, -1 = masked.
    attn_sink                [H] float32; None: no sink.
    extra_k_cache, extra_indices_in_kvcache   a second cache of the same row format and its indices [B, S, M].
    topk_length, extra_topk_length            [B] int32: leading indices that count, for all tokens of a request.
    out, variant             as in flash_mla_sparse_decode.

    Returns (out [B, S, H, 512] bf16, lse [B, H, S] float32, natural log, sink excluded). A token without rows gives zeros
    and lse = +inf, as FlashMLA does.
    """
    torch = _torch()
    _check_q(q)
    _need(block_table is None and cache_seqlens is None, "block_table and cache_seqlens must be None: attention here is sparse")
    _need(num_splits is None, "num_splits must be None")
    _need(not causal, "causal must be False: indices say what a token sees")
    _need(head_dim_v == HEAD_DIM, f"head_dim_v is {head_dim_v}, expected {HEAD_DIM}")
    _need(indices is not None, "indices is None: dense attention is not offered")
    _need((extra_k_cache is None) == (extra_indices_in_kvcache is None), "extra_k_cache and extra_indices_in_kvcache go together")
    batch, queries = q.shape[:2]
    keep, formats = [], []
    window, row_format = _rows("", k_cache, indices, topk_length, batch, queries, q.device, keep)
    _need(is_fp8_kvcache == (row_format == ROWS_V4), f"is_fp8_kvcache is {is_fp8_kvcache}, k_cache has dtype {k_cache.dtype}")
    formats.append(row_format)
    extra = RowSet()
    if extra_k_cache is not None:
        extra, row_format = _rows("extra_", extra_k_cache, extra_indices_in_kvcache, extra_topk_length, batch, queries, q.device,
                                  keep)
        formats.append(row_format)
    scale = HEAD_DIM ** -0.5 if softmax_scale is None else softmax_scale
    out, lse = _attend(q, window, extra, attn_sink, scale, None, None, out, variant, formats, keep)
    lse = torch.where(torch.isneginf(lse), torch.full_like(lse, float("inf")), lse)
    return out, lse.permute(0, 2, 1)
