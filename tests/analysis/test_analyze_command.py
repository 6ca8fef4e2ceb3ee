from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import srmlab
import srmlab.analysis
from srmlab.analysis.store import Store
from srmlab.cli import main
from srmlab.cli.analyze import Command, saying_what_is_kept, weight_of
from srmlab.cli.evaluate import Command as Evaluate
from srmlab.cli.paper import Command as Paper
from srmlab.data import PrepareConfig, Tokens, prepare
from srmlab.errors import UserError
from srmlab.tasks import TaskCorpus
from srmlab.training import TrainConfig, train
from srmlab.training.run import run_config
from srmlab.training.run_text import RunText, open_text, place_for
from subjects import OF_BYTES, trained_run


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    return trained_run(tmp_path_factory.mktemp("analyze"))


@pytest.fixture(scope="module")
def analysed(trained) -> dict:
    return Command(path=trained, tokens=256, lens_tokens=64, batch_size=4, formats=("png",)).analyze(
        show=False
    )


def test_every_result_and_figure_is_written_into_the_run(trained, analysed):
    model = srmlab.load(trained)
    defined = {name for name, one in srmlab.analysis.ANALYSES.items() if one.defined_on(model)}
    assert set(analysed["results"]) == defined
    for name, row in analysed["results"].items():
        assert row["tokens"] == 256
        assert srmlab.analysis.load(trained / "analysis" / name).headline() == row["finding"]
        for figure in row["figures"]:
            assert Path(figure).stat().st_size > 1000
    assert (trained / "figures" / "training.png").exists()
    assert "Routing" in (trained / "analysis" / "summary.txt").read_text()
    assert not (trained / "analysis" / "partial").exists()


