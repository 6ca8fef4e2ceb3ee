"""`srmlab circuit RUN`: what a prediction is made of, feature by feature."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from srmlab.cli.shared import RunsModel, at_least, finite, readable
from srmlab.errors import UserError
from srmlab.files import refuse_unwritable, write_file, writing

if TYPE_CHECKING:
    from srmlab.data import Tokenizer
    from srmlab.dictionaries import Features, Graph, Target, Transcoders

DESCRIBED = 2048  # tokens that features are described by


@dataclass(kw_only=True)
class Command(RunsModel):
    """Write the attribution graph of a prediction: which features, at which step, stream and token,
    produce it, and what produces those, down to the tokens. Features are those of the run's newest
    transcoders (`srmlab transcoder RUN`). The graph is checked by ablating features: the actual change
    in the target is compared with the predicted one, with that from random features, and with that from
    others of the same calls and tokens.

    Example:
        srmlab circuit runs/nano --prompt "The people of the United" --out graph.json
        srmlab circuit runs/nano --prompt "the United" --target " St" --against " N" --out graph.json
        srmlab circuit runs/nano --prompt "the United" --out graph.json --view circuit.js
        srmlab explore runs/nano --view circuit.js
        srmlab circuit --pretrained --prompt "The people of the United" --out graph.json
        srmlab circuit --pretrained --prompt "the United" --feature 6.B.3.48 --out feature.json
    """

    prompt: str
    """The prompt; the graph is for the next token."""
    out: Path
    """The JSON file to write, in Neuronpedia's format; must not exist."""
    transcoders: Path | None = None
    """Output folder of `srmlab transcoder --of mlp`; by default the run's newest."""
    target: str | None = None
    """The target token, as text; by default the most likely one."""
    against: str | None = None
    """Another token: explain the difference between the two logits."""
    feature: str | None = None
    """Explain a feature, not a logit: LAYER.STEP.STREAM.FEATURE, such as 6.B.3.48 (B:2, its second call)."""
    nodes: int = 384
    """Number of features to expand, the most influential first."""
    node_share: float = 0.8
    """Keep the fewest nodes with this share of all influence."""
    edge_share: float = 0.98
    """Keep the fewest edges with this share of those nodes' influence."""
    check: bool = True
    """Check the graph by ablating features."""
    view: Path | None = None
    """Also write the graph as a JavaScript view for `srmlab explore RUN --view FILE`."""

    def result(self) -> dict[str, Any]:
        from srmlab.dictionaries import attribute
        from srmlab.dictionaries.circuit_checks import check_circuit, prune
        from srmlab.interop.neuronpedia import document

        self.check_options()
        path, model, tokenizer = self.load()
        tokens = tokenizer.encode(self.prompt)
        target, probability = self.chosen_target(model, tokenizer, tokens)
        folder = self.transcoders or newest(path)
        transcoders, features = opened(folder, str(model.device))
        features = features or found_beside(path, transcoders)
        with self.display() as display:
            task = display.task("edges", self.nodes, "nodes")
            graph = attribute(model, transcoders, tokens, target, self.nodes, task.update)
        kept = prune(graph, self.node_share, self.edge_share)
        checked = check_circuit(model, transcoders, graph, kept) if self.check else None
        found = finite(scores(graph, kept, checked))
        decode = readable(tokenizer)
        actual = None if checked is None else checked.each
        written = document(
            graph, kept, decode, features, probability, self.out.stem, path.name, found, actual
        )
        with writing(self.out):
            write_file(self.out, json.dumps(written, ensure_ascii=False) + "\n")
        if self.view is not None:
            from srmlab.explorer.circuit_view import write_circuit_view  # imports matplotlib

            with writing(self.view, "--view"):
                write_circuit_view(written, self.view)
        words = summary(graph, kept, written, checked, self.out)
        return {"out": str(self.out), "transcoders": str(folder), **found, "summary": words}

    def lines(self, result: dict[str, Any]) -> list[str]:
        return [result["summary"]]

    def check_options(self) -> None:
        at_least(self, nodes=1)
        if not self.prompt:
            raise UserError("--prompt is empty: give some text")
        for option, file in (("--out", self.out), ("--view", self.view)):
            if file is not None:
                if file.is_dir():
                    raise UserError(f"{option} {file} is a folder: give a file")
                refuse_unwritable(file, option)
                if not file.parent.is_dir():
                    raise UserError(f"{option} {file}: {file.parent} does not exist; create it first")
        if self.view == self.out:
            raise UserError(f"--out and --view are both {self.out}: give two files")
        if self.feature is not None and (self.target is not None or self.against is not None):
            raise UserError("--feature cannot be combined with --target and --against")
        for name in ("node_share", "edge_share"):
            if not 0 < getattr(self, name) <= 1:
                option = name.replace("_", "-")
                raise UserError(f"--{option} {getattr(self, name)}: must be above 0 and at most 1")

    def chosen_target(self, model: Any, tokenizer: Tokenizer, tokens: list[int]) -> tuple[Target, float]:
        """The target, and its probability."""
        import torch

        from srmlab.dictionaries import Target

        if self.feature is not None:
            return Target(feature=place_of(self.feature, model)), 0.0
        with torch.no_grad():
            shares = model(torch.tensor([tokens], device=model.device))[0, -1].softmax(-1)
        token = int(shares.argmax()) if self.target is None else one_token(tokenizer, self.target, "--target")
        against = None if self.against is None else one_token(tokenizer, self.against, "--against")
        return Target(token=token, against=against), float(shares[token])


