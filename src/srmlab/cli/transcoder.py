"""`srmlab transcoder RUN`: learn transcoders of the step functions, one for all depths."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from srmlab.cli.dictionary import LearningOne
from srmlab.cli.shared import readable

if TYPE_CHECKING:
    from srmlab.dictionaries import Transcoders
    from srmlab.progress import Display
    from srmlab.training.run_text import RunText


@dataclass(kw_only=True)
class Command(LearningOne):
    """Train transcoders for an SRM on its training text: one per step function and stream, from the
    step's input to its MLP's output, shared by all layers and calls. On validation text, measure variance
    explained, and loss recovered when one or all of them replace the MLPs throughout the recursion, next
    to nulls: shuffled features and random directions.

    Example:
        srmlab transcoder runs/nano
        srmlab transcoder runs/nano --activation batchtopk --skip --circuit-tracer --saelens
        srmlab transcoder runs/nano --reach 8                # features write into all later layers
        srmlab transcoder runs/nano --per-depth --out dictionaries/apart
        srmlab transcoder --pretrained --data data/sotu --out dictionaries/nano
    """

    of: Literal["mlp", "attention", "step"] = "mlp"
    """What they approximate: the MLP's output, attention's, or the whole step's."""
    skip: bool = False
    """Add a linear skip connection."""
    reach: int = 1
    """Number of layers a feature writes into, counting its own: 1 to the model's depth."""
    per_depth: bool = False
    """Train one per call instead of one for all depths, for comparison."""
    tokens: int = 200_000
    """Tokens to train on; each is used at all depths."""
    batch_size: int = 2
    """Windows per batch; bounds memory."""
    each: bool = True
    """Also measure each step function and stream alone, at two passes each."""
    twin: bool = False
    """Also train on an untrained twin, as a null."""
    circuit_tracer: bool = False
    """Also write circuit-tracer's files; needs --activation batchtopk or jumprelu."""
    out: Path | None = None
    """Folder to write; by default dictionaries/transcoders-OF-FEATURES-K in the run, or next to an export."""

    def learn(self) -> dict[str, Any]:
        from srmlab import dictionaries
        from srmlab.analysis.null import twins
        from srmlab.dictionaries.features import features_of
        from srmlab.dictionaries.transcoder_quality import transcoder_qualities
        from srmlab.interop import circuit_tracer, saelens

        if self.saelens:
            saelens.check(self.activation, self.reach)  # now rather than after learning
        if self.circuit_tracer:
            circuit_tracer.check(self.activation)
        text = self.text()
        model, held_out = text.model, text.batches(self.batch_size, self.eval_tokens)
        steps, out = self.steps(text), self.folder(text, self.usual_name(model.config))
        with self.display() as display:
            transcoders = self.learned(text, model, steps, display, "learning")
            progress = display.tasks(len(held_out), "batches")
            nulls = ("shuffled", "random")
            several = [transcoders, *(transcoders.changed(how) for how in nulls)]
            worth = transcoder_qualities(model, several, held_out, self.each, partial(progress, "quality"))
            found: dict[str, Any] = dict(zip(("quality", *nulls), worth, strict=True))
            if self.twin:
                _, twin = next(twins(model, 1))
                other = self.learned(text, twin, steps, display, "learning on the twin")
                found["twin"] = dictionaries.transcoder_quality(
                    twin, other, held_out, each=False, progress=partial(progress, "twin")
                )
            features = {}
            if not self.per_depth:
                described = features_of(model, transcoders, held_out, progress=partial(progress, "features"))
                names = (member.config.name for member in transcoders)
                features = dict(zip(names, described, strict=True))
        self.write(out, transcoders, found, features, readable(text.tokenizer))
        quality = found["quality"]
        return {
            "model": str(text.path),
            "out": str(out),
            "tokens": steps * text.context * self.batch_size,
            "names": list(quality.names),
            "active": quality.mean_active,
            "dead": quality.dead,
            "loss": float(quality.loss),
            "explained": {name: one.mean_explained for name, one in found.items()},
            "recovered": {name: one.all_recovered for name, one in found.items()},
            "summary": summary(found),
        }

    def learned(self, text: RunText, model: Any, steps: int, display: Display, name: str) -> Transcoders:
        from srmlab import dictionaries

        return dictionaries.learn(
            model,
            text.training_batches(self.batch_size, self.seed).batch,
            of=self.of,
            skip=self.skip,
            reach=self.reach,
            per_depth=self.per_depth,
            **self.options(display.task(name, steps, "steps"), steps),
        )

    def write(
        self,
        out: Path,
        transcoders: Transcoders,
        found: dict[str, Any],
        features: dict[str, Any],
        decode: Any,
    ) -> None:
        """All of the folder, or nothing."""
        from srmlab import dictionaries
        from srmlab.figures import save_all
        from srmlab.files import sealed_folder
        from srmlab.interop import circuit_tracer, saelens

        with sealed_folder(out) as folder:
            dictionaries.save_transcoders(transcoders, folder)
            for name, quality in found.items():
                quality.save(folder / name)
            save_all(found["quality"], folder / "figures")
            for name, one in features.items():
                one.save(folder / f"features-{name}")
                title = f"Features of step {name}"
                dictionaries.write_page(one, folder / f"features-{name}.html", decode, title)
            (folder / "summary.txt").write_text(summary(found) + "\n", encoding="utf-8")
            if self.saelens:
                saelens.save_transcoders(transcoders, folder / "saelens")
            if self.circuit_tracer:
                circuit_tracer.save(transcoders, folder / "circuit-tracer")

    def usual_name(self, config: Any) -> str:
        kinds = [word for word, on in (("skip", self.skip), ("per-depth", self.per_depth)) if on]
        kinds += [f"reach-{self.reach}"] if self.reach > 1 else []
        return "-".join(("transcoders", self.of, self.sizes(config), *kinds))


def summary(found: dict[str, Any]) -> str:
    """What they are worth, and what the nulls are."""
    names = {
        "shuffled": "features shuffled (each writes what another would)",
        "random": "directions at random",
        "twin": "learned on an untrained twin",
    }
    lines = [found["quality"].summary()]
    for name, words in names.items():
        if name in found:
            one = found[name]
            explained, recovered = one.text("mean_explained", ".1%"), one.text("all_recovered", ".1%")
            unsure = abs(float(one.standard_error("all_recovered"))) > 1  # its MLPs lower no loss
            loss = "no loss to recover" if unsure else f"{recovered} recovered"
            lines.append(f"  null, {words}: {explained} explained, {loss}")
    return "\n".join(lines)
