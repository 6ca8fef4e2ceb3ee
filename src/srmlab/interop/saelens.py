"""Dictionaries in SAELens' format: for every stream a folder of `cfg.json` and `sae_weights.safetensors`.

    folders = srmlab.interop.saelens.save(dictionary, "exports/nano-sae")   # …/S0, …/S1, …
    sae = sae_lens.SAE.load_from_disk("exports/nano-sae/S3")                # sae.encode(states of stream 3)
    again = srmlab.interop.saelens.load(folders)                            # a stream each, in their order

The codes are equal. topk is SAELens' topk; batchtopk and jumprelu are its jumprelu. Neither SAELens nor the
network is needed. `load` also takes what SAELens has learned itself (`sae.save_inference_model(folder)`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from srmlab.dictionaries.dictionary import Dictionary, DictionaryConfig, of_states, usual_k
from srmlab.dictionaries.transcoder import Transcoder, Transcoders
from srmlab.errors import UserError
from srmlab.files import write_file

CONFIG, WEIGHTS = "cfg.json", "sae_weights.safetensors"
KINDS = ("topk", "jumprelu")


def save(dictionary: Dictionary, folder: str | Path) -> list[Path]:
    """Write a folder for every stream into `folder`; their paths."""
    of_states(dictionary)
    written = []
    for stream in range(dictionary.config.streams):
        weights = {
            "W_enc": dictionary.encoder[stream],
            "b_enc": dictionary.bias[stream],
            "W_dec": dictionary.directions[stream],
            "b_dec": dictionary.centre[stream],
        }
        if dictionary.threshold is not None:
            weights["threshold"] = dictionary.threshold[stream].clamp(min=0)
        written.append(write_sae(Path(folder) / f"S{stream}", described(dictionary.config, stream), weights))
    return written


def write_sae(folder: Path, config: dict[str, Any], weights: dict[str, Tensor]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_tensors(weights, folder / WEIGHTS)
    write_file(folder / CONFIG, json.dumps(config, indent=2) + "\n")
    return folder


def save_tensors(weights: dict[str, Tensor], path: Path) -> None:
    """Each with memory of its own, as the format wants it."""
    from safetensors.torch import save_file

    save_file({name: value.detach().cpu().contiguous().clone() for name, value in weights.items()}, path)


def described(config: DictionaryConfig, stream: int) -> dict[str, Any]:
    """`cfg.json` of one stream."""
    metadata = {
        "hook_name": config.points[-1] if config.points else None,
        "points": list(config.points),
        "stream": stream,
        "model": config.model,
        "k": config.k,
        "activation": config.activation,
    }
    found: dict[str, Any] = {
        "architecture": "jumprelu" if config.has_threshold else "topk",
        "d_in": config.dim,
        "d_sae": config.features,
        "dtype": "float32",
        "device": "cpu",
        "apply_b_dec_to_input": True,
        "normalize_activations": "none",
        "reshape_activations": "none",
        "metadata": metadata,
    }
    return found if config.has_threshold else found | {"k": config.k, "rescale_acts_by_decoder_norm": False}


def load(folders: Iterable[str | Path]) -> Dictionary:
    """One dictionary out of a folder for every stream, in this order."""
    if isinstance(folders, str | Path):
        raise UserError(
            f"folders = {str(folders)!r}: give a list, SAELens' folder of every stream in their order"
        )
    read = [read_sae(Path(folder)) for folder in folders]
    if not read:
        raise UserError("no folders to load: give one of SAELens' for every stream")
    first, weights = read[0]
    alike = ("architecture", "d_in", "d_sae", *(["k"] if first["architecture"] == "topk" else []))
    for config, _ in read[1:]:
        if any(config[name] != first[name] for name in alike):
            raise UserError(
                "these folders are of unlike sizes or kinds: a dictionary has one for all streams"
            )
    numbers = [(config.get("metadata") or {}).get("stream") for config, _ in read]
    known = [number for number in numbers if number is not None]
    if known != sorted(known):  # as of folders sorted by name: S0, S1, S10, S2 …
        raise UserError(f"folders of streams {', '.join(map(str, known))}: give them in the streams' order")
    metadata = first.get("metadata") or {}
    activation = "topk" if first["architecture"] == "topk" else metadata.get("activation", "jumprelu")
    config = DictionaryConfig(
        streams=len(read),
        dim=first["d_in"],
        features=first["d_sae"],
        k=first.get("k") or metadata.get("k") or min(first["d_sae"], usual_k(first["d_in"])),
        points=tuple(metadata.get("points") or filter(None, [metadata.get("hook_name")])),
        model=metadata.get("model") or "",
        activation=activation,
    )
    dictionary = Dictionary(config)
    stacked = {name: torch.stack([w[name] for _, w in read]) for name in weights}
    try:
        dictionary.load_state_dict(stacked)
    except RuntimeError as error:
        raise UserError(f"these weights do not fit their cfg.json ({error}); save them again") from None
    return dictionary.eval()


def read_sae(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The config of a folder, and its weights as ours are called."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        config = json.loads((folder / CONFIG).read_text())
        found = {name: value.float() for name, value in load_file(folder / WEIGHTS).items()}
        kind, norm = config["architecture"], config.get("normalize_activations", "none")
        if kind not in KINDS:
            raise UserError(f"{folder} is of the kind {kind!r}: only {' and '.join(KINDS)} are read")
        if norm != "none":
            raise UserError(f"{folder} normalises its input ({norm}): fold that in before saving")
        encoder, bias, directions = found["W_enc"], found["b_enc"], found["W_dec"]
        if not config.get("apply_b_dec_to_input", True):
            bias = bias + found["b_dec"] @ encoder  # we take the centre off first
        if config.get("rescale_acts_by_decoder_norm"):
            size = directions.norm(dim=-1)
            encoder, bias, directions = encoder * size, bias * size, directions / size[:, None]
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise UserError(f"{folder} holds no sparse autoencoder of SAELens ({error}); give one") from None
    ours = {"encoder": encoder, "bias": bias, "directions": directions, "centre": found["b_dec"]}
    return config, ours | ({"threshold": found["threshold"]} if kind == "jumprelu" else {})


def save_transcoders(transcoders: Transcoders, folder: str | Path) -> list[Path]:
    """Write a folder STEP/STREAM for every transcoder, as SAELens' jumprelu_transcoder. It has none with a
    top-k, nor one that writes into several layers.
    """
    config = transcoders.config
    check(config.activation, config.reach)
    written = []
    for member in transcoders:
        for stream in range(config.streams):
            read = described(member.config, stream)
            kind = "jumprelu_skip_transcoder" if config.skip else "jumprelu_transcoder"
            read |= {"architecture": kind, "d_out": config.dim, "apply_b_dec_to_input": False}
            read["metadata"] |= {
                "hook_name_out": member.config.writes[-1],
                "writes": list(member.config.writes),
            }
            where = Path(folder) / member.config.name / f"S{stream}"
            written.append(write_sae(where, read, plain_weights(member, stream)))
    return written


def check(activation: str, reach: int) -> None:
    """Refuse transcoders that SAELens does not have."""
    if activation == "topk" or reach > 1:
        raise UserError(
            "SAELens has no transcoder with topk, and none across layers: learn with --activation batchtopk "
            "and without --reach"
        )


def plain_weights(member: Transcoder, stream: int) -> dict[str, Tensor]:
    """One stream's weights as W_enc [D, F], b_enc, W_dec [F, D], b_dec, threshold, W_skip [out, in]: without
    a centre, which is in b_enc.
    """
    encoder = member.encoder[stream]
    weights = {
        "W_enc": encoder,
        "b_enc": member.bias[stream] - member.centre[stream] @ encoder,
        "W_dec": member.directions[stream],
        "b_dec": member.target[stream],
    }
    if member.threshold is not None:
        weights["threshold"] = member.threshold[stream].clamp(min=0)
    return weights if member.skip is None else weights | {"W_skip": member.skip[stream].T}
