"""`srmlab info NAME`: one model in full, with a drawing of its layer.

`describe` is the answer as plain data (what `--json` prints), `drawing` the picture.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, fields
from typing import Annotated, Any, get_type_hints

import tyro
from torch import Tensor

import srmlab
from srmlab.cli.presets import PAPER_PARAMETERS
from srmlab.errors import UserError
from srmlab.models import GPT2Config, HRMConfig, LanguageModel, ModelConfig, SRMConfig
from srmlab.models.ordering import LETTERS

WIDTH = 80  # columns of everything printed here


@dataclass
class Command:
    """Tell one model in full: a drawing, its config, parameters part by part, arithmetic, memory, sites.

    Example:
        srmlab info srm-base
        srmlab info srm-nano --set streams=16 order=ABCCBA
        srmlab info gpt2 --json
    """

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
    """A preset; `srmlab presets --sweep` lists them."""
    set: Annotated[tuple[str, ...], tyro.conf.arg(metavar="FIELD=VALUE")] = ()
    """Change fields of the config."""
    json: bool = False
    """Print JSON, for a program to read."""

    def run(self) -> None:
        config = changed(srmlab.preset(self.name), self.set)
        answer = describe(config, self.name)
        if self.json:
            print(json.dumps(answer, indent=2, ensure_ascii=False))
        else:
            print(report(config, answer))


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


def describe(config: ModelConfig, name: str) -> dict[str, Any]:
    """What `srmlab info` tells, as plain data. `name` is the preset that the config comes from."""
    model = srmlab.build(config, device="meta")
    flops = model.flops_per_token(config.context)
    parameters = model.num_parameters()
    cached = cached_values_per_token(model)
    as_named = config == srmlab.preset(name)
    return {
        "name": name,
        "changed": not as_named,
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


def cached_values_per_token(model: LanguageModel) -> int:
    """How many numbers a decoding cache keeps of one token: keys and values of every attention call."""
    match model.config:
        case SRMConfig() as c:
            width = c.streams * c.token_heads * c.head_dim
        case HRMConfig() as c:
            width = c.heads * c.head_dim
        case GPT2Config() as c:
            width = c.dim
        case _:
            raise AssertionError(model.config)
    return 2 * model.attention_calls * width


# Parameters, part by part


def parts(model: LanguageModel) -> list[dict[str, Any]]:
    """Every parameter once, gathered by the part of the architecture that it belongs to."""
    gathered: dict[str, list[tuple[str, Tensor]]] = {}
    for name, parameter in model.named_parameters():
        part, weight = part_of(name)
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


def part_of(parameter: str) -> tuple[str, str]:
    """A parameter's part, and its name in there: layer.steps.1.qkv.weight → step B, qkv.weight"""
    patterns = [  # the first that matches
        (r"input_function\.(embedding)\.", lambda found: found),
        (r"input_function\.(to_streams)\.", lambda _: "to streams"),
        (r"pre\.(\d+)\.", lambda i: f"pre-step {i}"),
        (r"layer\.(connection)\.", lambda found: found),
        (r"layer\.(norm)\.", lambda _: "update norm"),
        (r"layer\.steps\.(\d+)\.", lambda i: f"step {LETTERS[int(i)]}"),
        (r"post\.(\d+)\.", lambda i: f"post-step {i}"),
        (r"output_function\.(from_streams)\.", lambda _: "from streams"),
        (r"output_function\.(unembedding)\.", lambda found: found),
        (r"low\.(\d+)\.", lambda b: f"L block {b}"),
        (r"high\.(\d+)\.", lambda b: f"H block {b}"),
        (r"blocks\.(\d+)\.", lambda b: f"block {b}"),
        (r"(head)\.", lambda _: "unembedding"),
        (r"(norm)\.", lambda _: "final norm"),
        (r"(\w+)\.?", lambda found: found),  # embedding, positions, z0
    ]
    for pattern, part in patterns:
        if found := re.match(pattern, parameter):
            return part(found[1]), parameter[found.end() :] or parameter
    raise AssertionError(parameter)


# Sites

_INDEX = {"layers": "l", "steps": "i", "pre": "i", "post": "i", "cycles": "h", "low": "l", "blocks": "b"}


