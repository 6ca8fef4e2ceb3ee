"""The looped models the long way: oracles for those of `srmlab.models` that are built of `block.Block`.

Each is a function of the fast model's own parameters by name, its config and tokens; one token, head and
stream at a time, with nothing folded, chunked or cached. Gradients are compared on the same parameters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from oracle.hierarchy import rms_norm
from oracle.pseudocode import gelu, rope, softmax
from srmlab.models import HuginnConfig, HyperConfig, MoRConfig, OuroConfig
from srmlab.models.block import BlockConfig

Weights = Mapping[str, Tensor]


def attention(h: Tensor, weights: Weights, name: str, config: BlockConfig) -> Tensor:
    """What attention adds: h [B, T, D], one head after the other."""
    T, K, H = h.shape[1], config.head_dim, config.heads
    u = rms_norm(h, config.norm_eps)
    later = torch.triu(torch.ones(T, T, dtype=torch.bool), diagonal=1)
    total = torch.zeros_like(h)
    for head in range(H):
        q, k, v = (
            u @ weights[f"{name}.qkv.weight"][part * H * K + head * K : part * H * K + (head + 1) * K].T
            for part in range(3)
        )
        q, k = rope(q, config.rope_theta), rope(k, config.rope_theta)
        pattern = softmax((q @ k.transpose(1, 2) / math.sqrt(K)).masked_fill(later, -math.inf))
        total = total + (pattern @ v) @ weights[f"{name}.attn_out.weight"][:, head * K : (head + 1) * K].T
    return rms_norm(total, config.norm_eps) if config.norms == "around" else total


def mlp(h: Tensor, weights: Weights, name: str, config: BlockConfig) -> Tensor:
    up = rms_norm(h, config.norm_eps) @ weights[f"{name}.mlp_up.weight"].T
    if config.gated:
        gate, up = up[..., : config.mlp_dim], up[..., config.mlp_dim :]
        hidden = gate / (1 + torch.exp(-gate)) * up
    else:
        hidden = gelu(up)
    added = hidden @ weights[f"{name}.mlp_down.weight"].T
    return rms_norm(added, config.norm_eps) if config.norms == "around" else added


def block(h: Tensor, weights: Weights, name: str, config: BlockConfig) -> Tensor:
    h = h + attention(h, weights, name, config)
    if config.norms == "sum":
        h = rms_norm(h, config.norm_eps)
    h = h + mlp(h, weights, name, config)
    return rms_norm(h, config.norm_eps) if config.norms == "sum" else h


def embed(tokens: Tensor, weights: Weights, config: BlockConfig) -> Tensor:
    return weights["embedding.weight"][tokens] * math.sqrt(config.dim)


def unembedding(weights: Weights, config: BlockConfig) -> Tensor:
    return weights["embedding.weight" if config.tied else "head.weight"]


def cross_entropies(h: Tensor, weights: Weights, targets: Tensor, config: BlockConfig) -> Tensor:
    """[B, T], 0 where no target counts."""
    probabilities = softmax(h @ unembedding(weights, config).T)
    B, T = targets.shape
    rows = [
        [
            -probabilities[b, t, targets[b, t]].log() if targets[b, t] >= 0 else h.new_zeros(())
            for t in range(T)
        ]
        for b in range(B)
    ]
    return torch.stack([torch.stack(row) for row in rows])


# --- Ouro ---------------------------------------------------------------------------------------------------


def ouro_states(weights: Weights, config: OuroConfig, tokens: Tensor) -> list[Tensor]:
    """The state after every loop."""
    h, states = embed(tokens, weights, config), []
    for _ in range(config.loops):
        for b in range(config.blocks):
            h = block(h, weights, f"blocks.{b}", config)
        h = rms_norm(h, config.norm_eps)
        states.append(h)
    return states


def ouro_logits(weights: Weights, config: OuroConfig, tokens: Tensor) -> Tensor:
    return ouro_states(weights, config, tokens)[-1] @ unembedding(weights, config).T


def ouro_gate(h: Tensor, weights: Weights) -> Tensor:
    return 1 / (1 + torch.exp(-(h @ weights["gate.weight"][0] + weights["gate.bias"][0])))


def ouro_loss(weights: Weights, config: OuroConfig, tokens: Tensor, targets: Tensor, beta: float) -> Tensor:
    """Token by token: Σ_t p_t·L_t − β·H(p), averaged over the tokens that count."""
    states = ouro_states(weights, config, tokens)
    losses = [cross_entropies(h, weights, targets, config) for h in states]
    gates = [ouro_gate(h, weights) for h in states]
    total, counted = torch.zeros((), dtype=torch.float64), 0
    for b in range(tokens.shape[0]):
        for i in range(tokens.shape[1]):
            if targets[b, i] < 0:
                continue
            left = torch.ones((), dtype=torch.float64)
            for t in range(config.loops):
                p = left if t == config.loops - 1 else left * gates[t][b, i]
                left = left * (1 - gates[t][b, i])
                total = total + p * losses[t][b, i] + beta * p * torch.log(p)
            counted += 1
    return total / counted


def ouro_gate_loss(weights: Weights, config: OuroConfig, tokens: Tensor, targets: Tensor) -> Tensor:
    """The second stage: how wrong the gate is about whether a loop was worth more than `gain`."""
    states = [h.detach() for h in ouro_states(weights, config, tokens)]
    losses = [cross_entropies(h, weights, targets, config).detach() for h in states]
    total, counted = torch.zeros((), dtype=torch.float64), targets.ge(0)
    for t in range(1, config.loops):
        gain = torch.clamp(losses[t - 1] - losses[t], min=0)
        go_on = 1 / (1 + torch.exp(-50.0 * (gain - config.gain)))
        stop = ouro_gate(states[t], weights)
        wrong = -(go_on * torch.log(1 - stop) + (1 - go_on) * torch.log(stop))
        total = total + wrong[counted].mean() / config.loops
    return total


# --- hyper-connections --------------------------------------------------------------------------------------


def hyper_connection(
    streams: list[Tensor], weights: Weights, name: str, config: HyperConfig
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """What the part reads, the mixed streams, and how much of the part's output each stream is given."""
    S = config.streams
    read: list[Tensor] = [weights[f"{name}.read"][s] for s in range(S)]
    write: list[Tensor] = [weights[f"{name}.write"][s] for s in range(S)]
    mix = [[weights[f"{name}.mix"][s, r] for r in range(S)] for s in range(S)]
    if config.connection == "dynamic":
        W, scales = weights[f"{name}.dynamic.weight"], weights[f"{name}.scales"]
        for s in range(S):
            u = rms_norm(streams[s], config.norm_eps)
            read[s] = read[s] + scales[0] * torch.tanh(u @ W[0])[..., None]
            write[s] = write[s] + scales[1] * torch.tanh(u @ W[1])[..., None]
            mix[s] = [mix[s][r] + scales[0] * torch.tanh(u @ W[2 + r])[..., None] for r in range(S)]
    h = sum((read[s] * streams[s] for s in range(S)), torch.zeros_like(streams[0]))
    mixed = [sum((mix[s][r] * streams[s] for s in range(S)), torch.zeros_like(streams[0])) for r in range(S)]
    return h, mixed, write


