"""The paper's pseudocode as a model: the oracle for `srmlab.models.SRM`.

Everything is written the long way: a loop over streams and over heads, weights of their own for each,
softmax and rotation spelled out, one matrix product at a time, and no value ever overwritten. It is meant to
be read beside the paper's figure "Pseudocode for SRM in PyTorch", and trusted because it hides nothing.

    oracle = Pseudocode(config)
    copy_weights(fast_model, oracle)
    logits, values = oracle(tokens, orders)         # values: every intermediate value, by its site's name

Axes: B batch, T token, S stream, D stream dim, H head, K head dim. Values are [B, T, S, D], as in the paper.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from srmlab.models import SRM, SRMConfig

Values = dict[str, Tensor]


def linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


def softmax(scores: Tensor) -> Tensor:
    weights = torch.exp(scores - scores.max(dim=-1, keepdim=True).values)
    return weights / weights.sum(dim=-1, keepdim=True)


def gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


def rope(x: Tensor, theta: float) -> Tensor:
    """Rotate-half: at position p the pair (x_j, x_{j+K/2}) of x [B, T, K] turns by p · theta^(-2j/K)."""
    _, T, K = x.shape
    tokens = []
    for p in range(T):
        turned = [torch.empty(0)] * K
        for j in range(K // 2):
            angle = p * theta ** (-2 * j / K)
            a, b = x[:, p, j], x[:, p, j + K // 2]
            turned[j] = a * math.cos(angle) - b * math.sin(angle)
            turned[j + K // 2] = b * math.cos(angle) + a * math.sin(angle)
        tokens.append(torch.stack(turned, dim=-1))
    return torch.stack(tokens, dim=1)


class RMSNorm(nn.Module):
    """Each stream by itself: x / sqrt(mean(x²) + eps), times the stream's weight if it has one."""

    def __init__(self, config: SRMConfig) -> None:
        super().__init__()
        self.eps = config.norm_eps
        self.weight = (
            nn.Parameter(torch.ones(config.streams, config.stream_dim)) if config.norm_affine else None
        )

    def forward(self, x: Tensor) -> Tensor:
        normed = x / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + self.eps)
        return normed if self.weight is None else normed * self.weight


class TokenwiseAttention(nn.Module):
    """Causal attention over the tokens of one stream, [B, T, D] → [B, T, D]."""

    def __init__(self, config: SRMConfig) -> None:
        super().__init__()
        D, H, K = config.stream_dim, config.token_heads, config.head_dim
        self.scale, self.theta = 1 / math.sqrt(K), config.rope_theta
        self.q = nn.ModuleList(linear(D, K) for _ in range(H))
        self.k = nn.ModuleList(linear(D, K) for _ in range(H))
        self.v = nn.ModuleList(linear(D, K) for _ in range(H))
        self.o = nn.ModuleList(linear(K, D) for _ in range(H))

    def forward(self, u: Tensor) -> Tensor:
        T = u.shape[1]
        later = torch.triu(torch.ones(T, T, dtype=torch.bool), diagonal=1)
        heads = []
        for to_q, to_k, to_v, to_out in zip(self.q, self.k, self.v, self.o, strict=True):
            q, k, v = rope(to_q(u), self.theta), rope(to_k(u), self.theta), to_v(u)
            scores = (q @ k.transpose(1, 2) * self.scale).masked_fill(later, -math.inf)
            heads.append(to_out(softmax(scores) @ v))
        return torch.stack(heads).sum(dim=0)


class Block(nn.Module):
    """One stream's transformer block: attention and MLP read the same input."""

    def __init__(self, config: SRMConfig) -> None:
        super().__init__()
        self.attn = TokenwiseAttention(config)
        self.up = linear(config.stream_dim, config.mlp_dim)
        self.down = linear(config.mlp_dim, config.stream_dim)

    def mlp(self, u: Tensor) -> Tensor:
        return self.down(gelu(self.up(u)))


