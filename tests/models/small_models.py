"""Models of every kind, small enough to run hundreds of times, and what tests do with them."""

from __future__ import annotations

import torch
from torch import Tensor

from srmlab.models import (
    GPT2Config,
    HRMConfig,
    HuginnConfig,
    HyperConfig,
    LanguageModel,
    ModelConfig,
    MoRConfig,
    OuroConfig,
    SRMConfig,
    TransformerConfig,
    build,
)

VOCAB, CONTEXT = 13, 16

SRM_TINY = SRMConfig(
    vocab_size=VOCAB,
    context=CONTEXT,
    embedding_dim=6,
    streams=3,
    stream_dim=8,
    mlp_dim=10,
    token_heads=2,
    stream_heads=2,
    head_dim=4,
    depth=3,
    gradient_depth=2,
)
HRM_TINY = HRMConfig(
    vocab_size=VOCAB,
    context=CONTEXT,
    dim=8,
    heads=2,
    head_dim=4,
    mlp_dim=10,
    low_blocks=2,
    high_blocks=1,
    low_cycles=2,
    high_cycles=2,
)
TRM_TINY = HRM_TINY.replace(high_blocks=2, shared_net=True, gradient="last-cycle")
TRANSFORMER_TINY = TransformerConfig(
    vocab_size=VOCAB, context=CONTEXT, dim=8, blocks=3, heads=2, head_dim=4, mlp_dim=12
)
GPT2_TINY = GPT2Config(vocab_size=VOCAB, context=CONTEXT, dim=8, blocks=3, heads=2, mlp_dim=12, dropout=0.0)
OURO_TINY = OuroConfig(  # wide enough that its many norms do not amplify rounding
    vocab_size=VOCAB, context=CONTEXT, dim=16, heads=4, head_dim=4, mlp_dim=24, blocks=2, loops=3
)
HYPER_TINY = HyperConfig(
    vocab_size=VOCAB, context=CONTEXT, dim=8, heads=2, head_dim=4, mlp_dim=10, blocks=2, streams=3
)
HUGINN_TINY = HuginnConfig(
    vocab_size=VOCAB,
    context=CONTEXT,
    dim=16,
    heads=4,
    head_dim=4,
    mlp_dim=24,
    prelude=1,
    core=2,
    coda=1,
    steps=3,
    gradient_depth=2,
)
MOR_TINY = MoRConfig(
    vocab_size=VOCAB,
    context=CONTEXT,
    dim=16,
    heads=4,
    kv_heads=2,
    head_dim=4,
    mlp_dim=24,
    core=2,
    recursions=3,
)

SMALL: dict[str, ModelConfig] = {
    "srm": SRM_TINY,
    "srm with pre- and post-steps": SRM_TINY.replace(
        pre_steps=1, post_steps=2, post_input="state+update", tied=False
    ),
    "srm in random order": SRM_TINY.replace(order="random:4"),
    "srm from x": SRM_TINY.replace(z0="input", norm_affine=True, order="ABCCBA"),
    "srm with addition": SRM_TINY.replace(connection="addition", z0="input"),
    "srm with one stream": SRM_TINY.replace(streams=1, order="A", step_functions=1),
    "srm with a gate": SRM_TINY.replace(connection="gate", update="norm(c) + x"),
    "srm with translation": SRM_TINY.replace(connection="translation"),
    "srm with mixing": SRM_TINY.replace(connection="mixing", update="c + norm(x)"),
    "hrm": HRM_TINY,
    "hrm with x in both": HRM_TINY.replace(x_enters="both"),
    "hrm with one stream": HRM_TINY.replace(high_blocks=0),
    "trm": TRM_TINY,
    "gpt2": GPT2_TINY,
    "transformer": TRANSFORMER_TINY,
    "ouro": OURO_TINY,
    "ouro with plain blocks": OURO_TINY.replace(gated=False, norms="before", tied=True),
    "hyper": HYPER_TINY,
    "hyper in a loop": HYPER_TINY.replace(loops=3, blocks=1, connection="static", tied=False),
    "huginn": HUGINN_TINY,
    "mor": MOR_TINY,
    "mor by token": MOR_TINY.replace(choice="token", keys="shared", kv_heads=0),
}
RECURRENT = [  # those that can stop early by the change of their state
    name
    for name in SMALL
    if name not in ("gpt2", "transformer", "srm in random order", "hyper", "mor", "mor by token")
]
ONE_OF_EACH: dict[str, ModelConfig] = {
    name: SMALL[name]
    for name in ("srm", "hrm", "trm", "gpt2", "transformer", "ouro", "hyper", "huginn", "mor")
}


def small(config: ModelConfig, dtype: torch.dtype = torch.float64) -> LanguageModel:
    return build(config, dtype=dtype).eval()


def some_tokens(batch: int = 2, length: int = 7, seed: int = 0, vocab: int = VOCAB) -> Tensor:
    return torch.randint(vocab, (batch, length), generator=torch.Generator().manual_seed(seed))


def gradients(model: torch.nn.Module, loss: Tensor) -> dict[str, Tensor]:
    """The gradient of every parameter; zeros where none arrives."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {
        name: torch.zeros_like(p) if g is None else g
        for (name, p), g in zip(named.items(), found, strict=True)
    }
