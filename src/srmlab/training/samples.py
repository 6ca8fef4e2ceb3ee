"""What TensorBoard and Weights & Biases show of a model at every evaluation: a text sample, and its routing.

Every process calls these, as a sharded model requires; only the main one logs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from srmlab.data import Tokenizer
from srmlab.models import LanguageModel, generate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PROMPT, WRITTEN = 16, 64  # tokens, at most


def written_text(model: LanguageModel, tokenizer: Tokenizer, window: Tensor) -> str:
    """The beginning of a window [T] of unseen text, and after a mark how the model continues; always with the
    same seed, so that evaluations compare."""
    prompt = window[: min(PROMPT, max(1, model.config.context // 2))]
    count = min(WRITTEN, model.config.context - len(prompt))
    tokens = generate(model, prompt[None].to(model.device), count, temperature=0.8, seed=0)[0].tolist()
    return f"{tokenizer.decode(tokens[: len(prompt)])} ▸{tokenizer.decode(tokens[len(prompt) :])}"


def routing_figure(model: LanguageModel, window: Tensor, processes: int) -> Figure | None:
    """The routing wall on a window [T]; None for a model whose streams do not exchange by attention."""
    from srmlab.analysis.registry import has_stream_attention
    from srmlab.analysis.routing import routing

    if not has_stream_attention(model):
        return None
    return routing(model, [window[None]] * processes).figure()  # one pass in every process
