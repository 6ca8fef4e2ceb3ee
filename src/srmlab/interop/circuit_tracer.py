"""Transcoders in circuit-tracer's format: a folder STEP/STREAM each, with `config.yaml` and safetensors.

    srmlab.interop.circuit_tracer.save(transcoders, "exports/nano-transcoders")

Its "layers" are the calls of the step function. One transcoder serves them all, so a set names one file as
often as there are calls; one that writes across layers is a cross_layer_transcoder, whose files the format
repeats for every layer. Features with thresholds are circuit-tracer's JumpReLU, and codes are equal. TopK is
refused: circuit-tracer (0.5) would take it for ReLU.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

from srmlab.dictionaries.transcoder import Transcoder, Transcoders
from srmlab.errors import UserError
from srmlab.files import write_file
from srmlab.interop.saelens import plain_weights, save_tensors

ONE = "transcoder.safetensors"


def save(transcoders: Transcoders, folder: str | Path) -> list[Path]:
    """Write a folder for every step function and stream; their paths."""
    check(transcoders.config.activation)
    written = []
    for member in transcoders:
        for stream in range(member.config.streams):
            where = Path(folder) / member.config.name / f"S{stream}"
            where.mkdir(parents=True, exist_ok=True)
            files = (
                write_set(member, stream, where) if member.later is None else write_clt(member, stream, where)
            )
            write_file(where / "config.yaml", described(member, stream, files))
            written.append(where)
    return written


def check(activation: str) -> None:
    """Refuse transcoders that circuit-tracer would misread."""
    if activation == "topk":
        raise UserError("circuit-tracer reads topk as ReLU: learn with --activation batchtopk")


def described(member: Transcoder, stream: int, files: list[str]) -> str:
    config = member.config
    kind = "transcoder_set" if member.later is None else "cross_layer_transcoder"
    lines = {
        "model_kind": kind,
        "model_name": config.model,
        "feature_input_hook": config.points[0],
        "feature_output_hook": config.writes[0],
        "scan": f"srmlab-{config.model}-{config.name}-S{stream}",
        "activation": "jump_relu",
        "k": config.k,
        "stream": stream,
        "points": list(config.points),
        "writes": list(config.writes),
    }
    if member.later is None:
        lines["transcoders"] = files
    return "".join(f"{name}: {json.dumps(value)}\n" for name, value in lines.items())  # JSON is YAML


def write_set(member: Transcoder, stream: int, folder: Path) -> list[str]:
    weights = plain_weights(member, stream)
    weights["W_enc"] = weights["W_enc"].T
    if "threshold" in weights:
        weights["activation_function.threshold"] = weights.pop("threshold")
    save_tensors(weights, folder / ONE)
    return [ONE] * len(member.config.levels)


def write_clt(member: Transcoder, stream: int, folder: Path) -> list[str]:
    weights, calls = plain_weights(member, stream), len(member.config.levels)
    into = {j: dict(member.distances(j)) for j in range(calls)}
    directions, nothing = member.written(), torch.zeros_like(member.directions[stream])
    files = []
    for i in range(calls):
        encoder = {
            f"W_enc_{i}": weights["W_enc"].T,
            f"b_enc_{i}": weights["b_enc"],
            f"b_dec_{i}": weights["b_dec"],
        }
        if "threshold" in weights:
            encoder[f"threshold_{i}"] = weights["threshold"]
        if "W_skip" in weights:
            encoder[f"W_skip_{i}"] = weights["W_skip"].T  # input @ W_skip
        ahead = [directions[into[j][i]][stream] if i in into[j] else nothing for j in range(i, calls)]
        save_tensors(encoder, folder / f"W_enc_{i}.safetensors")
        save_tensors(
            {f"W_dec_{i}": torch.stack(ahead, 1)}, folder / f"W_dec_{i}.safetensors"
        )  # [F, ahead, D]
        files += [f"W_enc_{i}.safetensors", f"W_dec_{i}.safetensors"]
    return files