def test_a_second_call_measures_nothing_again(trained, analysed, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("measured again")

    monkeypatch.setattr(sys.modules["srmlab.analysis.survey"], "capture", refuse)
    again = Command(path=trained, tokens=256, lens_tokens=64, batch_size=4, formats=("png",)).analyze(
        show=False
    )
    assert again == analysed
    with pytest.raises(AssertionError, match="measured again"):
        Command(path=trained, tokens=128, lens_tokens=64, batch_size=4, formats=("png",)).analyze(show=False)


def test_a_text_file_is_read_with_the_runs_tokenizer(trained, tmp_path):
    (tmp_path / "speech.txt").write_text("alpha beta stream layer " * 8)
    command = Command(
        path=trained, only=("routing",), text=tmp_path / "speech.txt", out=tmp_path / "out", formats=("svg",)
    )
    answer = command.analyze(show=False)
    assert answer["results"]["routing"]["tokens"] == 191 // 16 * 16
    assert (tmp_path / "out" / "figures" / "routing.svg").exists()


def test_another_text_of_the_same_name_is_another_text(trained, tmp_path):
    findings = []
    for words in ("alpha beta stream layer ", "layer layer beta "):
        (tmp_path / "x.txt").write_text(words * 8)
        command = Command(
            path=trained, only=("ablation",), text=tmp_path / "x.txt", tokens=64, out=tmp_path, formats=()
        )
        findings.append(command.analyze(show=False)["results"]["ablation"]["finding"])
    assert findings[0] != findings[1]


def test_windows_may_be_spread_over_the_text(trained, tmp_path):
    command = {"path": trained, "only": ("routing",), "tokens": 64, "null": 0, "formats": (), "out": tmp_path}
    first, spread = (Command(**command, windows=which).analyze(show=False) for which in ("first", "spread"))
    assert spread["text"] == f"{first['text']}, spread over the text"
    text = open_text(trained, spread=True)
    places = text.batches(8, 64).places
    assert len(places) == 64 // text.context
    assert places[-1] > len(text.tokens) / text.context / 2
    found = srmlab.analysis.routing(text.model, text.batches(8, 64))
    assert spread["results"]["routing"]["text"] == found.evidence.fingerprint
    assert first["results"]["routing"]["text"] != found.evidence.fingerprint


def test_figures_in_another_format_are_drawn_from_what_is_known(trained, tmp_path):
    options = {"path": trained, "tokens": 64, "out": tmp_path}
    Command(**options, only=("routing",), formats=("png",)).analyze(show=False)
    answer = Command(**options, only=("routing",), formats=("svg",)).analyze(show=False)
    assert all(Path(figure).is_file() for figure in answer["results"]["routing"]["figures"])


def test_a_damaged_result_is_measured_again(trained, tmp_path):
    command = Command(path=trained, tokens=64, out=tmp_path, only=("routing",), formats=())
    first = command.analyze(show=False)
    arrays = tmp_path / "analysis" / "routing.npz"
    arrays.write_bytes(arrays.read_bytes()[:200])
    assert command.analyze(show=False) == first
    assert srmlab.analysis.load(arrays).headline() == first["results"]["routing"]["finding"]


def test_the_summary_tells_of_all_that_is_known(trained, tmp_path):
    for name in ("routing", "alignment"):
        Command(path=trained, tokens=64, out=tmp_path, only=(name,), formats=()).analyze(show=False)
    summary = (tmp_path / "analysis" / "summary.txt").read_text()
    assert "Routing" in summary
    assert "per step of a layer" in summary  # the alignment's


def test_the_summary_keeps_what_was_measured_on_other_text_and_the_twins(trained, tmp_path):
    def summary(**options) -> str:
        Command(path=trained, out=tmp_path, formats=(), **options).analyze(show=False)
        return (tmp_path / "analysis" / "summary.txt").read_text()

    first = summary(only=("routing",), tokens=64, null=2)
    assert "next to 2 untrained twins" in first
    assert summary(only=("alignment",), tokens=128, null=0).startswith(first.rstrip())
    again = summary(only=("routing",), tokens=128, null=0)
    assert "untrained twins" not in again  # those are of the other text


def test_the_summary_drops_what_was_measured_of_other_weights(trained, tmp_path):
    for path, name in ((trained, "routing"), (trained / "checkpoints" / "step-3", "alignment")):
        Command(path=path, tokens=64, out=tmp_path, only=(name,), formats=(), null=0).analyze(show=False)
    assert "Routing" not in (tmp_path / "analysis" / "summary.txt").read_text()


def test_the_shipped_run_is_analysed_beside_itself_and_still_loads(tmp_path):
    run = tmp_path / "shipped"
    shutil.copytree(srmlab.pretrained.folder(), run)
    Command(path=run, text=run / "validation.txt", only=("routing",), tokens=256, formats=("png",)).analyze(
        show=False
    )
    assert (tmp_path / "shipped-analysis" / "figures" / "routing.png").is_file()
    assert place_for(run, "report.html") == tmp_path / "shipped-report.html"
    srmlab.load(run)


def test_what_cannot_be_written_is_one_line_with_the_fix(trained, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["analyze", str(trained), "--only", "routing", "--tokens", "64", "--out", "/proc/nowhere"])
    assert stop.value.code == 2
    assert "choose another --out" in capsys.readouterr().err.splitlines()[-1]


def test_papers_files_that_cannot_be_written_are_one_line_with_the_fix(trained, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write .*: choose another --out"):
        Paper(runs=(f"gpt2={trained}",), out=tmp_path / "file" / "paper").run()


def test_dynamics_run_over_the_checkpoints_when_asked_for(trained, tmp_path):
    command = Command(path=trained, only=("dynamics",), tokens=64, out=tmp_path, formats=())
    command.analyze(show=False)
    assert srmlab.analysis.load(tmp_path / "analysis" / "dynamics").steps.tolist() == [3, 6]


def test_a_checkpoint_is_analysed_beside_itself_and_left_untouched(trained):
    checkpoint = trained / "checkpoints" / "step-6"
    before = sorted(path.name for path in checkpoint.iterdir())
    answer = Command(path=checkpoint, only=("alignment",), tokens=64, formats=()).analyze(show=False)
    assert Path(answer["out"]) == trained / "checkpoints" / "step-6-analysis"
    assert sorted(path.name for path in checkpoint.iterdir()) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"only": ("roting",)}, "did you mean 'routing'"),
        ({"tokens": 0}, "--tokens 0"),
        ({"text": Path("missing.txt")}, "cannot read missing.txt"),
        ({"path": Path("nowhere")}, "nowhere does not exist"),
        ({"batch_size": 0}, "--batch-size 0: must be at least 1"),
        ({"formats": ("jpgg",)}, "--formats jpgg: must be one of png, svg, pdf"),
        ({"only": ("edgs",)}, "did you mean 'edges'"),
        ({"only": ("mine",)}, "switches, translations; for one of your own, srmlab --import its file first"),
        ({"margin": 0.1}, "--margin is for edges, not measured here; leave it out"),
        ({"only": ("drift",), "threshold": "2/S"}, "--threshold is for routing and dynamics, not measured"),
        ({"only": ("drift",), "lens_tokens": 9}, "--lens-tokens is for logit_lens, not measured here"),
        ({"only": ("drift",), "max_depth": 6}, "--max-depth is for depth and fixed_points, not measured"),
        ({"only": ("dynamics",), "null": 1}, "--null is not for dynamics"),
        ({"max_depth": 2}, "max_depth = 2: must be at least the trained depth, 3"),
        ({"max_depth": 0}, "max_depth = 0: must be at least the trained depth, 3"),
    ],
)
def test_bad_input_is_refused_in_one_line(trained, tmp_path, options, message):
    with pytest.raises(UserError, match=message) as caught:
        Command(**{"path": trained, "out": tmp_path} | options).analyze(show=False)
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def masked(tmp_path_factory) -> Path:
    """A run that was trained on answers, with attention within documents."""
    folder = tmp_path_factory.mktemp("masked")
    spec = "task:addition:1-2:2000"
    prepare(PrepareConfig(spec, folder / "data", "byte", val_fraction=0.2), source=TaskCorpus.parse(spec))
    config = TrainConfig(
        steps=6, batch_size=4, lr=1e-2, warmup=2, eval_tokens=128, checkpoint_every=3, device="cpu",
        document_mask=True, answers_only=True,
    )  # fmt: skip
    train(config, OF_BYTES.replace(context=32), folder / "data", folder / "run", show=False)
    return folder / "run"


