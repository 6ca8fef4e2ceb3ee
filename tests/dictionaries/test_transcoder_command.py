from __future__ import annotations

import json
from pathlib import Path

import pytest

import srmlab.analysis
import srmlab.dictionaries
from srmlab.cli import main
from subjects import trained_run


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    return trained_run(tmp_path_factory.mktemp("transcoder"))


SHORT = ("--tokens", 512, "--eval-tokens", 128, "--batch-size", 4)


def run(capsys, *arguments: object) -> tuple[int, str, str]:
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


def test_transcoders_from_a_run_to_their_files(trained, capsys):
    code, out, _ = run(
        capsys, "transcoder", trained, *SHORT, "--activation", "batchtopk", "--twin", "--saelens",
        "--circuit-tracer",
    )  # fmt: skip
    assert code == 0
    assert "Transcoders of every step's mlp: 64 features" in out
    for null in ("features shuffled", "directions at random", "learned on an untrained twin"):
        assert f"null, {null}" in out
    folder = trained / "dictionaries" / "transcoders-mlp-64-1-batchtopk"
    assert [t.config.name for t in srmlab.dictionaries.load_transcoders(folder)] == ["A", "B", "C"]
    found = srmlab.analysis.load(folder / "quality")
    assert found.replaced[0] == "A S0"
    assert srmlab.analysis.load(folder / "features-B").fired.shape == (3, 64)
    for name in ("figures/transcoders.png", "features-C.html", "saelens/A/S1/cfg.json", "SHA256SUMS"):
        assert (folder / name).is_file()
    assert (folder / "circuit-tracer" / "C" / "S2" / "config.yaml").is_file()
    code, _, err = run(capsys, "transcoder", trained, *SHORT, "--activation", "batchtopk")
    assert code == 2
    assert "exists and is not overwritten" in err


def test_across_layers_and_per_depth_as_json(trained, capsys, tmp_path):
    code, out, _ = run(
        capsys, "transcoder", trained, *SHORT, "--reach", 3, "--no-each", "--json", "--out", tmp_path / "clt"
    )
    answer = json.loads(out)
    assert code == 0
    assert answer["names"] == ["A", "B", "C"]
    assert set(answer["recovered"]) == {"quality", "shuffled", "random"}
    code, out, _ = run(
        capsys,
        "transcoder",
        trained,
        *SHORT,
        "--per-depth",
        "--no-each",
        "--json",
        "--out",
        tmp_path / "apart",
    )
    assert len(json.loads(out)["names"]) == 9


def test_the_curve_of_transcoders(trained, capsys):
    code, out, _ = run(
        capsys, "sparsity", trained, *SHORT, "--of", "mlp", "--k", 1, "--seeds", 1, "--activations", "topk"
    )
    assert code == 0
    assert "every step's mlp" in out
    assert (trained / "dictionaries" / "sparsity-mlp" / "figures" / "sparsity.png").is_file()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--reach", 9), "reach = 9: give 1 to 3 levels"),
        (("--k", 0), "k = 0: give 1 to 64"),
        (("--saelens",), "SAELens has no transcoder with topk"),
        (("--circuit-tracer",), "circuit-tracer reads topk as ReLU: learn with --activation batchtopk"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(trained, capsys, tmp_path, options, message):
    code, out, err = run(
        capsys, "transcoder", trained, *SHORT, *options, "--json", "--out", tmp_path / "never"
    )
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "never").exists()
