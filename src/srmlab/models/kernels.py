"""Faster CPU kernels than torch's own: three operations with hand-written gradients.

    causal_attention   softmax(q·kᵀ/√K, over the tokens so far)·v, rotary positions included
    stream_attention   softmax(q·kᵀ/√K, over the streams of one token)·v
    rms_norm           x / rms(x)

`by_hand` and its two companions choose. Everywhere else (a GPU, bfloat16, float64, a compiled graph, the meta
device, a transform of `torch.func`) the callers use torch's own functions, and the numbers are the same up to
rounding.

There is little left to gain: in srm-nano's training step the matmuls alone take two thirds of the time that
the whole step takes with torch's own functions (`srmlab bench attention`, torch's own ÷ its matmuls: 1.52),
so a speed-up of 1.6 would need faster or fewer matmuls.

Each function here has one differentiable definition in plain torch beside its hand-written gradient; a second
derivative goes through the plain one.

Axes:  N streams × batch   R batch × tokens   S stream   T token   H head   K head dim
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

Table = tuple[Tensor, Tensor]  # cos and sin [T, K/2] of the positions

BLOCK = 64  # queries at a time; keys after the last of them are not looked at. 32 and 128 are slower
NARROW = 16  # torch's softmax over rows shorter than an AVX-512 vector takes six times as long as ours


_torchs_own = False


@contextmanager
def torchs_own() -> Iterator[None]:
    """While open these kernels are not used, as on a GPU."""
    global _torchs_own
    before, _torchs_own = _torchs_own, True
    try:
        yield
    finally:
        _torchs_own = before


def by_hand(x: Tensor) -> bool:
    """Whether x is for this file: float32 on a CPU, in plain eager mode."""
    return (
        not torch.compiler.is_compiling()
        and not _torchs_own
        and x.device.type == "cpu"
        and x.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
        and not torch._C._are_functorch_transforms_active()
        and forward_ad._current_level < 0
    )


def tokens_by_hand(qkv: Tensor, rotary: Table | None) -> bool:
    """Whether `causal_attention` is the faster one, forward and backward, for qkv [N, T, 3·H·K].

    Without rotary positions q and k need no copy, which torch's fused kernel saves: GPT-2 is faster with it.
    So is anything below 32 tokens. Beyond 1024 the probabilities kept for the backward pass, T/2 numbers a
    token and head, would be most of a step's memory.
    """
    shared = rotary is not None and rotary[0].ndim == 2  # all rows have the same positions
    return shared and 32 <= qkv.shape[1] <= 1024 and by_hand(qkv)


def streams_by_hand(qkv: Tensor) -> bool:
    """Whether `stream_attention` is the faster one for qkv [S, R, 3·H·K].

    Its backward pass is, by about a third. The forward pass alone is with few streams only: at SRM-base's
    32 it took 19 ms against 11.
    """
    differentiated = torch.is_grad_enabled() and qkv.requires_grad
    return (differentiated or qkv.shape[0] < NARROW) and by_hand(qkv)


def _again(plain: Callable[[Tensor], Tensor], x: Tensor, grad: Tensor) -> Tensor:
    """The gradient as a function that can itself be differentiated: that of the plain definition."""
    with torch.enable_grad():
        (result,) = torch.autograd.grad(plain(x), x, grad, create_graph=True)
    return result


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the heads [..., T, K] by their positions."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


# --- causal attention over tokens -------------------------------------------------------------------------


def causal_attention(qkv: Tensor, heads: int, rotary: Table) -> Tensor:
    """qkv [N, T, 3·H·K] → [N, T, H·K]: every token attends to itself and to those before it."""
    if torch.is_grad_enabled() and qkv.requires_grad:
        return _CausalAttention.apply(qkv, heads, rotary)  # pyright: ignore[reportReturnType]
    return _attend(*_turned_heads(qkv, heads, rotary), heads)


def plain_causal_attention(qkv: Tensor, heads: int, rotary: Table) -> Tensor:
    """The same as a formula that torch differentiates."""
    N, T, _ = qkv.shape
    q, k, v = _split(qkv, heads)
    q, k = rotate(q, *rotary), rotate(k, *rotary)
    future = torch.ones(T, T, dtype=torch.bool, device=qkv.device).triu(1)
    scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(future, float("-inf"))
    return (scores.softmax(-1) @ v).transpose(1, 2).reshape(N, T, -1)


class _CausalAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, heads: int, rotary: Table) -> Tensor:
        q, k, v = _turned_heads(qkv, heads, rotary)
        patterns: list[Tensor] = []
        out = _attend(q, k, v, heads, patterns)
        ctx.save_for_backward(qkv, q, k, *patterns)
        ctx.heads, ctx.rotary = heads, rotary
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (d_out,) = grads
        qkv, q, k, *patterns = ctx.saved_tensors
        heads, rotary = ctx.heads, ctx.rotary
        if torch.is_grad_enabled():
            return _again(lambda x: plain_causal_attention(x, heads, rotary), qkv, d_out), None, None
        v, d_out = _fold(_split(qkv, heads)[2]), _fold(_split(d_out, heads, parts=1)[0])
        d_qk, d_v = _attend_backward(q, k, v, patterns, d_out)
        d_qkv = torch.empty_like(qkv)
        into = _split(d_qkv, heads)  # [3, N, H, T, K]
        _turn(d_qk.view(into[:2].shape), rotary, into[:2], back=True)
        into[2].copy_(d_v.view(into[2].shape))
        return d_qkv, None, None


def _split(x: Tensor, heads: int, parts: int = 3) -> Tensor:
    """[N, T, parts·H·K] → [parts, N, H, T, K], a view."""
    return x.unflatten(-1, (parts, heads, -1)).permute(2, 0, 3, 1, 4)


def _fold(x: Tensor) -> Tensor:
    """[N, H, T, K] → [N·H, T, K]; with one head nothing is copied."""
    return x.reshape(-1, *x.shape[-2:])


def _turned_heads(qkv: Tensor, heads: int, rotary: Table) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v, each [N·H, T, K]: q and k turned by their positions, q divided by √K."""
    parts = _split(qkv, heads)
    turned = qkv.new_empty(parts[:2].shape)
    _turn(parts[:2], rotary, turned)
    return _fold(turned[0]), _fold(turned[1]), _fold(parts[2])