def site_scheme(names: list[str]) -> dict[str, int]:
    """The site names as patterns with their counts: {"layers.{l}.steps.{i}.in|attn|mlp|out": 96, …}."""
    leaves: dict[str, list[str]] = {}
    counts: Counter[str] = Counter()
    for name in names:
        generic = re.sub(r"(\w+)\.\d+", lambda found: f"{found[1]}.{{{_INDEX[found[1]]}}}", name)
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
            drawing(config),
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
    preset = srmlab.preset(answer["name"])
    rows = []
    for field in fields(config):
        value = getattr(config, field.name)
        mark = "*" if value != getattr(preset, field.name) else " "
        rows.append(f"{mark} {field.name:<17}{value}")
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
        lines.append(f"  {name:<13}{count:>11,} {share:>6.1%}  {_shapes(part['weights'])}".rstrip())
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
    full = _si(cache["float32"] * flops["context"], "B")
    rows = [
        ("forward", flops["forward"], "FLOP", f"per token, at a context of {flops['context']}"),
        ("training", flops["training"], "FLOP", f"per token: {ratio:.2f} × forward"),
        ("weights", weights["float32"], "B", f"in float32, {_si(weights['bfloat16'], 'B')} in bfloat16"),
        ("training state", answer["training_bytes"], "B", "with gradients and Adam's moments, in float32"),
        ("decoding cache", cache["float32"], "B", f"per token in float32, {full} when full"),
    ]
    lines = [f"  {name:<14} {_si(number, unit):>11} {what}" for name, number, unit, what in rows]
    calls = f"{'':<29}keys and values of {answer['attention_calls']} attention calls"
    return "\n".join(["arithmetic and memory", *lines, calls])


def _sites_section(answer: dict[str, Any]) -> str:
    scheme = answer["sites"]["scheme"]
    lines = [f"  {pattern:<52}{count:>5}" for pattern, count in scheme.items()]
    return "\n".join(
        [f"sites: {answer['sites']['count']}, numbered from 0; `model.site_names` lists them", *lines]
    )


def _si(number: float, unit: str) -> str:
    for size, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {prefix}{unit}"
    return f"{number:g} {unit}"


# The drawings


def drawing(config: ModelConfig) -> str:
    """The model in text, at most 80 columns wide."""
    match config:
        case SRMConfig():
            return _draw_srm(config)
        case HRMConfig():
            return _draw_hrm(config)
        case GPT2Config():
            return _draw_gpt2(config)
    raise AssertionError(config)


def _frame(title: str, lines: list[str], width: int = WIDTH) -> list[str]:
    top = f"╭─ {title} ".ljust(width - 1, "─") + "╮"
    return [top, *(f"│{line:<{width - 2}}│" for line in lines), "╰" + "─" * (width - 2) + "╯"]


def _draw_connection(c: SRMConfig, lanes: Lanes) -> list[str]:
    joined = {"between": "═══════…═══════", "joint": "═"}
    first = {
        "attention": ("c = connection(z)", "●", joined, f"{c.stream_heads} heads"),
        "addition": ("c = sum of the others", "●", joined, "no weights"),
        "none": ("c = 0", "│", {}, "no weights"),
    }
    left, cells, between, right = first[c.connection]
    return [
        lanes.row(left, cells, **between, right=right),
        lanes.row("y = RMSNorm(c + x)", "│", right=f"of {c.head_dim}" if c.connection == "attention" else ""),
    ]


def _draw_srm(c: SRMConfig) -> str:
    """Streams are lanes, the connection joins them, the steps stand on each: read from top to bottom."""
    calls = c.step_order.calls
    letters = [LETTERS[i] for i in calls] if calls else ["?"] * c.calls_per_layer
    lanes = Lanes(c.streams)
    layer = [
        lanes.row(cells=list(map(str, lanes.labels)), between="…", right="stream"),
        lanes.row(cells="│"),
        *_draw_connection(c, lanes),
        lanes.row(cells="┌─┴─┐"),
    ]
    for i, letter in enumerate(letters):
        if i:
            layer.append(lanes.row(cells="├───┤"))
        layer.append(lanes.row(f"z = {letter}(z + y)", f"│ {letter} │", between="…"))
    layer += [lanes.row(cells="└─┬─┘"), lanes.row(cells="│")]

    times = "once" if c.depth == 1 else f"{c.depth} times"
    gradient = "all" if c.gradient_depth == c.depth else f"the last {c.gradient_depth}"
    z0 = {"fixed": "a fixed random state", "learned": "a learned state", "zero": "zero", "input": "x"}[c.z0]
    names = ", ".join(LETTERS[: c.step_functions])
    embedding = f"embedding {c.vocab_size} → {c.embedding_dim}"
    lines = [f"x    tokens ─▶ {embedding} ─▶ to streams → {c.streams} × {c.stream_dim}"]
    if c.pre_steps:
        lines.append(f"pre  x = P(x), {_extra_steps(c.pre_steps)}")
    lines.append(f"z₀   {z0}" + (", the same for every token" if c.z0 in ("fixed", "learned") else ""))
    lines += _frame(f"one layer, applied {times}; gradient through {gradient}", layer)
    if calls is None:
        lines.append(f"?    one of {names}, drawn anew for every step of every layer")
    if c.post_steps:
        reads = "z" if c.post_input == "state" else "z + y"
        lines.append(f"post z = P({reads}), {_extra_steps(c.post_steps)}")
    lines += [
        f"out  z ─▶ from streams → {c.embedding_dim} ─▶ unembedding → {c.vocab_size}"
        + (" (tied)" if c.tied else ""),
        "",
        f"Each of {names}: for every stream a block of its own"
        if c.step_functions > 1
        else "A: for every stream a block of its own",
        *_parallel_block(
            f"attention over tokens, {c.token_heads} × {c.head_dim}",
            f"MLP {c.stream_dim} → {c.mlp_dim} → {c.stream_dim}, GELU",
        ),
    ]
    return "\n".join(lines)