def test_dynamics_of_one_checkpoint_are_refused():
    with pytest.raises(UserError, match="has one checkpoint, and dynamics compares several"):
        next(srmlab.analysis.checkpoints_of(srmlab.pretrained.folder()))


def test_a_run_is_analysed_as_it_was_trained(masked, tmp_path):
    """Its losses are those of `srmlab evaluate`; a checkpoint's too, and an export's, if it is told."""
    expected = Evaluate(path=masked, tokens=512).result()["loss"]["mean"]
    options = {"only": ("depth", "dynamics"), "tokens": 512, "formats": (), "windows": "spread"}
    answer = Command(path=masked, out=tmp_path / "run", **options).analyze(show=False)
    how = "attention within documents, answers only, spread over the text"
    assert answer["text"].endswith(f", 16 windows of 32, {how}")
    found = srmlab.analysis.load(tmp_path / "run" / "analysis" / "depth")
    assert found.loss[found.trained - 1] == pytest.approx(expected, rel=1e-5)
    dynamics = srmlab.analysis.load(tmp_path / "run" / "analysis" / "dynamics")
    assert dynamics.loss[-1] == pytest.approx(expected, rel=1e-5)

    export = srmlab.save(srmlab.load(masked), tmp_path / "export")
    for path, told in ((masked / "checkpoints" / "step-6", False), (export, True), (export, False)):
        command = Command(
            path=path, data=masked.parent / "data", out=tmp_path / "other", only=("depth",), tokens=512,
            formats=(), document_mask=told, answers_only=told, windows="spread",
        )  # fmt: skip
        command.analyze(show=False)  # what was measured in another way is measured again
        found = srmlab.analysis.load(tmp_path / "other" / "analysis" / "depth")
        same = found.loss[found.trained - 1] == pytest.approx(expected, rel=1e-5)
        assert same == (told or path != export)


def test_a_text_file_is_one_document_all_of_which_counts(masked, tmp_path):
    (tmp_path / "sums.txt").write_text("12+5=17\n" * 20)
    options = {"path": masked, "text": tmp_path / "sums.txt", "out": tmp_path, "only": ("depth",)}
    answer = Command(**options, formats=()).analyze(show=False)
    assert answer["results"]["depth"]["tokens"] == 159 // 32 * 32
    with pytest.raises(UserError, match="--answers-only: no document ends in a text file"):
        Command(**options, answers_only=True).analyze(show=False)
    with pytest.raises(UserError, match="--document-mask: a text file is one document"):
        Command(**options, document_mask=True).analyze(show=False)
    with pytest.raises(UserError, match="--data and --text: only one of them can be read"):
        Command(**options, data=masked.parent / "data").analyze(show=False)


