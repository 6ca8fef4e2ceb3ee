"""`srmlab info NAME`: one model in full, with a drawing of its layer; and the run it comes from.

`describe` is the answer as plain data (what `--json` prints).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import tyro
from torch import Tensor

import srmlab
from srmlab.cli.presets import PAPER_PARAMETERS
from srmlab.cli.run_info import describe_path, path_section
from srmlab.cli.shared import OR_PRETRAINED, Answers
from srmlab.errors import UserError
from srmlab.models import PRESETS, SWEEP_PRESETS, LanguageModel, ModelConfig
from srmlab.models.ordering import LETTERS
from srmlab.progress import si
from srmlab.training.initial import model_of
from srmlab.training.run_text import chosen

WIDTH = 80  # columns of everything printed here


@dataclass
class Command(Answers):
    """Describe a model: computation, config, parameters by part, FLOP, memory and sites (hook points). For
    a run, checkpoint or export, first its training: steps, data, losses, contents.

    Example:
        srmlab info srm-base
        srmlab info runs/nano
        srmlab info --pretrained
        srmlab info srm-nano --set streams=16 order=ABCCBA
        srmlab info gpt2 --json
    """

    name: Annotated[
        str | None, tyro.conf.Positional, tyro.conf.arg(metavar="NAME", help_behavior_hint=OR_PRETRAINED)
    ] = None
    """A preset (`srmlab presets --sweep` lists them), or a run, a checkpoint or an export."""
    pretrained: bool = False
    """Use the srm-nano that ships with the package, or with `--pretrained sudoku` the sudoku model."""
    set: Annotated[tuple[str, ...], tyro.conf.arg(metavar="FIELD=VALUE", help_behavior_hint="")] = ()
    """Change fields of the config."""

    def result(self) -> dict[str, Any]:
        if self.name is None and not self.pretrained:
            raise UserError("NAME missing; `srmlab info --help` shows the options")
        if self.name is not None and (is_preset(self.name) or not Path(self.name).exists()):
            return describe(changed(self.preset(self.name), self.set), self.name)
        path = chosen(self.name, self.pretrained)
        if self.set:
            raise UserError(f"--set changes a preset, and {path} is trained: leave it out")
        config, about = model_of(path), describe_path(path)
        preset = about.get("preset")
        return describe(config, preset or config.architecture, named=bool(preset)) | {"about": about}

    def lines(self, result: dict[str, Any]) -> Iterator[str]:
        if "about" in result:
            yield path_section(result["about"]) + "\n"
        yield report(srmlab.config_from_dict(result["config"]), result)

    def preset(self, name: str) -> ModelConfig:
        if self.pretrained:
            raise UserError(f"give either {name} or --pretrained")
        if "/" in name:
            raise UserError(f"{name} does not exist: give a preset, a run, a checkpoint or an export")
        return srmlab.preset(name)


def is_preset(name: str) -> bool:
    return name in {**PRESETS, **SWEEP_PRESETS}


def changed(config: ModelConfig, settings: tuple[str, ...]) -> ModelConfig:
    """The config after settings such as "streams=16", each read as the type of its field."""
    kinds = get_type_hints(type(config))
    changes: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise UserError(f"--set {setting}: write FIELD=VALUE, such as --set context=512")
        changes[name] = _read(text, kinds.get(name, str))
    return config.replace(**changes)  # refuses unknown names and wrong types, in one line


def _read(text: str, kind: Any) -> Any:
    if kind is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    try:
        return kind(text) if kind in (int, float) else text
    except ValueError:
        return text


def describe(config: ModelConfig, name: str, named: bool = True) -> dict[str, Any]:
    """What `srmlab info` shows, as plain data. `name` is the preset of the config, unless not `named`."""
    model = srmlab.build(config, device="meta")
    flops = model.flops_per_token(config.context)
    parameters = model.num_parameters()
    cached = model.recording.cached_values
    named = named and is_preset(name)
    as_named = named and config == srmlab.preset(name)
    return {
        "name": name,
        "changed": named and not as_named,
        "config": config.to_dict(),
        "parameters": parameters,
        "paper": PAPER_PARAMETERS.get(name) if as_named else None,
        "parts": parts(model),
        "flops_per_token": {"context": config.context, "forward": flops.forward, "training": flops.training},
        "weight_bytes": {"float32": 4 * parameters, "bfloat16": 2 * parameters},
        "training_bytes": 16
        * parameters,  # fp32 weights, their gradients and Adam's two moments; activations not counted
        "cache_bytes_per_token": {"float32": 4 * cached, "bfloat16": 2 * cached},
        "attention_calls": model.attention_calls,
        "sites": {"count": len(model.site_names), "scheme": site_scheme(model.site_names)},
    }


# Parameters, part by part


def parts(model: LanguageModel) -> list[dict[str, Any]]:
    """Every parameter once, gathered by the part of the architecture that it belongs to."""
    gathered: dict[str, list[tuple[str, Tensor]]] = {}
    for name, parameter in model.named_parameters():
        part, weight = part_of(name, model.parts)
        gathered.setdefault(part, []).append((weight, parameter))
    total = model.num_parameters()
    return [
        {
            "name": part,
            "parameters": (count := sum(p.numel() for _, p in weights)),
            "share": count / total,
            "weights": {weight: list(p.shape) for weight, p in weights},
        }
        for part, weights in gathered.items()
    ]


def part_of(parameter: str, labels: Mapping[str, str]) -> tuple[str, str]:
    """A parameter's part, and its name in there: layer.steps.1.qkv.weight → step B, qkv.weight"""
    for start, label in labels.items():
        if found := re.match(start.replace(".", r"\.").replace("*", r"(\d+)") + r"\.", parameter):
            i = int(found[1]) if found.groups() else 0
            return label.format(i=i, letter=LETTERS[i % len(LETTERS)]), parameter[found.end() :]
    part, _, weight = parameter.partition(".")
    return part, weight or parameter


