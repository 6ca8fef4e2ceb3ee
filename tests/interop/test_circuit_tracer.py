"""Transcoders in circuit-tracer's and SAELens' formats, and read by these where they are installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

sys.path.append(str(Path(__file__).parents[1] / "dictionaries"))
from counting import counting_model, text

import srmlab.dictionaries
from srmlab.dictionaries import Transcoders
from srmlab.errors import UserError
from srmlab.interop import circuit_tracer, saelens


@pytest.fixture(scope="module")
def small():
    return counting_model(5)


def learned(small, **options) -> Transcoders:
    return srmlab.dictionaries.learn(small, text, of="mlp", steps=4, features=24, k=3, **options)


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "skip"])
def transcoders(small, request) -> Transcoders:
    return learned(small, activation="batchtopk", skip=request.param)


@pytest.fixture(scope="module")
def crossing(small) -> Transcoders:
    return learned(small, activation="jumprelu", reach=2)


STATES = torch.randn(3, 20, 4, 16, generator=torch.Generator().manual_seed(0))  # call, token, stream, dim


@torch.no_grad()
def test_a_set_names_one_file_for_all_calls_and_its_codes_are_ours(transcoders, tmp_path):
    folders = circuit_tracer.save(transcoders, tmp_path)
    assert [str(f.relative_to(tmp_path)) for f in folders[:5]] == ["A/S0", "A/S1", "A/S2", "A/S3", "B/S0"]
    config = yaml.safe_load((folders[4] / "config.yaml").read_text())
    assert config["model_kind"] == "transcoder_set"
    assert config["transcoders"] == ["transcoder.safetensors"] * 3
    weights = load_file(folders[4] / "transcoder.safetensors")
    before = STATES[0, :, 0] @ weights["W_enc"].T + weights["b_enc"]
    codes = before.relu() * (before > weights["activation_function.threshold"])
    member = transcoders["B"]
    torch.testing.assert_close(codes, member.encode(STATES[0])[:, 0])
    written = codes @ weights["W_dec"] + weights["b_dec"]
    if "W_skip" in weights:
        written = written + STATES[0, :, 0] @ weights["W_skip"].T
    torch.testing.assert_close(written, member.write([member.encode(STATES[0])], STATES[0])[:, 0])


@torch.no_grad()
def test_one_across_layers_writes_what_ours_writes(crossing, tmp_path):
    folder = circuit_tracer.save(crossing, tmp_path)[1]  # A, stream 1
    member = crossing["A"]
    files = [load_file(folder / f"W_enc_{i}.safetensors") for i in range(3)]
    ahead = [load_file(folder / f"W_dec_{i}.safetensors")[f"W_dec_{i}"] for i in range(3)]
    assert [tuple(w.shape) for w in ahead] == [(24, 3, 16), (24, 2, 16), (24, 1, 16)]
    codes = []
    for i, weights in enumerate(files):
        before = STATES[i, :, 1] @ weights[f"W_enc_{i}"].T + weights[f"b_enc_{i}"]
        codes.append(before.relu() * (before > weights[f"threshold_{i}"]))
    for j in range(3):
        written = sum(codes[i] @ ahead[i][:, j - i] for i in range(j + 1)) + files[j][f"b_dec_{j}"]
        ours = member.write([member.encode(STATES[i]) for i in range(j + 1)], STATES[j])
        torch.testing.assert_close(written, ours[:, 1])


@torch.no_grad()
def test_circuit_tracer_reads_both(transcoders, crossing, tmp_path):
    pytest.importorskip("circuit_tracer", reason="circuit-tracer is not installed")
    one = pytest.importorskip("circuit_tracer.transcoder.single_layer_transcoder")
    across = pytest.importorskip("circuit_tracer.transcoder.cross_layer_transcoder")
    folder = circuit_tracer.save(transcoders, tmp_path / "set")[6]  # B, stream 2
    cpu = torch.device("cpu")
    theirs = one.load_relu_transcoder(
        str(folder / "transcoder.safetensors"), 0, device=cpu, lazy_encoder=False, lazy_decoder=False
    )
    member = transcoders["B"]
    torch.testing.assert_close(theirs.encode(STATES[0, :, 2]), member.encode(STATES[0])[:, 2])
    ours = member.write([member.encode(STATES[0])], STATES[0])[:, 2]
    torch.testing.assert_close(theirs(STATES[0, :, 2]), ours)
    folder = circuit_tracer.save(crossing, tmp_path / "clt")[1]
    clt = across.load_clt(str(folder), device=cpu, dtype=torch.float32)
    member = crossing["A"]
    codes = clt.encode(STATES[:, :, 1])
    torch.testing.assert_close(codes, torch.stack([member.encode(s)[:, 1] for s in STATES]))
    written = clt.decode(codes.to_sparse(), STATES[:, :, 1])
    ours = member.write([member.encode(s) for s in STATES], STATES[2])[:, 1]
    torch.testing.assert_close(written[2], ours)


@torch.no_grad()
def test_saelens_reads_transcoders(transcoders, tmp_path):
    folder = saelens.save_transcoders(transcoders, tmp_path)[6]
    assert folder == tmp_path / "B" / "S2"
    member = transcoders["B"]
    weights = load_file(folder / "sae_weights.safetensors")
    before = STATES[0, :, 2] @ weights["W_enc"] + weights["b_enc"]
    torch.testing.assert_close(
        before.relu() * (before > weights["threshold"]), member.encode(STATES[0])[:, 2]
    )
    sae_lens = pytest.importorskip("sae_lens", reason="SAELens is not installed")
    theirs = sae_lens.SAE.load_from_disk(folder)
    theirs.eval()
    torch.testing.assert_close(theirs.encode(STATES[0, :, 2]), member.encode(STATES[0])[:, 2])
    ours = member.write([member.encode(STATES[0])], STATES[0])[:, 2]
    torch.testing.assert_close(theirs(STATES[0, :, 2]), ours)


def test_what_saelens_does_not_have_is_refused(small, tmp_path):
    with pytest.raises(UserError, match="SAELens has no transcoder with topk"):
        saelens.save_transcoders(learned(small), tmp_path)
    with pytest.raises(UserError, match="circuit-tracer reads topk as ReLU"):
        circuit_tracer.save(learned(small), tmp_path)
    assert not list(tmp_path.iterdir())
