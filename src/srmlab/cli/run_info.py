"""What `srmlab info` says about a run, a checkpoint or an export before it describes the model."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from srmlab.progress import si
from srmlab.storage import RunDirectory, saved_tokenizer
from srmlab.storage.metrics_file import LAST_STEPS, Losses
from srmlab.storage.save_and_load import is_huggingface
from srmlab.storage.weights import checkpoint_steps, read_json
from srmlab.training.run import RunConfig


def describe_path(path: Path) -> dict[str, Any]:
    """What a folder holds besides a model, as plain data."""
    found = RunDirectory.find(path)
    run = RunConfig.read(found.path) if found else None
    tokenizer = saved_tokenizer(path)
    step = None
    if (path / "training.json").is_file():
        step = read_json(path / "training.json")["step"]
    answer: dict[str, Any] = {
        "path": str(path),
        "kind": kind_of(path),
        "bytes": sum(file.stat().st_size for file in path.rglob("*") if file.is_file()),
        "tokenizer": tokenizer.name if tokenizer else None,
    }
    if found and run:
        answer |= {
            "preset": run.preset,
            "data": {"path": str(run.data), "there": run.data.exists(), "fingerprint": run.data_fingerprint},
            "init_from": str(run.init_from.path) if run.init_from else None,
            "training": run.training.to_dict(),
            "tokens_per_step": run.training.tokens_per_step(run.model.context),
            "loss": losses(found.metrics, step),
            "checkpoints": checkpoint_steps(found.checkpoints),
        }
        record = found.record()
        answer |= {name: record[name] for name in ("created", "versions") if name in record}
    if step is not None:
        answer["step"] = step
    folders = {"analysis": "*.npz", "dictionaries": "*/"}
    answer["holds"] = {
        name: sorted(item.stem for item in (path / name).glob(pattern))
        for name, pattern in folders.items()
        if any((path / name).glob(pattern))
    }
    return answer


def kind_of(path: Path) -> str:
    if (path / "training.json").is_file():
        return "checkpoint"
    if not (path / "config.json").is_file():
        return "run"
    return "export for Hugging Face tools" if is_huggingface(path) else "export"


def losses(metrics: Path, until: int | None = None) -> dict[str, Any]:
    """How far a run came (`until` a step): tokens, both losses there, and the lowest of validation."""
    found = Losses.read(metrics, until)
    best = min(found.validation, key=lambda at: found.validation[at], default=None)
    return {
        "step": found.step,
        "tokens": found.tokens,
        "training": found.mean,
        "validation": found.last,
        "lowest_validation": None if best is None else {"step": best, "loss": found.validation[best]},
    }


def path_section(answer: dict[str, Any]) -> str:
    rows = [("on disk", si(answer["bytes"]))]
    if "loss" in answer:
        rows = [*_training_rows(answer), *rows]
    if answer["tokenizer"]:
        rows.append(("tokenizer", answer["tokenizer"]))
    rows += [(name, ", ".join(items)) for name, items in answer["holds"].items()]
    at = f" at step {answer['step']}" if "step" in answer else ""
    preset = f", preset {answer['preset']}" if answer.get("preset") else ""
    article = "an" if answer["kind"].startswith("export") else "a"
    heading = f"{answer['path']}: {article} {answer['kind']}{at}{preset}"
    indented = (textwrap.wrap(text, 64) or [""] for _, text in rows)
    lines = [
        f"  {name if number == 0 else '':<14}{line}"
        for (name, _), wrapped in zip(rows, indented, strict=True)
        for number, line in enumerate(wrapped)
    ]
    return "\n".join([heading, *lines])


def _training_rows(answer: dict[str, Any]) -> list[tuple[str, str]]:
    training, loss, data = answer["training"], answer["loss"], answer["data"]
    rows = [
        ("training", f"{loss['step']:,} of {training['steps']:,} steps, {loss['tokens']:,} tokens"),
        (
            "",
            f"{training['optimizer']}, lr {training['lr']:g}, {answer['tokens_per_step']:,} tokens per step",
        ),
    ]
    if loss["training"] is not None:
        last = min(loss["step"], LAST_STEPS)
        rows.append(("loss", f"{loss['training']:.4f} in training (mean of the last {last} steps)"))
    if (best := loss["lowest_validation"]) is not None:
        lowest = f", lowest {best['loss']:.4f} at step {best['step']:,}"
        same = best["loss"] == loss["validation"]
        rows.append(("", f"{loss['validation']:.4f} in validation{'' if same else lowest}"))
    there = "" if data["there"] else " (not found)"
    rows.append(("data", f"{data['path']}{there}, {data['fingerprint'][:12]}"))
    if answer["init_from"]:
        rows.append(("weights from", answer["init_from"]))
    kept = ", ".join(f"{step:,}" for step in answer["checkpoints"])
    rows.append(("checkpoints", f"step {kept}" if kept else "none"))
    if "created" in answer:
        versions = ", ".join(f"{name} {version}" for name, version in answer["versions"].items())
        rows.append(("started", f"{answer['created'][:10]}, {versions}"))
    return rows