def test_the_shipped_analyses_are_known_as_those_of_the_shipped_model():
    """What is not read in a special way keeps the name, and so the identity, that it always had."""
    folder = srmlab.pretrained.folder()
    run, command, model = run_config(folder), Command(path=folder), srmlab.load(folder)
    text = RunText(
        path=folder,
        run=run,
        model=model,
        tokenizer=srmlab.storage.load_tokenizer(folder),
        data=None,
        tokens=Tokens([np.zeros(20_000, np.uint16)], vocab_size=512, end_of_text=511),
        source=f"validation tokens {run.data_fingerprint[:12]}",
        context=256,
    )
    name = text.name(text.batches(command.batch_size, command.tokens))
    settings = [weight_of(command.threshold, model), command.lens_tokens, command.max_depth]
    known = json.loads((folder / "analysis" / "index.json").read_text())
    assert Store(folder, model, name, settings).identity == known["depth"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.slow
def test_two_processes_find_what_one_finds(trained, tmp_path):
    """As under torchrun, which sets these variables."""
    names = ("routing", "drift", "ablation")
    one = Command(path=trained, only=names, tokens=256, batch_size=2, out=tmp_path / "one", formats=())
    expected = one.analyze(show=False)["results"]
    run = "import sys; from srmlab.cli import main; main(sys.argv[1:])"
    arguments = ["analyze", str(trained), "--only", *names, "--tokens", "256", "--batch-size", "2", "--json"]
    arguments += ["--out", str(tmp_path / "two"), "--formats", "png"]
    shared = {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", run, *arguments],
            env=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    first, second = (process.communicate(timeout=300)[0] for process in processes)
    assert [process.returncode for process in processes] == [0, 0]
    assert second == ""
    found = json.loads(first)["results"]
    for name in names:
        assert found[name]["text"] == expected[name]["text"]
        a, b = (srmlab.analysis.load(tmp_path / folder / "analysis" / name) for folder in ("one", "two"))
        for field in a.axes():
            np.testing.assert_allclose(
                getattr(a, field), getattr(b, field), atol=1e-6, err_msg=f"{name}.{field}"
            )
        for derived, error in a.errors.items():
            np.testing.assert_allclose(b.errors[derived], error, atol=1e-6, err_msg=f"{name}.{derived}")


def test_the_papers_files_have_its_names_and_columns(trained, analysed, tmp_path, capsys):  # noqa: ARG001
    runs = (f"161m={trained}", f"gpt2={trained}", f"param:8={trained}", f"param:2={trained}")
    Paper(runs=runs, out=tmp_path, tokens=128, json=True).run()
    answer = json.loads(capsys.readouterr().out)
    data = tmp_path / "data"
    assert {path.name for path in data.iterdir()} >= {
        "161m_ablation_ranked.dat",
        "161m_attn_token_cos.dat",
        "161m_update_state_cos.dat",
        "loss_smoothed.csv",
        "stream_size",
    }
    losses = (data / "loss_smoothed.csv").read_text().splitlines()
    header = ["Step", "HRM - loss", "gpt2-test - loss", "161M parameters - loss", "479M parameters - loss"]
    assert losses[0].split(",") == [*header, "4-Bl_3-Pg_6-Ls_1-Ps - loss"]
    assert len(losses) == 7
    assert losses[1].split(",")[1] == "nan"
    assert float(losses[-1].split(",")[2]) > 0
    sweep = np.genfromtxt(data / "stream_size" / "param.dat", names=True)
    assert sweep["streams"].tolist() == [2, 8]
    assert any(line.startswith("baseline") for line in answer["missing"])
    assert (tmp_path / "figs" / "161m_routing.pdf").exists()


def test_a_label_the_paper_does_not_have_is_refused(trained, tmp_path):
    with pytest.raises(UserError, match="write LABEL=RUN"):
        Paper(runs=(f"med={trained}",), out=tmp_path).run()


def test_two_runs_of_one_label_are_refused(tmp_path):
    shipped = srmlab.pretrained.folder()
    with pytest.raises(UserError, match="161m is given twice"):
        Paper(runs=(f"161m={shipped}",), pretrained="161m", out=tmp_path).run()


def test_ctrl_c_says_what_is_kept(trained, tmp_path, capsys):
    answer = Command(path=trained, tokens=64, out=tmp_path, only=("routing",), formats=()).analyze(show=False)
    store = Store(tmp_path, srmlab.load(trained), answer["text"], [0.1, 4096, None])
    with pytest.raises(KeyboardInterrupt), saying_what_is_kept(store, aloud=True):
        raise KeyboardInterrupt
    assert capsys.readouterr().err == (
        f"srmlab analyze: stopped; kept in {tmp_path / 'analysis'}: routing; "
        "run the same command to continue\n"
    )
