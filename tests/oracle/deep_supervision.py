"""One training segment of HRM and of TRM the long way: the oracle for `srmlab.training.segments`.

Slot by slot, cell by cell, head by head, on a dictionary of weights under the model's names.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from oracle.hierarchy import rms_norm
from oracle.pseudocode import gelu, rope, softmax
from srmlab.models import HRMConfig
from srmlab.training import TrainConfig

Weights = dict[str, Tensor]


@dataclass
class Slot:
    number: int  # of the slot
    example: int = -1  # of its puzzle in the endless sequence
    board: list[int] = field(default_factory=list)
    answer: list[int] = field(default_factory=list)  # −100 where it does not count
    before: Tensor = field(default_factory=lambda: torch.zeros(0))  # [1, D] the puzzle's embedding, a leaf
    z_low: Tensor = field(default_factory=lambda: torch.zeros(0))  # [positions, D]
    z_high: Tensor = field(default_factory=lambda: torch.zeros(0))
    segments: int = 0
    halted: bool = True


def swiglu(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    gate, value = x[..., :half], x[..., half:]
    return gate * (1 / (1 + torch.exp(-gate))) * value


def block(w: Weights, name: str, c: HRMConfig, h: Tensor) -> Tensor:
    """Post-norm: mix the positions, then the MLP. h [positions, D]."""
    if c.token_mlp:
        columns = [
            w[f"{name}.token_down.weight"] @ swiglu(w[f"{name}.token_up.weight"] @ h[:, d])
            for d in range(c.dim)
        ]
        mixed = torch.stack(columns, dim=1)
        h = rms_norm((h + mixed).T, c.norm_eps).T  # over the positions, too
    else:
        H, K = c.heads, c.head_dim
        q, k, v = (h @ part.T for part in w[f"{name}.qkv.weight"].view(3, H * K, c.dim))
        heads = []
        for i in range(H):
            at = slice(i * K, (i + 1) * K)
            turned = [
                x[:, at] if c.learned_positions else rope(x[None, :, at], c.rope_theta)[0] for x in (q, k)
            ]
            heads.append(softmax(turned[0] @ turned[1].T / math.sqrt(K)) @ v[:, at])  # nothing is masked
        mixed = torch.cat(heads, dim=1) @ w[f"{name}.attn_out.weight"].T
        h = rms_norm(h + mixed, c.norm_eps)
    act = gelu if c.mlp == "gelu" else swiglu
    return rms_norm(h + act(h @ w[f"{name}.mlp_up.weight"].T) @ w[f"{name}.mlp_down.weight"].T, c.norm_eps)


def net(w: Weights, which: str, c: HRMConfig, h: Tensor) -> Tensor:
    for b in range(c.low_blocks if which == "low" else c.high_blocks):
        h = block(w, f"{'low' if c.shared_net else which}.{b}", c, h)
    return h


def forward(w: Weights, c: HRMConfig, slot: Slot) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logits [cells, V], q [2], and both states, from the slot's."""
    cells = torch.stack([w["embedding.weight"][value] for value in slot.board])
    empty = torch.zeros(c.puzzle_positions - len(slot.before), c.dim, dtype=cells.dtype)
    x = torch.cat([slot.before, empty, cells])
    if c.learned_positions:
        x = torch.stack([value + w["puzzle.places"][p] for p, value in enumerate(x)])
    x = x * math.sqrt(c.dim)
    z_low, z_high = slot.z_low, slot.z_high
    for h in range(c.high_cycles):
        for l in range(c.low_cycles):
            last = h == c.high_cycles - 1 and (l == c.low_cycles - 1 or c.gradient == "last-cycle")
            with torch.set_grad_enabled(last and torch.is_grad_enabled()):
                z_low = net(w, "low", c, z_low + z_high + x)
        with torch.set_grad_enabled(h == c.high_cycles - 1 and torch.is_grad_enabled()):
            z_high = net(w, "high", c, z_high + z_low)
    unembedding = w["embedding.weight"] if c.tied else w["head.weight"]
    logits = z_high[c.puzzle_positions :] @ unembedding.T
    return logits, w["puzzle.weight"] @ z_high[0] + w["puzzle.bias"], z_low, z_high


def cell_loss(logits: Tensor, answer: int, likelihood: str) -> Tensor:
    if likelihood == "softmax":
        return -torch.log(softmax(logits[None])[0, answer])
    s = [x + 1 if float(x.detach()) >= 0 else 1 / (1 - x) for x in logits]
    return -torch.log(s[answer] / sum(s))


def binary(q: Tensor, target: float | Tensor) -> Tensor:
    """Cross-entropy of sigmoid(q)."""
    p = 1 / (1 + torch.exp(-q))
    return -(target * torch.log(p) + (1 - target) * torch.log(1 - p))


def segment(
    w: Weights, c: HRMConfig, t: TrainConfig, slots: list[Slot], least: list[int], examples
) -> Tensor:
    """One segment of every slot, changed in place; the loss of the batch.

    `examples(n)` is puzzle n: board, answer, its embedding. `least` are the segments each slot must have had.
    """
    total = torch.zeros((), dtype=torch.float64)
    for slot, must in zip(slots, least, strict=True):
        if slot.halted:
            slot.example = slot.number if slot.example < 0 else slot.example + len(slots)
            slot.board, slot.answer, slot.before = examples(slot.example)
            positions = c.puzzle_positions + len(slot.board)
            slot.z_low = torch.stack([w["low0"]] * positions)
            slot.z_high = torch.stack([w["high0"]] * positions)
            slot.segments = 0
        slot.segments += 1
        logits, q, z_low, z_high = forward(w, c, slot)
        slot.z_low, slot.z_high = z_low.detach(), z_high.detach()
        counted = [i for i, value in enumerate(slot.answer) if value != -100]
        loss = sum(cell_loss(logits[i], slot.answer[i], t.likelihood) for i in counted) / len(counted)
        right = all(int(logits[i].argmax()) == slot.answer[i] for i in counted)
        last = slot.segments >= t.segments
        if t.halting != "fixed":
            loss = loss + 0.5 * binary(q[0], float(right))
        if t.halting == "hrm" and t.segments > 1:  # HRM trains no continue head where there is one segment
            with torch.no_grad():
                _, later, _, _ = forward(w, c, slot)
                target = 1 / (1 + torch.exp(-(later[0] if last else max(later[0], later[1]))))
            loss = loss + 0.5 * binary(q[1], target)
        halt, go_on = q.tolist()
        wants = {"hrm": halt > go_on, "trm": halt > 0, "fixed": False}[t.halting]
        slot.halted = last or (wants and slot.segments >= must)
        total = total + loss / len(slots)
    return total