class Step(nn.Module):
    """The paper's srm_step."""

    def __init__(self, config: SRMConfig) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.streams))
        self.norm = RMSNorm(config)

    def forward(self, u: Tensor, values: Values, name: str) -> Tensor:
        attn, mlp = [], []
        for s, block in enumerate(self.blocks):
            stream = u[:, :, s]
            attn.append(block.attn(stream))
            mlp.append(block.mlp(stream))
        values[f"{name}.in"] = u
        values[f"{name}.attn"] = torch.stack(attn, dim=2)
        values[f"{name}.mlp"] = torch.stack(mlp, dim=2)
        z = self.norm(values[f"{name}.mlp"] + values[f"{name}.attn"] + u)
        values[f"{name}.out"] = z
        return z


class StreamwiseAttention(nn.Module):
    """The paper's streamwise_attention: over the S streams of one token, no mask, no position."""

    def __init__(self, config: SRMConfig) -> None:
        super().__init__()
        S, D, H, K = config.streams, config.stream_dim, config.stream_heads, config.head_dim
        self.heads, self.scale = H, 1 / math.sqrt(K)

        def per_stream_and_head(inputs: int, outputs: int) -> nn.ModuleList:
            return nn.ModuleList(nn.ModuleList(linear(inputs, outputs) for _ in range(H)) for _ in range(S))

        self.q, self.k, self.v = (per_stream_and_head(D, K) for _ in range(3))
        self.o = per_stream_and_head(K, D)

    def forward(self, z: Tensor, values: Values, name: str) -> Tensor:
        streams = range(z.shape[2])
        patterns, outputs = [], []
        for h in range(self.heads):
            q = torch.stack([self.q[s][h](z[:, :, s]) for s in streams], dim=2)  # [B, T, S, K]
            k = torch.stack([self.k[s][h](z[:, :, s]) for s in streams], dim=2)
            v = torch.stack([self.v[s][h](z[:, :, s]) for s in streams], dim=2)
            pattern = softmax(q @ k.transpose(2, 3) * self.scale)  # [B, T, target, source]
            mixed = pattern @ v
            patterns.append(pattern)
            outputs.append(torch.stack([self.o[s][h](mixed[:, :, s]) for s in streams], dim=2))
        c = torch.stack(outputs).sum(dim=0)
        values[f"{name}.pattern"] = torch.stack(patterns, dim=2)  # [B, T, H, target, source]
        values[f"{name}.out"] = c
        return c


class Addition(nn.Module):
    """HRM's way: a stream is given the sum of the others, divided by the root of how many they are."""

    def forward(self, z: Tensor, values: Values, name: str) -> Tensor:
        S = z.shape[2]
        given = []
        for s in range(S):
            total = torch.zeros_like(z[:, :, s])
            for r in range(S):
                if r != s:
                    total = total + z[:, :, r]
            given.append(total / math.sqrt(max(1, S - 1)))
        values[f"{name}.out"] = torch.stack(given, dim=2)
        return values[f"{name}.out"]


class NoConnection(nn.Module):
    """Nothing is given."""

    def forward(self, z: Tensor, values: Values, name: str) -> Tensor:
        values[f"{name}.out"] = 0 * z
        return values[f"{name}.out"]


class GateOnly(nn.Module):
    """Attention's pattern, averaged over heads, mixes the states themselves."""

    def __init__(self, config: SRMConfig) -> None:
        super().__init__()
        S, D, H, K = config.streams, config.stream_dim, config.stream_heads, config.head_dim
        self.heads, self.head_dim = H, K
        self.qk = nn.Parameter(torch.empty(S, D, 2 * H * K))

    def forward(self, z: Tensor, values: Values, name: str) -> Tensor:
        S, H, K = z.shape[2], self.heads, self.head_dim
        patterns = []
        for h in range(H):
            q = [z[:, :, s] @ self.qk[s][:, h * K : (h + 1) * K] for s in range(S)]
            k = [z[:, :, s] @ self.qk[s][:, (H + h) * K : (H + h + 1) * K] for s in range(S)]
            scores = torch.stack([torch.stack([(a * b).sum(-1) for b in k], -1) for a in q], -2)
            patterns.append(softmax(scores / math.sqrt(K)))  # [B, T, target, source]
        values[f"{name}.pattern"] = torch.stack(patterns, dim=2)
        mean = torch.stack(patterns).mean(0)
        given = [
            torch.stack([mean[:, :, s, r, None] * z[:, :, r] for r in range(S)]).sum(0) for s in range(S)
        ]
        values[f"{name}.out"] = torch.stack(given, dim=2)
        return values[f"{name}.out"]


