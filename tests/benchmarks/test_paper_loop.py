"""The yardstick is the same model: the pseudocode's loop and SRM agree, so their times can be compared."""

import functools
import os
import sys
from pathlib import Path

import pytest
import torch

import srmlab

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def _benchmarks_importable(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))


def small_model():
    return srmlab.build(
        srmlab.preset(
            "srm-base",
            vocab_size=61,
            context=16,
            embedding_dim=16,
            streams=3,
            stream_dim=8,
            mlp_dim=12,
            head_dim=4,
        )
    )


def test_the_pseudocode_loop_gives_the_models_logits_and_loss():
    from paper_loop import PaperLoop

    model = small_model()
    loop = PaperLoop.like(model)
    tokens = torch.randint(61, (2, 16), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(loop(tokens), model(tokens), atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(loop(tokens, tokens), model(tokens, tokens), atol=1e-5, rtol=1e-5)


def test_a_ratio_is_taken_within_each_round():
    from timing import compare

    row = compare("x", {"a": [2.0, 40.0, 6.0], "b": [1.0, 10.0, 2.0]}, "a", "b", asked="≤ 2.9")
    assert row.ratio == 3.0
    assert row.met is False
    assert compare("x", {"a": [2.0], "b": [1.0]}, "a", "b", asked="≥ 2").met is True


def test_candidates_take_turns_every_other_round_backwards_and_the_first_does_not_count():
    from timing import take_turns

    calls = []
    seconds = take_turns({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=2)
    assert "".join(calls) == "abbaab"
    assert {name: len(s) for name, s in seconds.items()} == {"a": 2, "b": 2}


def test_a_candidate_in_its_own_process_is_called_there_and_its_death_is_noticed(tmp_path):
    from timing import in_its_own_process

    made = tmp_path / "made"
    with in_its_own_process(functools.partial, os.mkdir, made) as call:
        call()
        assert made.is_dir()
        with pytest.raises(EOFError):
            call()


def test_an_unknown_bench_is_refused_in_one_line(capsys):
    from srmlab.cli import main

    with pytest.raises(SystemExit) as stop:
        main(["bench", "decodin"])
    assert stop.value.code == 2
    assert (
        capsys.readouterr().err.strip()
        == "srmlab bench: no bench is called 'decodin'; did you mean 'decoding'?"
    )


def test_every_bench_named_by_the_command_exists():
    from srmlab.cli.bench import BENCHES

    assert all((FOLDER / f"{bench}.py").is_file() for bench in BENCHES)
    assert str(FOLDER) in sys.path
