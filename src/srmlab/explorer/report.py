"""The report: one HTML file with everything inside, to send to a colleague.

    from srmlab.explorer.opening import open_run
    write_report(open_run("runs/nano"), "report.html", run="runs/nano")

It begins with what the model is and how good it is, then says in a few sentences what was found (see
`story`), then shows the explorer's own views on a few traces, with a sentence under each that the view
computes from the trace. All analyses, config and provenance are its appendix. It opens from a file, makes no
network request, and its policy (`default-src 'none'`, scripts and styles by their hash) makes the browser
hold it to that.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import srmlab
from srmlab.data import open_tokens, reference_losses
from srmlab.errors import UserError
from srmlab.explorer.frontend import script, styles
from srmlab.explorer.leaderboard import leaderboards, read_results, svg_image
from srmlab.explorer.session import Session
from srmlab.explorer.story import Finding, load_results, story
from srmlab.explorer.trace import Trace
from srmlab.files import write_file
from srmlab.storage.metrics_file import read_metrics
from srmlab.training.run import run_config
from srmlab.training.run_puzzles import reads_puzzles

CURVE_POINTS = 1000  # of the training curve; longer runs are averaged down


def write_report(
    session: Session,
    path: str | Path,
    *,
    run: str | Path | None = None,
    prompts: Sequence[str] = (),
    traces: Sequence[Trace] = (),
    results: str | Path | None = None,
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> Path:
    """Write the report of a session. `prompts` are traced for it (by default the session's own); `run` adds
    its training curve and the figures of its analyses (some seconds; `progress` gets which is being drawn,
    how many are, and of how many), `results` the experiments in a folder of `srmlab sweep`'s.
    """
    path = Path(path)
    made = list(traces) or [session.trace(session.encode(prompt)) for prompt in (prompts or session.prompts)]
    record = read_record(run)
    experiments = leaderboards(read_results(results)) if results is not None else ""
    drawn = figures(run, session.saved, progress)
    findings = [] if run is None else story(*load_results(Path(run) / "analysis"))
    how_good = quality(run, training := training_curve(run))
    text = page(session, made, training, record, experiments, drawn, findings, how_good)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, text)
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror}): choose another --out") from None
    return path


def page(
    session: Session,
    traces: Sequence[Trace],
    training: dict[str, Any] | None,
    record: dict[str, Any],
    experiments: str = "",
    drawn: Mapping[str, str] | None = None,
    findings: Sequence[Finding] = (),
    how_good: str = "",
) -> str:
    data = {
        "python": session.python,
        "training": training,
        "traces": [packed(trace) for trace in traces],
    }
    unit = "prompt" if session.info()["generates"] else "board"
    code = f"{script('report.js')}\nentry_module.start();"
    style = styles()
    policy = f"default-src 'none'; script-src '{_hash(code)}'; style-src '{_hash(style)}'; img-src data:"
    content = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(session.name)} – SRM report</title>
<style>{style}</style>
</head>
<body>
<div class="report">
{_opening(session, training, record, how_good)}
{_findings(findings, drawn or {})}
<h2>Inside {len(traces)} {unit}{"s" if len(traces) != 1 else ""}</h2>
<div id="tabs"></div>
</div>
<main id="app"></main>
{experiments}
{_appendix(session, record, drawn or {})}
<script type="application/json" id="data">{content}</script>
<script>{code}</script>
</body>
</html>
"""


def packed(trace: Trace) -> str:
    """A trace as text: gzipped and in base64. The same trace gives the same text."""
    return base64.b64encode(gzip.compress(trace.to_bytes(), mtime=0)).decode()


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


# the training curve


def read_record(run: str | Path | None) -> dict[str, Any]:
    """What `run.json` says, or nothing."""
    if run is None:
        return {}
    try:
        return json.loads((Path(run) / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def training_curve(run: str | Path | None) -> dict[str, Any] | None:
    """Steps, training loss and (where it was measured) validation loss, from the run's `metrics.jsonl`; of
    puzzles the loss of the cells, without that of halting, and the share of test boards solved at the end."""
    if run is None:
        return None
    loss: dict[int, float] = {}
    val: dict[int, float] = {}
    solved: dict[int, float] = {}
    unit = "token"
    try:
        rows = read_metrics(Path(run) / "metrics.jsonl")
    except OSError:
        return None
    for row in rows:
        step = row.get("step")
        unit = "cell" if "cell_loss" in row else unit
        names = ("cell_loss" if "cell_loss" in row else "loss", "val_loss", "val_solved")
        for name, into in zip(names, (loss, val, solved), strict=True):
            value = row.get(name)
            if isinstance(step, int) and isinstance(value, int | float) and math.isfinite(value):
                into[step] = float(value)
    if not loss:
        return None
    steps, values = _thinned(sorted(loss.items()))
    known = sorted(set(steps) | set(val))
    by_step = dict(zip(steps, values, strict=True))
    return {
        "step": known,
        "loss": [by_step.get(step) for step in known],
        "val": [val.get(step) for step in known],
        "unit": unit,
        "solved": solved[max(solved)] if solved else None,
    }


def _thinned(points: list[tuple[int, float]]) -> tuple[list[int], list[float]]:
    """At most CURVE_POINTS points: means over equal stretches, each at its last step."""
    size = math.ceil(len(points) / CURVE_POINTS)
    stretches = [points[i : i + size] for i in range(0, len(points), size)]
    return [s[-1][0] for s in stretches], [round(sum(v for _, v in s) / len(s), 5) for s in stretches]


def training_sentence(training: dict[str, Any]) -> str:
    losses = [
        (step, value)
        for step, value in zip(training["step"], training["loss"], strict=True)
        if value is not None
    ]
    tail = [value for _, value in losses[-max(1, len(losses) // 20) :]]
    sentence = (
        f"Training loss goes from {losses[0][1]:.2f} to {sum(tail) / len(tail):.2f} nats per "
        f"{training['unit']} "
        f"in {losses[-1][0]:,} steps"
    )
    measured = [
        (value, step)
        for step, value in zip(training["step"], training["val"], strict=True)
        if value is not None
    ]
    if measured:
        best, at = min(measured)
        sentence += f"; validation loss is lowest at step {at:,}, {best:.3f}"
    if training["solved"] is not None:
        sentence += f". At the last measurement, {training['solved']:.1%} of its test boards are solved"
    return sentence + "."


# what was measured


def figures(
    run: str | Path | None,
    names: Collection[str],
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> dict[str, str]:
    """The figures of a run's saved analyses by name, as images; some seconds for all of them."""
    from srmlab import analysis
    from srmlab.figures import figures_of, save

    if run is None:
        return {}
    found = {}
    with TemporaryDirectory() as folder:
        for number, name in enumerate(names):
            progress(name, number, len(names))
            stem = Path(run) / "analysis" / name
            if not stem.with_name(f"{name}.json").is_file():
                continue
            result = analysis.load(stem)
            if figures_of(result.kind):
                (file,) = save(result.figure(), Path(folder) / name, ("svg",))
                found[name] = svg_image(file, f"{name}: {result.headline()}")
    progress("", len(names), len(names))
    return found


def _measured(name: str, found: dict[str, str], figure: str) -> str:
    return (
        f"<section><h3>{escape(name.replace('_', ' '))}</h3><p>{escape(found['headline'])}</p>{figure}"
        f"<details><summary>{escape(found['evidence'])}</summary><pre>{escape(found['summary'])}</pre>"
        "</details></section>"
    )


# what stands first and last


def _opening(session: Session, training: dict[str, Any] | None, record: dict[str, Any], how_good: str) -> str:
    info = session.info()
    lead = f"{info['parameters']:,} parameters: {', '.join(info['shape'])}. {trained_on(record)}"
    parts = [f'<h1>{escape(session.name)}</h1><p class="lead">{escape(lead.strip())}</p>']
    if training is not None:
        sentence = f"{training_sentence(training)} {validated_on(record)} {how_good}".strip()
        parts.append(
            f'<h2>How good it is</h2><div id="training"></div><p class="caption">{escape(sentence)}</p>'
        )
    return "\n".join(parts)


def trained_on(record: dict[str, Any]) -> str:
    """What a run was trained on, from its record: the name of the data and how much of it was read."""
    training = record.get("training", {})
    data = Path(record.get("data", {}).get("path", "")).name
    if "puzzles" in record.get("data", {}):
        return f"Trained for {training['steps']:,} steps of {training['batch_size']} boards of {data}."
    amount = ""
    if context := training.get("context") or record.get("model", {}).get("context"):
        amount = f"{training.get('steps', 0) * training.get('batch_size', 0) * context:,} tokens"
    words = " of ".join(word for word in (amount if not amount.startswith("0 ") else "", data) if word)
    return f"Trained on {words}." if words else ""


def validated_on(record: dict[str, Any]) -> str:
    """Which part of the validation text the losses of training are of, if it may not be like the whole."""
    training = record.get("training", {})
    is_board = "puzzles" in record.get("data", {})
    if is_board or "eval_tokens" not in training or training.get("eval_windows") == "spread":
        return ""
    return (
        f"Validation loss is that of the first {training['eval_tokens']:,} tokens of the validation text; "
        "srmlab evaluate reads all of it."
    )


def quality(run: str | Path | None, training: dict[str, Any] | None) -> str:
    """The validation loss beside that of counting pairs of tokens, if the run's data is where it was."""
    measured = [value for value in (training or {}).get("val", []) if value is not None]
    if run is None or not measured or reads_puzzles(Path(run)):
        return ""
    try:
        found = run_config(Path(run))
    except (UserError, OSError, KeyError):
        found = None
    if found is None:
        return ""
    try:
        data = open_tokens(found.data, verify=False)
        part = None if found.training.eval_windows == "spread" else found.training.eval_tokens
        beside = reference_losses(data.train, data.val, val_tokens=part)
    except (UserError, OSError, KeyError):  # the run was moved, or made elsewhere
        return "The data of this run is not here, so bigram and unigram counts could not be set beside it."
    return (
        f"The last is {measured[-1]:.3f}; {'on the same tokens' if part else 'on the whole text'} bigram "
        f"counts reach {beside.bigram:.3f} and unigram counts {beside.unigram:.3f}."
    )


def _findings(findings: Sequence[Finding], drawn: Mapping[str, str]) -> str:
    if not findings:
        return ""
    items = "".join(
        f"<li><div><div><p><strong>{escape(finding.text)}</strong> {escape(finding.sure)}</p>"
        f'<p class="caption">{escape(finding.evidence)}</p></div>{drawn.get(finding.kind, "")}</div></li>'
        for finding in findings
    )
    return f'<h2>What was found</h2><ol class="findings">{items}</ol>'


def _appendix(session: Session, record: dict[str, Any], drawn: Mapping[str, str]) -> str:
    parts = ['<div class="report"><h2>Appendix: all that was measured</h2>'] if session.saved else []
    if session.saved:
        measured = [_measured(name, found, drawn.get(name, "")) for name, found in session.saved.items()]
        parts.append(f'<div class="measured">{"".join(measured)}</div></div>')
    parts.append(
        f'<div class="report"><h2>Appendix: provenance and config</h2>{_provenance(session.info(), record)}'
        "</div>"
    )
    return "\n".join(parts)


def _provenance(info: dict[str, Any], record: dict[str, Any]) -> str:
    rows = {"srmlab": srmlab.__version__, "tokenizer": info["tokenizer"], "config": info["config_hash"]}
    rows |= {f"trained with {name}": version for name, version in record.get("versions", {}).items()}
    if info["dictionary"]:
        rows["dictionary"] = info["dictionary"]
    if "created" in record:
        rows["started"] = record["created"]
    if "data" in record:
        rows["data"] = record["data"].get("fingerprint", "")
    table = "".join(
        f'<tr><td class="name">{escape(str(k))}</td><td>{escape(str(v))}</td></tr>' for k, v in rows.items()
    )
    configs = {"model": info["config"]} | ({"training": record["training"]} if "training" in record else {})
    return (
        f"<table>{table}</table><details><summary>config in "
        f"full</summary><pre>{escape(json.dumps(configs, indent=1))}</pre></details>"
    )