class TranslationOnly(nn.Module):
    """A learned pattern that is the same for every token; values and outputs as in attention."""

    def __init__(self, config: SRMConfig) -> None:
        super().__init__()
        S, D, H, K = config.streams, config.stream_dim, config.stream_heads, config.head_dim
        self.heads, self.head_dim = H, K
        self.gates = nn.Parameter(torch.empty(H, S, S))
        self.value, self.out = nn.Parameter(torch.empty(S, D, H * K)), nn.Parameter(torch.empty(S, H * K, D))

    def forward(self, z: Tensor, values: Values, name: str) -> Tensor:
        (B, T, S, _), H, K = z.shape, self.heads, self.head_dim
        pattern = softmax(self.gates)
        values[f"{name}.pattern"] = pattern.expand(B, T, H, S, S)
        given = []
        for s in range(S):
            total = torch.zeros_like(z[:, :, s])
            for h in range(H):
                part = slice(h * K, (h + 1) * K)
                for r in range(S):
                    value = z[:, :, r] @ self.value[r][:, part]
                    total = total + pattern[h, s, r] * (value @ self.out[s][part])
            given.append(total)
        values[f"{name}.out"] = torch.stack(given, dim=2)
        return values[f"{name}.out"]


class Mixing(nn.Module):
    """A learned matrix between the streams."""

    def __init__(self, config: SRMConfig) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.empty(config.streams, config.streams))

    def forward(self, z: Tensor, values: Values, name: str) -> Tensor:
        S = z.shape[2]
        given = [torch.stack([self.matrix[s, r] * z[:, :, r] for r in range(S)]).sum(0) for s in range(S)]
        values[f"{name}.out"] = torch.stack(given, dim=2)
        return values[f"{name}.out"]


class Layer(nn.Module):
    """The paper's srm_layer."""

    def __init__(self, config: SRMConfig) -> None:
        super().__init__()
        self.connection = {
            "attention": lambda: StreamwiseAttention(config),
            "gate": lambda: GateOnly(config),
            "translation": lambda: TranslationOnly(config),
            "mixing": lambda: Mixing(config),
            "addition": Addition,
            "none": NoConnection,
        }[config.connection]()
        self.norm = RMSNorm(config)
        self.update = config.update
        self.steps = nn.ModuleList(Step(config) for _ in range(config.step_functions))

    def forward(
        self, x: Tensor, z: Tensor, order: Sequence[int], values: Values, name: str
    ) -> tuple[Tensor, Tensor]:
        c = self.connection(z, values, f"{name}.connection")
        if self.update == "norm(c + x)":
            y = self.norm(c + x)
        else:
            left, right = self.update.split(" + ")
            y = (self.norm(c) if left == "norm(c)" else c) + (self.norm(x) if right == "norm(x)" else x)
        values[f"{name}.update"] = y
        for i, step_idx in enumerate(order):
            z = self.steps[step_idx](z + y, values, f"{name}.steps.{i}")
        values[f"{name}.out"] = z
        return z, y