def hyper_logits(weights: Weights, config: HyperConfig, tokens: Tensor) -> Tensor:
    streams = [embed(tokens, weights, config) for _ in range(config.streams)]
    for _ in range(max(config.loops, 1)):
        for b in range(config.blocks):
            for i, part in enumerate((attention, mlp)):
                name = f"stack.{b}"
                h, mixed, write = hyper_connection(streams, weights, f"{name}.links.{i}", config)
                out = part(h, weights, name, config)
                streams = [m + w * out for m, w in zip(mixed, write, strict=True)]
    total = sum(streams, torch.zeros_like(streams[0]))
    return rms_norm(total, config.norm_eps) @ unembedding(weights, config).T


# --- Huginn -------------------------------------------------------------------------------------------------


def huginn_logits(weights: Weights, config: HuginnConfig, tokens: Tensor, start: Tensor) -> Tensor:
    """From the state `start` [B, T, D]; what comes before the last `gradient_depth` steps is a constant."""
    e = embed(tokens, weights, config)
    for b in range(config.prelude):
        e = block(e, weights, f"prelude_blocks.{b}", config)
    s, W = start, weights["adapter.weight"]
    for t in range(config.steps):
        h = s @ W[:, : config.dim].T + e @ W[:, config.dim :].T
        for b in range(config.core):
            h = block(h, weights, f"core_blocks.{b}", config)
        s = h if t >= config.steps - config.gradient_depth else h.detach()
    h = rms_norm(s, config.norm_eps)
    for b in range(config.coda):
        h = block(h, weights, f"coda_blocks.{b}", config)
    return rms_norm(h, config.norm_eps) @ unembedding(weights, config).T


# --- Mixture-of-Recursions ----------------------------------------------------------------------------------

Row = dict[int, Tensor]  # the tokens of one row by their position, [D] each


def turned(x: Tensor, position: int, theta: float) -> Tensor:
    """One head [K] of the token at a position."""
    padded = torch.zeros(1, position + 1, len(x), dtype=x.dtype)
    padded = torch.cat((padded[:, :position], x[None, None]), dim=1)
    return rope(padded, theta)[0, position]