class Lanes:
    """The streams as columns of text: all of them up to four, else the first three and the last."""

    def __init__(self, streams: int) -> None:
        self.gap = streams > 4
        self.labels = [0, 1, 2, streams - 1] if self.gap else list(range(streams))
        self.columns = [29, 39, 49, 65] if self.gap else [29 + 10 * i for i in range(streams)]

    def row(
        self,
        left: str = "",
        cells: str | list[str] = "",
        between: str = "",
        joint: str = " ",
        right: str = "",
    ) -> str:
        """A cell on every lane, `between` in the gap of lanes left out, `joint` from lane to lane."""
        canvas = list(" " * (WIDTH - 2))

        def put(start: int, text: str) -> None:
            canvas[start : start + len(text)] = text

        put(2, left)
        put(self.columns[0], joint * (self.columns[-1] - self.columns[0]))
        if self.gap:
            put(57 - len(between) // 2, between)
        for i, column in enumerate(self.columns):
            cell = cells if isinstance(cells, str) else cells[i]
            put(column - len(cell) // 2, cell)
        put(self.columns[-1] + 4, right)
        return "".join(canvas)


def _extra_steps(count: int) -> str:
    return (
        "an extra step function with weights of its own"
        if count == 1
        else f"{count} extra step functions, each with its own weights"
    )


def _parallel_block(attention: str, mlp: str) -> list[str]:
    """Attention and MLP side by side on the same input, one norm after."""
    width = max(len(attention), len(mlp)) + 3
    return [
        f"     ┌─▶ {(attention + ' ').ljust(width, '─')}┐",
        f"u ───┼─{'─' * (width + 2)}┼─▶ + ─▶ RMSNorm ─▶ z",
        f"     └─▶ {(mlp + ' ').ljust(width, '─')}┘",
    ]


def _draw_hrm(c: HRMConfig) -> str:
    low, high = ("net", "net") if c.shared_net else ("L", "H")
    low_call = f"  z_L  ◀─  {f'{low}(z_L + z_H + x)':<24}{c.low_blocks} blocks"
    inner = [
        "",
        *(f"  {line}" for line in _frame(f"low cycle, {c.low_cycles} times", [low_call], width=60)),
        "",
        f"     z_H  ◀─  {f'{high}(z_H + z_L)':<24}{c.high_blocks} blocks",
        "",
    ]
    gradient = (
        "the last call of L and the last of H" if c.gradient == "last-call" else "the whole last high cycle"
    )
    shared = "One net plays both parts. " if c.shared_net else ""
    return "\n".join(
        (
            f"x    tokens ─▶ embedding {c.vocab_size} → {c.dim}",
            "z_L, z_H start as fixed random states, the same for every token",
            *_frame(f"high cycle, {c.high_cycles} times; gradient through {gradient}", inner),
            f"out  z_H ─▶ unembedding {c.dim} → {c.vocab_size}" + (" (tied)" if c.tied else ""),
            "",
            f"{shared}A block, post-norm:",
            f"  h = RMSNorm(h + attention(h))   over tokens, {c.heads} × {c.head_dim}",
            f"  h = RMSNorm(h + MLP(h))         {c.dim} → {c.mlp_dim} → {c.dim}, GELU",
        )
    )


def _draw_gpt2(c: GPT2Config) -> str:
    inner = [
        "",
        f"  h = h + attention(LayerNorm(h))   over tokens, {c.heads} × {c.dim // c.heads}",
        f"  h = h + MLP(LayerNorm(h))         {c.dim} → {c.mlp_dim} → {c.dim}, GELU",
        "",
    ]
    return "\n".join(
        (
            f"h    tokens ─▶ embedding {c.vocab_size} → {c.dim}, and {c.context} learned positions",
            *_frame(f"{c.blocks} blocks, each with its own weights", inner),
            f"out  h ─▶ LayerNorm ─▶ unembedding {c.dim} → {c.vocab_size}" + (" (tied)" if c.tied else ""),
        )
    )
