"""The explorer on every architecture: what is defined on a model is shown, the rest refused in one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from explorer_pages import settle
from explorer_subjects import PROMPT, serving, tiny_model

import srmlab
from srmlab.analysis import drift
from srmlab.data import byte_tokenizer
from srmlab.errors import UserError
from srmlab.explorer import capture
from srmlab.explorer.opening import open_preset, open_run
from srmlab.explorer.report import write_report
from srmlab.explorer.session import Session
from srmlab.explorer.trace import Trace
from srmlab.models.connection import CONNECTIONS

TOKENIZER = byte_tokenizer()
PRESETS = [
    "hrm-nano",
    "hrm-single-nano",
    "gpt2-nano",
    "transformer-nano",
    "ouro-nano",
    "huginn-nano",
    "mor-nano",
]
LOOPED = Path(__file__).parents[1] / "extending" / "looped.py"


def build(preset: str) -> srmlab.LanguageModel:
    return srmlab.build(srmlab.preset(preset, vocab_size=257)).eval()


@pytest.fixture(scope="module", params=PRESETS)
def model(request) -> srmlab.LanguageModel:
    return build(request.param)


@pytest.fixture(scope="module")
def trace(model) -> Trace:
    return capture(model, TOKENIZER, PROMPT)


def log_probs(model) -> torch.Tensor:
    with torch.inference_mode():
        return torch.log_softmax(model(torch.tensor([TOKENIZER.encode(PROMPT)]))[0], -1)


# What is in a trace


def test_the_last_row_of_the_lens_is_the_models_own_answer(model, trace):
    best = log_probs(model).topk(5, -1)
    assert np.array_equal(trace["lens_ids"][-1], best.indices.numpy())
    assert np.allclose(trace["lens_logprob"][-1], best.values.numpy(), atol=2e-2)
    assert trace["lens_ids"].shape[0] == len(model.points)


def test_the_drift_of_a_trace_is_that_of_the_analysis(model, trace):
    if model.route_sites:  # MoR: a token that has left contributes nothing, which has no direction
        assert "drift_cosine" not in trace.arrays
        return
    found = drift(model, [torch.tensor([TOKENIZER.encode(PROMPT)])])
    for metric, expected in (("cosine", found.cosine), ("kl", found.kl)):
        measured = trace[f"drift_{metric}"].astype(float).mean(2).transpose(1, 0, 2)  # [group, transition, S]
        moved = np.isfinite(measured).all(1)  # [group, stream]
        assert (moved.sum(1) == 1).all()
        assert np.allclose(measured.transpose(0, 2, 1)[moved], expected[..., 0], rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize("preset", ["hyper-nano", "hyper-loop-nano"])
def test_streams_that_are_mixed_have_routing_and_a_drift_each(preset):
    model = build(preset)
    trace = capture(model, TOKENIZER, PROMPT)
    found = drift(model, [torch.tensor([TOKENIZER.encode(PROMPT)])])
    measured = trace["drift_cosine"].astype(float).mean(2).transpose(1, 0, 2)  # [group, transition, S]
    assert np.allclose(measured, found.cosine, rtol=2e-3, atol=1e-3)
    assert trace["routing"].shape[0] == model.depth
    assert not {"connection_cosine", "ablation_kl"} & set(trace.arrays)


def test_what_is_not_defined_is_left_out(trace):
    undefined = {"routing", "connection_cosine", "update_cosine", "ablation_kl", "attribution", "hub_score"}
    assert not undefined & set(trace.arrays)
    assert Trace.from_bytes(trace.to_bytes()).manifest["axes"] == trace.manifest["axes"]


def test_each_stream_of_an_hrm_is_decoded_alone():
    model = build("hrm-nano")
    trace = capture(model, TOKENIZER, PROMPT)
    assert trace.manifest["streams"] == ["L", "H"]
    assert trace["stream_lens_id"].shape == (model.depth, len(PROMPT), 2)
    assert np.array_equal(trace["stream_lens_id"][..., 1], trace["lens_ids"][..., 0])  # the output reads H


@pytest.mark.parametrize("connection", sorted(CONNECTIONS))
def test_streams_may_meet_in_any_way(connection):
    model = tiny_model(connection=connection)
    trace = capture(model, TOKENIZER, PROMPT)
    assert ("routing" in trace.arrays) == all(exchange.pattern for exchange in model.exchanges)
    assert trace["ablation_kl"].shape == (len(PROMPT), 3)


# What is refused


UNDEFINED = [
    ("intervene", {"ablations": [{"stream": 0, "mode": "mean", "first": 0, "last": 0}]}),
    ("intervene", {}),
    ("trace", {"cuts": [{"layer": 0, "head": 0, "target": 0, "source": 0}]}),
    ("generate", {"holds": [{"stream": 0, "feature": 0}]}),
    ("sweep", None),
]


def test_what_is_not_defined_is_refused_in_one_line(model):
    with serving(Session(model, TOKENIZER)) as address, httpx.Client() as client:
        for path, intervention in UNDEFINED:
            more = {} if intervention is None else {"intervention": intervention}
            answer = client.post(f"{address}/api/{path}", json={"prompt": PROMPT, **more})
            assert answer.status_code == 422, path
            assert "needs streams" in answer.json()["error"]
            assert "\n" not in answer.json()["error"]


# The page, the report and the notebook


@pytest.mark.parametrize("preset", ["hrm-nano", "transformer-nano"])
def test_the_page_shows_tokens_lens_and_drift_and_no_routing(watch, preset):
    with serving(open_preset(preset)) as address:
        page = watch(f"{address}/#ablated=[1]&against=intervention").page
        settle(page)
        assert page.locator("#panel-tokens .token").count() > 20
        assert page.evaluate("() => explorer.panels.map(({ view }) => view.name)") == [
            "tokens",
            "lens",
            "board",
            "attention",
            "compare",
            "drift",
        ]
        assert not page.locator("#panel-board .board").is_visible()  # it has nothing to ablate
        bars = page.evaluate("() => explorer.panel('board').drawn.table().rows")
        tops = page.evaluate(
            "() => Array.from({ length: 5 }, (_, k) => explorer.trace.at("
            "'lens_logprob', explorer.trace.arrays.lens_ids.shape[0] - 1, 12, k))"
        )
        assert [row[1] for row in bars] == pytest.approx(np.exp(tops).tolist())
        page.locator("#help").click()
        page.locator("#tour").click()
        said = page.locator(".tour").inner_text()
        assert ("2 states side by side" if preset == "hrm-nano" else "one state") in said
        page.locator(".tour button", has_text="close").click()
        page.locator("#panel-attention").scroll_into_view_if_needed()
        settle(page)
        attention = page.evaluate("() => explorer.panel('attention').svg()")
        assert "every head, from 12" in attention  # there is one stream in a call
        square, rows = page.evaluate("""() => {
          const { regions } = explorer.panel("attention").pen;
          return [regions.find(({ map }) => map).h, regions.find(({ all }) => all).h];
        }""")
        assert rows > 0.7 * square  # few heads, in high rows: no hole below them
        page.locator("#panel-drift").scroll_into_view_if_needed()
        for key in ("a", "h", "ArrowRight", "]", "."):
            page.keyboard.press(key)
        for view in ("lens", "board", "compare", "drift"):
            panel = f"explorer.panel('{view}')"
            for export in (f"{panel}.svg()", f"{panel}.csv()", f"{panel}.drawn.python()"):
                assert "NaN" not in page.evaluate(f"() => {export}")
        assert "0 heads" not in page.locator("#shape").text_content()
        page.locator("#generate").click()
        page.wait_for_function("() => document.getElementById('generate').textContent === 'Generate'")
        settle(page)
        assert "bad" not in (page.locator("#status").get_attribute("class") or "")


@pytest.mark.parametrize("preset", ["hrm-nano", "gpt2-nano"])
def test_the_report_opens_with_the_same_views(watch, tmp_path, preset):
    path = write_report(open_preset(preset), tmp_path / "report.html")
    page = watch(path.as_uri()).page
    names = page.evaluate("() => explorer.panels.map(({ view }) => view.name)")
    assert names == ["tokens", "lens", "board", "compare", "drift"]


def test_a_run_of_any_architecture_can_be_opened(model, tmp_path):
    srmlab.save(model, tmp_path / "export", TOKENIZER)
    session = open_run(tmp_path / "export")
    again = session.trace(session.encode(PROMPT))
    assert np.array_equal(again["lens_ids"], capture(model, TOKENIZER, PROMPT)["lens_ids"])


def test_the_drawing_in_a_notebook_has_the_tokens(trace):
    html = trace.show(static=True)._repr_html_()
    assert "<svg" not in html
    assert html.count("<span") == len(PROMPT)


def test_an_architecture_of_ones_own_has_a_report(tmp_path):
    out = tmp_path / "report.html"
    command = [sys.executable, "-m", "srmlab", "--import", str(LOOPED), "report", "--preset", "looped-nano"]
    subprocess.run([*command, "--out", str(out)], check=True, capture_output=True)
    assert "looped-nano" in out.read_text(encoding="utf-8")


def test_an_intervention_in_python_is_refused_in_one_line(model):
    session = Session(model, TOKENIZER)
    with pytest.raises(UserError, match="needs streams"):
        list(session.sweep(session.encode(PROMPT), "mean"))