def _turn(qk: Tensor, rotary: Table, out: Tensor, back: bool = False) -> None:
    """`rotate` both q, divided by √K, and k: [2, N, H, T, K], written straight to where it is wanted.

    Back, by the opposite angle, it is the gradient.
    """
    scale = qk.shape[-1] ** -0.5
    cos, sin = (torch.stack((table * scale, table))[:, None, None] for table in rotary)  # [2, 1, 1, T, K/2]
    sign = -1 if back else 1
    (a, b), (first, second) = qk.chunk(2, dim=-1), out.chunk(2, dim=-1)
    torch.mul(a, cos, out=first).addcmul_(b, sin, value=-sign)
    torch.mul(b, cos, out=second).addcmul_(a, sin, value=sign)


def _attend(q: Tensor, k: Tensor, v: Tensor, heads: int, patterns: list[Tensor] | None = None) -> Tensor:
    """q, k, v [N·H, T, K] → [N, T, H·K], block by block; `patterns` is given each block's probabilities."""
    T, K = q.shape[1:]
    out = q.new_empty(q.shape[0] // heads, T, heads * K)
    future = q.new_full((BLOCK, BLOCK), float("-inf")).triu_(1)
    for start in range(0, T, BLOCK):
        end = min(start + BLOCK, T)
        pattern = torch.bmm(q[:, start:end], k[:, :end].mT)  # [N·H, block, keys so far]
        pattern[:, :, start:] += future[: end - start, : end - start]
        torch.softmax(pattern, -1, out=pattern)
        block = torch.bmm(pattern, v[:, :end])  # an `out` with gaps would be filled one matrix at a time
        _split(out[:, start:end], heads, parts=1)[0].copy_(block.unflatten(0, (-1, heads)))
        if patterns is not None:
            patterns.append(pattern)
    return out


def _attend_backward(
    q: Tensor, k: Tensor, v: Tensor, patterns: list[Tensor], d_out: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of q and k [2, N·H, T, K] and of v, from the last block, which saw all keys, to the
    first.
    """
    d_q, d_k = d_qk = q.new_empty(2, *q.shape)
    d_v = q.new_empty(q.shape)
    for i in reversed(range(len(patterns))):
        pattern, start = patterns[i], i * BLOCK
        end = start + pattern.shape[1]
        query, d_block = q[:, start:end], d_out[:, start:end]
        d_pattern = torch.bmm(d_block, v[:, :end].mT)
        d_scores = torch.ops.aten._softmax_backward_data(d_pattern, pattern, -1, pattern.dtype)
        d_q[:, start:end] = torch.bmm(d_scores, k[:, :end])
        if end == q.shape[1]:
            torch.bmm(d_scores.mT, query, out=d_k)
            torch.bmm(pattern.mT, d_block, out=d_v)
        else:
            d_k[:, :end] += torch.bmm(d_scores.mT, query)
            d_v[:, :end] += torch.bmm(pattern.mT, d_block)
    return d_qk, d_v


# --- attention over the streams of one token --------------------------------------------------------------


def stream_attention(qkv: Tensor, heads: int) -> Tensor:
    """qkv [S, R, 3·H·K] → [S, R, H·K]: every stream of a token attends to all streams of that token."""
    if torch.is_grad_enabled() and qkv.requires_grad:
        return _StreamAttention.apply(qkv, heads)  # pyright: ignore[reportReturnType]
    return _mix(*_split_streams(qkv, heads))[0]


def plain_stream_attention(qkv: Tensor, heads: int) -> Tensor:
    """The same as a formula that torch differentiates."""
    q, k, v = _split_streams(qkv, heads)
    pattern = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)  # [H, R, target, source]
    return (pattern @ v).permute(2, 1, 0, 3).flatten(2)


class _StreamAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, heads: int) -> Tensor:
        out, pattern = _mix(*_split_streams(qkv, heads))
        ctx.save_for_backward(qkv, pattern)
        ctx.heads = heads
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (d_out,) = grads
        qkv, patterns = ctx.saved_tensors
        if torch.is_grad_enabled():
            return _again(lambda x: plain_stream_attention(x, ctx.heads), qkv, d_out), None
        q, k, v = _split_streams(qkv, ctx.heads)
        (d_mixed,) = _split_streams(d_out, ctx.heads, parts=1)
        d_qkv = torch.empty_like(qkv)
        d_q, d_k, d_v = _split_streams(d_qkv, ctx.heads)
        d_patterns = torch.empty_like(patterns)
        for h, pattern in enumerate(patterns):
            torch.bmm(d_mixed[h], v[h].mT, out=d_patterns[h])
            d_v[h].copy_(torch.bmm(pattern.mT, d_mixed[h]))
        d_scores = _softmax_backward(d_patterns, patterns).mul_(q.shape[-1] ** -0.5)
        for h in range(ctx.heads):
            d_q[h].copy_(torch.bmm(d_scores[h], k[h]))
            d_k[h].copy_(torch.bmm(d_scores[h].mT, q[h]))
        return d_qkv, None


def _split_streams(x: Tensor, heads: int, parts: int = 3) -> Tensor:
    """[S, R, parts·H·K] → [parts, H, R, S, K], a view: one matrix of streams for every token and head."""
    return x.unflatten(-1, (parts, heads, -1)).permute(2, 3, 1, 0, 4)


def _mix(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """q, k, v [H, R, S, K] → the mixed values [S, R, H·K], and the pattern [H, R, target, source].

    A head at a time: the matrices of one head lie at equal distances, and need not be copied together.
    """
    H, R, S, K = q.shape
    pattern = q.new_empty(H, R, S, S)
    for h in range(H):
        torch.bmm(q[h], k[h].mT, out=pattern[h])
    pattern = _softmax_(pattern.mul_(K**-0.5))
    out = q.new_empty(S, R, H, K)
    for h in range(H):
        out[:, :, h] = torch.bmm(pattern[h], v[h]).transpose(0, 1)
    return out.flatten(2), pattern


def _softmax_(x: Tensor) -> Tensor:
    """In place, over the last axis."""
    if x.shape[-1] >= NARROW:
        return torch.softmax(x, -1, out=x)
    x.sub_(x.amax(-1, keepdim=True)).exp_()
    return x.div_(x.sum(-1, keepdim=True))


def _softmax_backward(grad: Tensor, pattern: Tensor) -> Tensor:
    if pattern.shape[-1] >= NARROW:
        return torch.ops.aten._softmax_backward_data(grad, pattern, -1, pattern.dtype)
    grad *= pattern
    return grad.addcmul_(pattern, grad.sum(-1, keepdim=True), value=-1)


# --- RMSNorm ----------------------------------------------------------------------------------------------


def rms_norm(x: Tensor, eps: float) -> Tensor:
    """x / rms(x) over the last axis, the same bits as the plain formula; half the passes in its gradient."""
    if torch.is_grad_enabled() and x.requires_grad:
        return _RMSNorm.apply(x, eps)  # pyright: ignore[reportReturnType]
    return x * _inverse_rms(x, eps)


def _inverse_rms(x: Tensor, eps: float) -> Tensor:
    return torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> Tensor:
        scale = _inverse_rms(x, eps)
        ctx.save_for_backward(x, scale)
        ctx.eps = eps
        return x * scale

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (grad,) = grads
        x, scale = ctx.saved_tensors
        if torch.is_grad_enabled():
            return _again(lambda x: x * _inverse_rms(x, ctx.eps), x, grad), None
        along = (grad * x).mean(-1, keepdim=True).mul_(scale.pow(3))
        return (grad * scale).addcmul_(x, along, value=-1), None