# Sites


INDEX = {"steps": "i", "pre": "i", "post": "i", "cycles": "h"}  # others by their first letter


def site_scheme(names: list[str]) -> dict[str, int]:
    """The site names as patterns with their counts: {"layers.{l}.steps.{i}.in|attn|mlp|out": 96, …}."""
    leaves: dict[str, list[str]] = {}
    counts: Counter[str] = Counter()
    for name in names:
        generic = re.sub(
            r"(\w+)\.\d+", lambda found: f"{found[1]}.{{{INDEX.get(found[1], found[1][0])}}}", name
        )
        stem, _, leaf = generic.rpartition(".")
        counts[stem] += 1
        if leaf not in leaves.setdefault(stem, []):
            leaves[stem].append(leaf)
    return {f"{stem}.{'|'.join(leaf)}".lstrip("."): counts[stem] for stem, leaf in leaves.items()}


# The report


def report(config: ModelConfig, answer: dict[str, Any]) -> str:
    """Everything, for a reader at a terminal."""
    return "\n\n".join(
        (
            _heading(answer),
            config.drawing,
            _config_section(config, answer),
            _parts_section(answer),
            _numbers_section(answer),
            _sites_section(answer),
        )
    )


def _heading(answer: dict[str, Any]) -> str:
    name = answer["name"] + (", changed" if answer["changed"] else "")
    paper = f" (the paper: {answer['paper']})" if answer["paper"] else ""
    return f"{name}: {answer['parameters']:,} parameters{paper}"


def _config_section(config: ModelConfig, answer: dict[str, Any]) -> str:
    preset = srmlab.preset(answer["name"]) if answer["changed"] else config
    widest = max(len(field.name) for field in fields(config))
    rows = []
    for field in fields(config):
        value = getattr(config, field.name)
        mark = "*" if value != getattr(preset, field.name) else " "
        rows.append(f"{mark} {field.name:<{widest}} {value}")
    half = (len(rows) + 1) // 2
    pairs = zip(rows[:half], [*rows[half:], *[""] * half], strict=False)
    lines = [f"{left:<40}{right}".rstrip() for left, right in pairs]
    return "\n".join(["config" + (" (* changed)" if answer["changed"] else ""), *lines])


def _parts_section(answer: dict[str, Any]) -> str:
    """One line a part; a run of equal parts (the blocks of GPT-2) is one line with its number."""
    runs: list[tuple[dict[str, Any], int]] = []
    for part in answer["parts"]:
        last = runs[-1] if runs else None
        numbered = part["name"][-1].isdigit()
        if (
            last
            and numbered
            and part["name"].split()[0] == last[0]["name"].split()[0]
            and part["weights"] == last[0]["weights"]
        ):
            runs[-1] = (last[0], last[1] + 1)
        else:
            runs.append((part, 1))
    lines = ["parameters"]
    for part, times in runs:
        name = part["name"] if times == 1 else f"{times} {part['name'].rpartition(' ')[0]}s"
        count, share = times * part["parameters"], times * part["share"]
        line = f"  {name:<13}{count:>11,} {share:>6.1%}  {_shapes(part['weights'])}".rstrip()
        lines.append(line if len(line) <= WIDTH else f"{line[: WIDTH - 1].rsplit(' ', 1)[0]} …")
    lines.append(f"  {'all':<13}{answer['parameters']:>11,} {1:>6.0%}")
    if answer["config"]["tied"]:
        lines[-1] += "  the unembedding is the embedding"
    return "\n".join(lines)


def _shapes(weights: dict[str, list[int]]) -> str:
    """The matrices of a part, "8×(512·1536 512·512)" when every stream has its own; no biases or norms."""
    shapes = list(weights.values())
    matrices = [shape[-2:] for shape in shapes if len(shape) in (2, 3)]
    words = " ".join(f"{rows}·{columns}" for rows, columns in matrices)
    streams = shapes[0][0] if len(shapes[0]) == 3 else 1
    return words if streams == 1 else f"{streams}×({words})"


def _numbers_section(answer: dict[str, Any]) -> str:
    flops, weights, cache = answer["flops_per_token"], answer["weight_bytes"], answer["cache_bytes_per_token"]
    ratio = flops["training"] / flops["forward"]
    full = si(cache["float32"] * flops["context"])
    rows = [
        ("forward", flops["forward"], "FLOP", f"per token, at a context of {flops['context']}"),
        ("training", flops["training"], "FLOP", f"per token: {ratio:.2f} × forward"),
        ("weights", weights["float32"], "B", f"in float32, {si(weights['bfloat16'])} in bfloat16"),
        ("training state", answer["training_bytes"], "B", "with gradients and Adam's moments, in float32"),
    ]
    if answer["attention_calls"]:  # a model of puzzles reads the whole board, and decodes nothing
        what = f"per token in float32, {full} when full"
        rows.append(("decoding cache", cache["float32"], "B", what))
    lines = [f"  {name:<14} {si(number, unit):>11} {what}" for name, number, unit, what in rows]
    if answer["attention_calls"]:
        lines.append(f"{'':<29}keys and values of {answer['attention_calls']} attention calls")
    return "\n".join(["arithmetic and memory", *lines])


def _sites_section(answer: dict[str, Any]) -> str:
    scheme = answer["sites"]["scheme"]
    lines = [f"  {pattern:<52}{count:>5}" for pattern, count in scheme.items()]
    return "\n".join(
        [f"sites: {answer['sites']['count']}, counted from 0; `model.site_names` lists them", *lines]
    )
