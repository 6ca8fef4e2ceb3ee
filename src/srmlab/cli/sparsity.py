"""`srmlab sparsity RUN`: features in use against what is lost, over several k and seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from srmlab.cli.dictionary import Activation, Learning, chosen_layers
from srmlab.cli.shared import refuse
from srmlab.errors import UserError

if TYPE_CHECKING:
    from srmlab.dictionaries import Dictionary, Transcoders
    from srmlab.dictionaries.curve import AnyQuality
    from srmlab.models import LanguageModel
    from srmlab.progress import Task
    from srmlab.training.run_text import RunText


@dataclass(kw_only=True)
class Command(Learning):
    """Train SAEs or transcoders at several sparsities and seeds, and plot active features (L0) against
    variance explained and loss recovered with all streams replaced, next to shuffled features.

    Example:
        srmlab sparsity runs/nano --k 1 2 4 8 --seeds 2
        srmlab sparsity runs/nano --of mlp --activations topk --tokens 50000 --twin
        srmlab sparsity runs/nano --layers every --activations topk batchtopk jumprelu --tokens 100000
    """

    k: tuple[int, ...] = (1, 2, 4, 8)
    """Active features (L0)."""
    seeds: int = 2
    """Seeds per setting, counting from --seed."""
    activations: tuple[Activation, ...] = ("topk", "batchtopk", "jumprelu")
    """Activation functions to compare."""
    of: Literal["states", "mlp", "attention", "step"] = "states"
    """SAEs of the states, or transcoders of a part of every step."""
    layers: tuple[str, ...] = ("last",)
    """For SAEs: the layers to train on: last, every, or 0, 1 …"""
    tokens: int = 200_000
    """Tokens to train each on."""
    twin: bool = False
    """Also train each on an untrained twin, as a null."""
    eval_tokens: int = 8_192
    """Validation tokens to measure on, in windows spread evenly over the text."""
    out: Path | None = None
    """Folder to write; by default dictionaries/sparsity-LAYERS (or -OF) in the run, or next to an export."""

    def learn(self) -> dict[str, Any]:
        from srmlab import dictionaries
        from srmlab.analysis.null import twins
        from srmlab.figures import save_all
        from srmlab.files import sealed_folder

        if self.seeds < 1 or not self.k or not self.activations:
            raise UserError("--k, --seeds and --activations: give at least one of each")
        of_states = self.of == "states"
        if not of_states:
            refuse(self, "layers", why=f"is for --of states, not for {self.of}")
        text = self.text()
        steps = self.steps(text)
        out = self.folder(text, f"sparsity-{'-'.join(self.layers) if of_states else self.of}")
        others = [twin for _, twin in twins(text.model, self.seeds)] if self.twin else []
        held_out = text.batches(self.batch_size, self.eval_tokens)
        found: dict[str, list[Sequence[AnyQuality]]] = {"found": [], "shuffled": [], "untrained": []}
        with self.display() as display:
            task = display.task("learning", steps * self.seeds * (2 if self.twin else 1), "steps")
            for seed in range(self.seeds):
                done = steps * seed * (2 if self.twin else 1)
                learned = self.learned(text.model, text, seed, steps, task, done)
                null = [one.changed("shuffled") for one in learned]
                worth = self.measured(text.model, [*learned, *null], held_out)
                found["found"].append(worth[: len(learned)])
                found["shuffled"].append(worth[len(learned) :])
                for twin in others[seed : seed + 1]:
                    learned = self.learned(twin, text, seed, steps, task, done + steps)
                    found["untrained"].append(self.measured(twin, learned, held_out))
        what = f"states after {' '.join(self.layers)}" if of_states else f"every step's {self.of}"
        by_entry = {name: list(chain(*zip(*rows, strict=True))) for name, rows in found.items()}
        curve = dictionaries.curve(seeds=self.seeds, of=what, **by_entry)
        with sealed_folder(out) as folder:
            curve.save(folder / "sparsity")
            save_all(curve, folder / "figures")
            (folder / "summary.txt").write_text(curve.summary() + "\n", encoding="utf-8")
        numbers = ("active", "explained", "recovered", "dead", "shuffled")
        return {
            "model": str(text.path),
            "out": str(out),
            "activations": list(curve.activations),
            "k": list(curve.ks),
            **{name: getattr(curve, name).tolist() for name in numbers},
            "untrained": curve.untrained.tolist() if self.twin else None,
            "summary": curve.summary(),
        }

    def learned(
        self, model: LanguageModel, text: RunText, seed: int, steps: int, task: Task, done: int
    ) -> list[Dictionary | Transcoders]:
        """One for every activation and k, all from the same passes of the model."""
        from srmlab.dictionaries.learning import learn_all, new_learner

        where = {"layers": chosen_layers(self.layers)} if self.of == "states" else {}
        shared = {"features": self.features, "seed": self.seed + seed} | where
        learned = [
            new_learner(model, self.of, k=k, activation=kind, **shared)
            for kind in self.activations
            for k in self.k
        ]
        learn_all(
            model,
            text.training_batches(self.batch_size, self.seed + seed).batch,
            [member for one in learned for member in one.members],
            steps,
            self.lr,
            dead=self.dead,
            progress=lambda now, left: task.update(done + now, f"{left:.1%} unexplained"),
        )
        return learned

    def measured(self, model: LanguageModel, learned: list[Any], held_out: Any) -> Sequence[AnyQuality]:
        from srmlab.dictionaries.quality import qualities
        from srmlab.dictionaries.transcoder_quality import transcoder_qualities

        measure = qualities if self.of == "states" else transcoder_qualities
        return measure(model, learned, held_out)