class Pseudocode(nn.Module):
    """The paper's srm."""

    def __init__(self, config: SRMConfig) -> None:
        super().__init__()
        self.config = config
        S, D, E, V = config.streams, config.stream_dim, config.embedding_dim, config.vocab_size
        self.embedding = nn.Embedding(V, E)
        self.linear_up = linear(E, S * D)
        self.pre = nn.ModuleList(Step(config) for _ in range(config.pre_steps))
        self.z0 = nn.Parameter(torch.zeros(S, D), requires_grad=config.z0 == "learned")
        self.layer = Layer(config)
        self.post = nn.ModuleList(Step(config) for _ in range(config.post_steps))
        self.linear_down = linear(S * D, E)
        self.unembedding = None if config.tied else linear(E, V)

    def forward(self, input_ids: Tensor, orders: Sequence[Sequence[int]]) -> tuple[Tensor, Values]:
        """Logits [B, T, V], and all values by site. `orders` are the steps of each layer."""
        config, values = self.config, Values()
        (B, T), S, D = input_ids.shape, config.streams, config.stream_dim
        n, l = config.depth, config.gradient_depth

        # Input function
        emb = self.embedding(input_ids)
        if config.embedding_scale:
            emb = emb * math.sqrt(config.embedding_dim)
        x = self.linear_up(emb).view(B, T, S, D)
        values["input.streams"] = x
        for i, step in enumerate(self.pre):
            x = step(x, values, f"pre.{i}")

        z = {
            "fixed": self.z0.expand(B, T, S, D),
            "learned": self.z0.expand(B, T, S, D),
            "zero": torch.zeros(B, T, S, D, dtype=x.dtype),
            "input": x,
        }[config.z0]
        y = x
        for t in range(n - l):
            with torch.no_grad():
                z, y = self.layer(x, z, orders[t], values, f"layers.{t}")
        for t in range(n - l, n):
            z, y = self.layer(x, z, orders[t], values, f"layers.{t}")

        # Output function
        for i, step in enumerate(self.post):
            z = step(z + y if config.post_input == "state+update" else z, values, f"post.{i}")
        out_emb = self.linear_down(z.reshape(B, T, S * D))
        values["output.embedding"] = out_emb
        unembedding = self.embedding.weight if self.unembedding is None else self.unembedding.weight
        logits = out_emb @ unembedding.T
        values["logits"] = logits
        return logits, values


def copy_weights(fast: SRM, oracle: Pseudocode) -> None:
    """Give the oracle the weights (and z_0) of a fast model."""
    oracle.load_state_dict(as_oracle(dict(fast.state_dict()), oracle.config))


def as_oracle(fast: Mapping[str, Tensor], config: SRMConfig) -> dict[str, Tensor]:
    """Tensors of the fast model (weights, or their gradients) under the oracle's names and in its shapes.

    The one place that knows how the fast model packs its weights: streams stacked, q|k|v side by side.
    """
    out: dict[str, Tensor] = {}
    S, K = config.streams, config.head_dim

    def split_qkv(name: str, packed: Tensor, heads: int, target) -> None:
        parts = packed.unflatten(-1, (3, heads, K))  # [S, D, 3, H, K]
        for s in range(S):
            for h in range(heads):
                for i, part in enumerate("qkv"):
                    out[target(name, part, s, h)] = parts[s, :, i, h].T

    def split_out(name: str, packed: Tensor, heads: int, target) -> None:
        parts = packed.unflatten(1, (heads, K))  # [S, H, K, D]
        for s in range(S):
            for h in range(heads):
                out[target(name, "o", s, h)] = parts[s, h].T

    def in_connection(name: str, part: str, s: int, h: int) -> str:
        return f"{name}.{part}.{s}.{h}.weight"

    def in_block(name: str, part: str, s: int, h: int) -> str:
        return f"{name}.blocks.{s}.attn.{part}.{h}.weight"

    plain = {
        "input_function.embedding.weight": "embedding.weight",
        "input_function.to_streams.weight": "linear_up.weight",
        "output_function.from_streams.weight": "linear_down.weight",
        "output_function.unembedding.weight": "unembedding.weight",
        "z0": "z0",
    }
    for name, value in fast.items():
        owner, _, leaf = name.removesuffix(".weight").rpartition(".")
        if name in plain:
            out[plain[name]] = value
        elif name.startswith("layer.connection.") and config.connection != "attention":
            out[name.removesuffix(".weight")] = value
        elif owner == "layer.connection" and leaf == "qkv":
            split_qkv(owner, value, config.stream_heads, in_connection)
        elif owner == "layer.connection" and leaf == "out":
            split_out(owner, value, config.stream_heads, in_connection)
        elif leaf == "norm":
            out[name] = value.reshape(S, config.stream_dim)
        elif leaf == "qkv":
            split_qkv(owner, value, config.token_heads, in_block)
        elif leaf == "attn_out":
            split_out(owner, value, config.token_heads, in_block)
        elif leaf in ("mlp_up", "mlp_down"):
            for s in range(S):
                out[f"{owner}.blocks.{s}.{leaf.removeprefix('mlp_')}.weight"] = value[s].T
        else:
            raise KeyError(f"the oracle has no place for {name}")
    return out