def one_token(tokenizer: Tokenizer, text: str, option: str) -> int:
    found = tokenizer.encode(text)
    if len(found) != 1:
        raise UserError(
            f"{option} {text!r} is {len(found)} tokens: give a single token, including any leading space"
        )
    return found[0]


def place_of(text: str, model: Any) -> tuple[int, int, int]:
    """LAYER.STEP.STREAM.FEATURE → call, stream and feature."""
    from srmlab.dictionaries.circuit import call_names, mlp_calls

    parts = text.split(".")
    names = call_names(mlp_calls(model))
    name = ".".join(parts[:2])
    if len(parts) != 4 or not all(part.isdecimal() for part in parts[2:]):
        raise UserError(f"--feature {text}: give LAYER.STEP.STREAM.FEATURE, such as {names[-1]}.0.17")
    if name not in names:
        several = [one for one in names if one.startswith(f"{name}:")]
        known = f"say which call: {', '.join(several)}" if several else f"there are {names[0]} to {names[-1]}"
        raise UserError(f"--feature {text}: no {name}; {known}")
    stream, feature, streams = int(parts[2]), int(parts[3]), len(model.streams)
    if stream >= streams:
        raise UserError(f"--feature {text}: no stream {stream}; there are 0 to {streams - 1}")
    return names.index(name), stream, feature


def newest(path: Path) -> Path:
    """The run's newest transcoders of MLPs."""
    from srmlab.dictionaries import lexicons_of
    from srmlab.dictionaries.transcoder import CONFIG

    others = []
    for folder in lexicons_of(path, CONFIG):
        of = json.loads((folder / CONFIG).read_text()).get("of")
        if of == "mlp":
            return folder
        others.append(str(of))
    only = f", only of {' and '.join(sorted(set(others)))}" if others else ""
    raise UserError(
        f"{path} has no transcoders of MLPs{only}: `srmlab transcoder {path}` trains them, or give "
        "--transcoders DIR"
    )


def opened(folder: Path, device: str) -> tuple[Transcoders, dict[str, Features]]:
    """Transcoders, and what is known of their features."""
    from srmlab.dictionaries import Features, load_transcoders

    transcoders = load_transcoders(folder, device)
    names = [member.config.name for member in transcoders]
    there = {name: folder / f"features-{name}" for name in names}
    return transcoders, {name: Features.load(file) for name, file in there.items() if Features.exists(file)}


def found_beside(path: Path, transcoders: Transcoders) -> dict[str, Features]:
    """What their features are, by the text that the model comes with, if it does: a shipped set is small
    enough to be described anew."""
    from srmlab.dictionaries.features import features_of
    from srmlab.interop.neuronpedia import EXAMPLES
    from srmlab.training.run_text import open_text, text_of

    if text_of(path) is None:
        return {}
    text = open_text(path)
    found = features_of(text.model, transcoders, text.batches(1, DESCRIBED), EXAMPLES)
    return {member.config.name: one for member, one in zip(transcoders, found, strict=True)}


def scores(graph: Graph, kept: Any, checked: Any) -> dict[str, Any]:
    import numpy as np

    from srmlab.dictionaries.circuit_checks import mean_size

    found: dict[str, Any] = {
        "value": graph.value,
        "constant": float(graph.constants[0]),
        "replacement": graph.replacement,
        "completeness": graph.completeness,
        "largest_error_of_sums": float(np.abs(graph.completed).max()),
        "active": len(graph.active),
        "nodes": len(kept.nodes) + 1,
        "edges": len(kept.weight),
    }
    if checked is not None:
        found |= {
            "correlation": checked.correlation,
            "correlation_interval": list(checked.interval),
            "slope": checked.slope,
            "sign_agreement": checked.sign_agreement,
            "sign_agreement_all": checked.sign_agreement_all,
            "change": mean_size(checked.actual),
            "change_random": mean_size(checked.random_actual),
            "change_matched": mean_size(checked.matched_actual),
            "whole": checked.whole,
            "whole_predicted": checked.whole_predicted,
            "whole_random": checked.random_whole.tolist(),
            "pairs": checked.pairs,
            "whole_paired": checked.paired_whole.tolist(),
            "whole_matched": checked.matched_whole.tolist(),
        }
    return found


def summary(graph: Graph, kept: Any, written: dict[str, Any], checked: Any, out: Path) -> str:
    nodes = written["nodes"]
    goal = nodes[-1]
    lines = [
        f"{goal['clerp']}: {graph.value:.3f}, of which {graph.constants[0]:.3f} is constant; "
        f"{len(graph.active):,} active features",
        f"  {len(kept.nodes)} nodes and {len(kept.weight)} edges kept; replacement {graph.replacement:.2f}, "
        f"completeness {graph.completeness:.2f}",
    ]
    lines += [] if checked is None else [checked.summary()]
    features = [one for one in nodes if one["feature_type"] == "cross layer transcoder"]
    for one in sorted(features, key=lambda one: -abs(one["srmlab"]["effect"]))[:8]:
        about = one["srmlab"]
        where = f"layer {about['level']} {about['step']} S{about['stream']} token {one['ctx_idx']}"
        lines.append(f"  {about['effect']:+.3f}  {where}  {one['clerp']}")
    return "\n".join([*lines, "", str(out)])