def mor_block(h: Row, sources: Row, weights: Weights, name: str, config: MoRConfig) -> Row:
    """One block for the tokens of `h`; they look at `sources`, what the keys' makers read, no later."""
    H, K, G = config.heads, config.head_dim, config.kv_heads or config.heads
    W = weights[f"{name}.qkv.weight"]
    new: Row = {}
    for i, x in h.items():
        total = torch.zeros_like(x)
        for head in range(H):
            g = head // (H // G)
            q = turned(rms_norm(x, config.norm_eps) @ W[head * K : (head + 1) * K].T, i, config.rope_theta)
            scores, values = [], []
            for j, y in sources.items():
                if j <= i:
                    u = rms_norm(y, config.norm_eps)
                    k = u @ W[H * K + g * K : H * K + (g + 1) * K].T
                    scores.append(q @ turned(k, j, config.rope_theta) / math.sqrt(K))
                    values.append(u @ W[(H + G) * K + g * K : (H + G) * K + (g + 1) * K].T)
            read = softmax(torch.stack(scores)) @ torch.stack(values)
            total = total + weights[f"{name}.attn_out.weight"][:, head * K : (head + 1) * K] @ read
        x = x + total
        new[i] = x + mlp(x[None, None], weights, name, config)[0, 0]
    return new


def mor_core(h: Row, weights: Weights, config: MoRConfig, shared: list[Row]) -> Row:
    """The shared blocks over the tokens of one recursion; `shared`: what the first one read at each block."""
    for b in range(config.core):
        if config.keys == "shared" and len(shared) == b:
            shared.append(h)
        h = mor_block(h, shared[b] if config.keys == "shared" else h, weights, f"core_blocks.{b}", config)
    return h


def mor_row(
    weights: Weights, config: MoRConfig, tokens: Tensor, best: bool
) -> tuple[Tensor, list[set[int]], list[dict[int, Tensor]]]:
    """Logits [T, V] of one row, which tokens each recursion had, and the router's logits."""
    R = config.recursions
    h: Row = dict(enumerate(embed(tokens, weights, config)))
    h = first = mor_block(h, h, weights, "first_block", config)
    there, kept, logits, shared = set(h), [], [], []
    picked = {i: x @ weights["routers.0.weight"].T for i, x in h.items()} if config.choice == "token" else {}
    for r in range(R):
        if config.choice == "expert":
            router = {i: x @ weights[f"routers.{r}.weight"][0] for i, x in h.items()}
            if best:
                ranked = sorted(there, key=lambda i, router=router: -router[i].item())
                there = set(ranked[: max(1, len(h) * (R - r) // R)])
            else:
                there = {i for i in there if router[i] > 0}
            logits.append(router)
        else:
            there = {i for i in h if int(picked[i].argmax()) >= r}
            logits = [picked]
        everyone = config.keys == "shared" and r == 0  # the keys that are shared are made of all tokens
        read = {i: x for i, x in h.items() if i in there or everyone}
        out, moved = mor_core(read, weights, config, shared), dict(h)
        for i in there:
            if config.choice == "expert":
                moved[i] = h[i] + 0.1 / (1 + torch.exp(-logits[r][i])) * out[i]
            elif int(picked[i].argmax()) == r:
                moved[i] = first[i] + softmax(picked[i]).max() * out[i]
            else:
                moved[i] = out[i]
        h = moved
        kept.append(set(there))
    h = mor_block(h, h, weights, "last_block", config)
    rows = [rms_norm(h[i], config.norm_eps) @ unembedding(weights, config).T for i in sorted(h)]
    return torch.stack(rows), kept, logits


def mor_loss(weights: Weights, config: MoRConfig, tokens: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy with the routing of training, and the router's own losses."""
    rows = [mor_row(weights, config, row, best=True) for row in tokens]
    counted, T, R = targets >= 0, tokens.shape[1], config.recursions
    log_p = torch.stack([logits for logits, _, _ in rows]).log_softmax(-1)
    loss = -log_p.gather(-1, targets.clamp(min=0)[..., None])[..., 0][counted].mean()
    if config.choice == "token":
        logits = torch.stack([picked[i] for _, _, (picked,) in rows for i in range(T)])
        p = torch.stack([softmax(row) for row in logits])
        balance = sum((p.argmax(-1) == r).double().mean() * p[:, r].mean() for r in range(R)) * R
        z = torch.stack([torch.log(torch.exp(row).sum()) ** 2 for row in logits]).mean()
        return loss + config.balance_loss * balance + config.z_loss * z
    router = torch.zeros((), dtype=torch.float64)
    for r in range(R):
        wrong = [
            -torch.log(p if i in kept[r] else 1 - p)
            for _, kept, logits in rows
            for i in (kept[r - 1] if r else range(T))
            for p in [1 / (1 + torch.exp(-logits[r][i]))]
        ]
        router = router + torch.stack(wrong).mean()
    return loss + config.router_loss * router
