"""`srmlab explore` and `srmlab report`, as a user starts and stops them."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys

import httpx
import pytest
import torch
from explorer_subjects import tiny_model

import srmlab
from srmlab import analysis
from srmlab.cli import main
from srmlab.data import PrepareConfig, byte_tokenizer, prepare
from srmlab.errors import Notice
from srmlab.explorer import Trace, capture
from srmlab.explorer.opening import open_preset, open_run, saved_results
from srmlab.explorer.report import write_report
from srmlab.storage import save
from srmlab.training import TrainConfig, train

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def export(tmp_path_factory):
    return save(tiny_model(), tmp_path_factory.mktemp("exports") / "tiny", tokenizer=byte_tokenizer())


def refused(capsys, *arguments: str) -> str:
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_explore_serves_what_it_printed_and_stops_cleanly(export, stop):
    code = f"from srmlab.cli import main; main(['explore', {str(export)!r}, '--port', '0', '--no-browser'])"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    ) as server:
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            url = re.search(r"http://localhost:\d+/", line)
            assert url is not None, line
            with httpx.Client(
                trust_env=False, timeout=30, transport=httpx.HTTPTransport(retries=5)
            ) as client:
                assert client.get(url[0].replace("localhost", "127.0.0.1")).status_code == 200
                made = client.post(
                    f"{url[0].replace('localhost', '127.0.0.1')}api/trace", json={"prompt": "abc"}
                )
                assert Trace.from_bytes(made.content).prompt == "abc"
            server.send_signal(stop)
            _, errors = server.communicate(timeout=20)
        finally:
            server.kill()
    assert errors == ""
    assert server.returncode in (0, -stop, 130)


def test_an_export_opens_as_the_model_it_is(export):
    session = open_run(export)
    assert session.name == "tiny"
    assert torch.equal(session.model.unembedding, tiny_model().unembedding)
    names: dict = {"srmlab": srmlab}
    exec(session.python, names)
    assert names["tokenizer"].encode("a") == [97]


def test_a_run_opens_with_its_checkpoints_evaluation_text_and_analyses(tmp_path):
    (tmp_path / "text").mkdir()
    for i in range(40):
        (tmp_path / "text" / f"{i}.txt").write_text(
            f"Stream {i} speaks and stream {i * 7 % 11} listens. " * 20
        )
    prepare(
        PrepareConfig(
            source=str(tmp_path / "text"), out=tmp_path / "data", tokenizer="byte", val_fraction=0.3
        )
    )
    config = TrainConfig(steps=10, batch_size=2, warmup=0, checkpoint_every=5, eval_every=5, eval_tokens=128)
    train(config, tiny_model().config, tmp_path / "data", tmp_path / "run", show=False)
    model = srmlab.load(tmp_path / "run")
    analysis.routing(model, [torch.arange(32).view(1, 32)]).save(tmp_path / "run" / "analysis" / "routing")
    session = open_run(tmp_path / "run")
    assert list(session.checkpoints) == ["step-5", "step-10"]
    assert session.reference is not None
    assert session.reference.mean.shape == (3, 3, 8)
    shown = session.trace(session.encode("ab"))
    names: dict = {"srmlab": srmlab}
    exec(shown.manifest["python"], names)
    again = capture(names["model"], names["tokenizer"], "ab", reference=names["reference"])
    assert (again["ablation_kl"] == shown["ablation_kl"]).all()
    assert "stream" in session.prompts[0].lower()
    assert "read most" in session.saved["routing"]["headline"]
    assert session.trace(session.encode("ab"), checkpoint="step-5").manifest["note"]["checkpoint"] == "step-5"
    report = write_report(session, tmp_path / "run" / "report.html", run=tmp_path / "run").read_text()
    assert "validation loss is lowest at step" in report
    assert "on the whole text bigram counts reach" in report
    assert "read most" in report
    (tmp_path / "run/checkpoints/step-10/model.safetensors").write_bytes(b"damaged")
    with pytest.warns(Notice, match=r"step-10: model.safetensors is damaged") as told:
        assert list(open_run(tmp_path / "run").checkpoints) == ["step-5", "step-10"]
    assert len(told) == 1  # said once


def test_an_analysis_that_cannot_be_read_is_named_and_the_others_are_shown(tmp_path):
    folder = tmp_path / "analysis"
    model, text = tiny_model(), [torch.arange(32).view(1, 32)]
    analysis.routing(model, text).save(folder / "routing")
    analysis.drift(model, text).save(folder / "drift")
    (folder / "drift.npz").write_bytes(b"not an archive")
    (folder / "index.json").write_text("{}")
    with pytest.warns(UserWarning, match=r"analysis/drift is not shown") as told:
        assert list(saved_results(tmp_path)) == ["routing"]
    assert len(told) == 1


def test_report_writes_a_file_and_names_it(export, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["report", str(export), "--prompt", "one", "--prompt", "two", "--out", str(tmp_path / "r.html")])
    assert stop.value.code == 0
    assert str(tmp_path / "r.html") in capsys.readouterr().out
    assert "Inside 2 prompts" in (tmp_path / "r.html").read_text()


@pytest.mark.parametrize("command", ["explore", "report"])
def test_what_cannot_be_opened_is_one_line(command, capsys, tmp_path):
    assert "give one of: a run" in refused(capsys, command)
    assert "give one of: a run" in refused(capsys, command, "run", "--preset", "srm-nano")
    out = ["--out", str(tmp_path / "r.html")] if command == "report" else ["--port", "0"]
    assert "does not exist" in refused(capsys, command, str(tmp_path / "none"), *out)
    assert "no preset is called" in refused(capsys, command, "--preset", "srm-nani", *out)
    assert "reads puzzles" in refused(capsys, command, "--preset", "srm-sudoku-nano", *out)


def test_a_port_that_is_taken_and_a_host_that_is_nobodys_are_one_line(capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert "cannot listen" in refused(capsys, "explore", "--preset", "srm-nano", "--port", str(port))
    assert "--port 70000" in refused(capsys, "explore", "--preset", "srm-nano", "--port", "70000")
    assert "not an address" in refused(capsys, "explore", "--preset", "srm-nano", "--host", "no host")


def test_the_example_session_is_what_its_python_says():
    session = open_preset("srm-nano")
    names: dict = {"srmlab": srmlab}
    exec(session.python, names)
    assert torch.equal(names["model"].unembedding, session.model.unembedding)


def test_an_empty_prompt_of_a_report_is_refused_before_anything_is_opened(capsys, tmp_path):
    assert "is empty" in refused(capsys, "report", str(tmp_path / "none"), "--prompt", "a", "--prompt", "")
    said = refused(capsys, "report", str(tmp_path / "none"), "--results", str(tmp_path), "--out", "r.html")
    assert "holds no results of `srmlab sweep`" in said  # before the run is looked at
