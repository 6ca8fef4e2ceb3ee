"""A prompt before and after an intervention.

>>> import srmlab, torch
>>> from srmlab.analysis import AblatedStream, Intervention
>>> model = srmlab.build(srmlab.preset("srm-nano", vocab_size=257)).eval()
>>> baseline = Baseline.of(model, torch.arange(6))
>>> silence = AblatedStream(stream=5, mode="mean", first=7, last=7)
>>> outcome = evaluate(model, baseline, Intervention(ablations=(silence,)))
>>> outcome.kl.shape                          # KL(full ‖ changed) in bits, one a token
torch.Size([6])
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from srmlab.analysis.interventions import Intervention
from srmlab.analysis.readout import BITS, kl_divergence
from srmlab.analysis.states import StateMeans, state_means
from srmlab.dictionaries import Dictionary
from srmlab.explorer.lens import Reading
from srmlab.models import LanguageModel


@dataclass(frozen=True)
class Baseline:
    """A prompt without intervention: what an outcome is compared with, and where the means come from."""

    tokens: Tensor  # [T]
    log_probs: Tensor  # [T, V]
    means: StateMeans  # over the evaluation tokens, or over this prompt
    reading: Reading = field(default_factory=Reading)

    @classmethod
    @torch.inference_mode()
    def of(
        cls,
        model: LanguageModel,
        tokens: Tensor,
        reference: StateMeans | None = None,
        reading: Reading | None = None,
    ) -> Baseline:
        means, reading = reference or state_means(model, [tokens[None]]), reading or Reading()
        return cls(tokens, reading.log_probs(model(tokens[None])[0]), means, reading)


@dataclass(frozen=True)
class Outcome:
    """The same prompt with the intervention."""

    log_probs: Tensor  # [T, V]
    kl: Tensor  # [T] KL(full ‖ changed), bits


@torch.inference_mode()
def evaluate(
    model: LanguageModel, baseline: Baseline, intervention: Intervention, dictionary: Dictionary | None = None
) -> Outcome:
    """One forward pass with the intervention, against the baseline."""
    intervention.check(model, len(baseline.tokens), dictionary)
    hooks = intervention.hooks(model, baseline.means, dictionary)
    logits = model.run_with_hooks(baseline.tokens[None], fwd_hooks=hooks)
    changed = baseline.reading.log_probs(logits[0])
    return Outcome(changed, kl_divergence(baseline.log_probs, changed) * BITS)
