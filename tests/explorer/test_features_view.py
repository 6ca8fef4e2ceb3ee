"""Features of a dictionary in the explorer: in the trace, on the page, held, and in the notebook."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from explorer_pages import click_region, picture, put, settle, state
from explorer_subjects import PROMPT, tiny_model, write_lexicon

import srmlab
from srmlab.analysis.interventions import AblatedStream, HeldFeature, Intervention
from srmlab.cli import main
from srmlab.data import byte_tokenizer
from srmlab.dictionaries import Lexicon
from srmlab.errors import Notice, UserError
from srmlab.explorer import Trace, TraceError, capture
from srmlab.explorer.opening import open_run
from srmlab.explorer.report import write_report
from srmlab.explorer.session import Session
from srmlab.explorer.widget import show

TOKENIZER = byte_tokenizer()


@pytest.fixture(scope="module")
def model() -> srmlab.SRM:
    """Of this file alone: that of the live server belongs to the server's thread."""
    return tiny_model()


@pytest.fixture(scope="module")
def lexicon(model, tmp_path_factory) -> Lexicon:
    return Lexicon.load(write_lexicon(model, tmp_path_factory.mktemp("tiny") / "dictionary"), model)


@pytest.fixture(scope="module")
def trace(model, lexicon) -> Trace:
    return capture(model, TOKENIZER, PROMPT, lexicon=lexicon)


def test_the_trace_has_the_features_in_use_at_every_point(model, lexicon, trace):
    assert trace["features"].shape == (3, len(PROMPT), 3, 3)  # point, token, stream, place
    tokens = torch.from_numpy(trace["tokens"]).long()[None]
    with torch.inference_mode():
        _, cache = model.run_with_cache(tokens)
        for layer in range(3):
            codes = lexicon.dictionary.encode(cache[f"layers.{layer}.out"][0])  # [T, S, F]
            for stream in range(3):
                for token in range(len(PROMPT)):
                    used = trace["features"][layer, token, stream]
                    values = trace["feature_activation"][layer, token, stream].astype(float)
                    expected = codes[token, stream].numpy()
                    assert set(used[used >= 0]) == set(np.flatnonzero(expected))
                    assert values[used >= 0] == pytest.approx(expected[used[used >= 0]], rel=2e-3, abs=1e-6)


def test_every_feature_in_use_is_described_with_tokens_the_trace_can_name(trace):
    dictionary = trace.manifest["dictionary"]
    assert dictionary["layers"] == [0, 1, 2]
    streams = np.arange(3)[None, None, :, None]
    for stream, feature in np.unique(
        np.stack(np.broadcast_arrays(streams, trace["features"]), -1).reshape(-1, 2), axis=0
    ):
        if feature < 0:
            continue
        about = dictionary["about"][f"{stream}.{feature}"]
        assert 0 <= about["frequency"] <= 1
        assert all(trace.string(token) is not None for token in [*about["raises"], *about["example"]])
        assert not about["example"] or 0 <= about["peak"] < len(about["example"])


def test_it_survives_being_written_and_its_caption_names_the_strongest(trace, watch, tmp_path):
    again = Trace.from_bytes(trace.to_bytes())
    assert np.array_equal(again["features"], trace["features"])
    session = Session(tiny_model(), TOKENIZER)
    page = watch(write_report(session, tmp_path / "report.html", traces=[trace]).as_uri()).page
    sentence = page.locator("#panel-features .caption").text_content()
    ids, values = trace["features"][-1], trace["feature_activation"][-1].astype(float)
    token, stream, place = np.unravel_index(values.argmax(), values.shape)
    active = sum(len(np.unique(ids[:, s][ids[:, s] >= 0])) for s in range(ids.shape[1]))
    assert sentence.startswith(f"{active} of ")
    assert f"feature {ids[token, stream, place]} of S{stream}" in sentence
    assert sentence.endswith(f"(token {token}).")


def test_a_held_feature_is_an_intervention_like_the_others(model, lexicon, trace):
    session = Session(model, TOKENIZER, lexicon=lexicon)
    tokens = session.encode(PROMPT)
    used = int(trace["features"][0, 4, 1, 0])
    silent = Intervention(holds=(HeldFeature(1, used),))
    found = session.intervene(tokens, silent)
    assert max(found["kl"]) > 0
    assert max(found["kl"][:1]) >= 0
    changed = session.trace(tokens, silent)
    assert used not in changed["features"][:, :, 1]
    assert changed.manifest["note"]["intervention"]["holds"] == [{"stream": 1, "feature": used, "value": 0.0}]
    with pytest.raises(UserError, match="feature 99: must be 0 to 23"):
        session.intervene(tokens, Intervention(holds=(HeldFeature(1, 99),)))
    with pytest.raises(UserError, match="no dictionary was learned on these weights"):
        Session(model, TOKENIZER).intervene(tokens, silent)


def test_another_checkpoint_has_no_features_of_this_dictionary(model, lexicon):
    session = replace(
        Session(model, TOKENIZER, lexicon=lexicon), checkpoints={"early": lambda: tiny_model(depth=3)}
    )
    assert "features" not in session.trace(session.encode("ab"), checkpoint="early").arrays
    with pytest.raises(UserError, match="no dictionary was learned on these weights"):
        session.trace(session.encode("ab"), Intervention(holds=(HeldFeature(0, 0),)), checkpoint="early")


def test_a_run_opens_with_its_dictionary_and_its_python_gives_the_same_trace(tmp_path):
    model = tiny_model()
    srmlab.save(model, tmp_path / "tiny", TOKENIZER)
    assert open_run(tmp_path / "tiny").lexicon is None
    write_lexicon(model, tmp_path / "tiny-dictionaries" / "every")
    session = open_run(tmp_path / "tiny")
    assert session.info()["dictionary"].endswith("of tokens")
    names: dict = {"srmlab": srmlab}
    exec(session.python, names)
    again = capture(names["model"], names["tokenizer"], PROMPT, lexicon=names["lexicon"])
    assert np.array_equal(again["features"], session.trace(session.encode(PROMPT))["features"])


def test_a_dictionary_of_other_weights_is_passed_over_with_a_word_and_refused_if_asked_for(tmp_path, capsys):
    srmlab.save(tiny_model(), tmp_path / "tiny", TOKENIZER)
    folder = write_lexicon(tiny_model(embedding_dim=8), tmp_path / "tiny-dictionaries" / "every")
    with pytest.warns(Notice, match="is not shown: this dictionary was learned on other weights"):
        assert open_run(tmp_path / "tiny").lexicon is None
    for words, fix in (
        ([str(tmp_path / "tiny"), "--dictionary", str(folder)], "learned on other weights"),
        ([str(tmp_path / "tiny"), "--dictionary", str(tmp_path)], "no dictionary in"),
        (["--preset", "srm-nano", "--dictionary", str(folder)], "needs a trained run"),
    ):
        with pytest.raises(SystemExit) as stop:
            main(["report", *words, "--out", str(tmp_path / "report.html")])
        assert stop.value.code == 2
        error = capsys.readouterr().err.strip()
        assert fix in error
        assert "\n" not in error


def test_a_notice_is_one_line_of_the_command_line(tmp_path):
    srmlab.save(tiny_model(), tmp_path / "tiny", TOKENIZER)
    write_lexicon(tiny_model(embedding_dim=8), tmp_path / "tiny-dictionaries" / "every")
    out = tmp_path / "report.html"
    command = [sys.executable, "-m", "srmlab", "report", str(tmp_path / "tiny"), "--out", str(out)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    notice, progress = ran.stderr.splitlines()
    assert progress.startswith("reading: 1 of 1 prompts")
    assert notice.startswith(f"srmlab report: {tmp_path / 'tiny-dictionaries' / 'every'} is not shown: ")


def test_a_checkpoint_finds_the_dictionary_of_its_weights_in_its_run(tmp_path, model):
    for name, weights in (("step-1", tiny_model(init_seed=1)), ("step-2", model)):
        srmlab.save(weights, tmp_path / "run" / "checkpoints" / name, TOKENIZER)
    write_lexicon(model, tmp_path / "run" / "dictionaries" / "every")
    assert open_run(tmp_path / "run" / "checkpoints" / "step-2").lexicon is not None
    assert open_run(tmp_path / "run" / "checkpoints" / "step-1").lexicon is None


def test_a_trace_with_features_says_whose(trace):
    manifest = {**trace.manifest, "dictionary": None}
    with pytest.raises(TraceError, match="go together"):
        Trace(trace.arrays, manifest)


def test_the_notebook_shows_features_of_a_trace_that_has_them(trace):
    pytest.importorskip("anywidget")
    assert "features" in show(trace).views


# On the page


def test_alt_click_holds_a_feature_and_the_bar_lets_it_go(page):
    put(page, stream=2, layer=4, token=10, hold=0)
    feature = page.evaluate(
        "() => explorer.trace.at('features', 4, 10, 2, 0)"
    )  # the first line is the strongest at this token
    before = picture(page, "features")
    click_region(page, "features", 0, 0, modifiers=["Alt"])
    assert state(page)["holds"] == [[2, feature, 0]]
    assert picture(page, "features") != before
    page.wait_for_function("() => explorer.outcome && Math.max(...explorer.outcome.kl) > 0")
    chip = page.locator(".bar .cuts button", has_text=f"S2 f{feature} = 0")
    assert "holds=" in page.url
    assert f"clamp S2 feature {feature} at 0" in page.evaluate("() => explorer.panel('board').svg()")
    chip.click()
    assert state(page)["holds"] == []
    page.wait_for_function("() => explorer.outcome && Math.max(...explorer.outcome.kl) === 0")


def test_the_value_to_hold_at_is_asked_for(page):
    put(page, stream=2, layer=4, token=10)
    value = page.locator("#panel-features input[type=number]")
    value.fill("7.5")
    value.press("Enter")
    assert state(page)["hold"] == 7.5
    value.evaluate("(element) => element.blur()")
    click_region(page, "features", 0, 0, modifiers=["Alt"])
    assert [hold[2] for hold in state(page)["holds"]] == [7.5]
    code = page.evaluate("() => explorer.panel('board').drawn.python()").splitlines()
    names: dict = {}
    exec("\n".join(code[:-1]), names)
    found = eval(code[-1].split("#")[0], names)
    page.wait_for_function("() => explorer.outcome && Math.max(...explorer.outcome.kl) > 0")
    assert found.tolist() == pytest.approx(page.evaluate("() => explorer.outcome.kl"), abs=2e-4)


def test_a_click_in_the_map_chooses_the_token(page):
    put(page, stream=1, layer=7, token=3)
    lists = page.evaluate("() => explorer.panel('features').pen.regions.findIndex((r) => r.shown)")
    click_region(page, "features", 0, 15, which=lists)
    assert state(page)["token"] == 15


def test_the_rows_are_the_traces_own_and_the_python_gives_them(page):
    put(page, stream=5, layer=3, token=8)
    rows = page.evaluate("() => explorer.panel('features').drawn.table().rows")
    names: dict = {}
    exec(page.evaluate("() => explorer.panel('features').drawn.python()"), names)
    ids, values = (
        names["trace"][name][names["point"], :, names["stream"]]
        for name in ("features", "feature_activation")
    )
    expected = [
        (t, int(f), float(a))
        for t in range(len(ids))
        for f, a in zip(ids[t], values[t], strict=True)
        if f >= 0
    ]
    assert [(row[0], row[2]) for row in rows] == [one[:2] for one in expected]
    assert [float(row[3]) for row in rows] == pytest.approx([one[2] for one in expected], abs=1e-4)


def test_a_link_keeps_what_is_held_and_drops_what_cannot_be(watch, nano_address):
    page = watch(f"{nano_address}/#holds=[[2,3,0.5],[99,0,0],[0,1.5,0],[0,1,1e9]]&hold=1e300").page
    settle(page)
    assert state(page)["holds"] == [[2, 3, 0.5], [0, 1, 1e6]]
    assert state(page)["hold"] == 1e6
    page.wait_for_function("() => explorer.outcome !== null")


def test_on_a_wide_screen_the_four_columns_stand_side_by_side(watch, nano_address):
    page = watch(nano_address, viewport={"width": 2200, "height": 1200}).page
    settle(page)
    tops = page.evaluate(
        "() => [...document.querySelectorAll('.column')].map((c) => c.getBoundingClientRect().top)"
    )
    assert len(tops) == 4
    assert tops == pytest.approx([tops[0]] * 4, abs=1)


def test_its_height_is_the_same_at_every_token(page):
    put(page, stream=2, layer=4)
    heights = set()
    for token in range(0, len(PROMPT), 3):
        put(page, token=token)
        picture(page, "features")
        heights.add(page.locator("#panel-features").bounding_box()["height"])
    assert len(heights) == 1


def test_in_a_report_a_trace_without_features_has_no_panel_of_them(watch, nano, tmp_path):
    traces = [nano.trace(nano.encode(PROMPT)), replace(nano, lexicon=None).trace(nano.encode("other"))]
    page = watch(write_report(nano, tmp_path / "report.html", traces=traces).as_uri()).page
    active = page.locator("#panel-features .note", has_text="of 24 active")
    active.wait_for()  # it is written in the frame after the page is there
    page.locator("#tabs button").nth(1).click()
    page.wait_for_function("() => explorer.trace === explorer.traces[1]")
    assert page.locator("#panel-features").count() == 0
    page.locator("#tabs button").nth(0).click()
    page.wait_for_function("() => explorer.trace === explorer.traces[0]")
    active.wait_for()
    assert active.count() == 1


def test_without_a_dictionary_there_is_no_panel(watch, address):
    page = watch(address).page
    assert page.locator("#panel-features").count() == 0


def test_generation_under_an_intervention_is_what_the_changed_model_says(model, lexicon):
    session = Session(model, TOKENIZER, lexicon=lexicon)
    tokens = session.encode("ab")
    held = (HeldFeature(0, 3, 30.0), HeldFeature(1, 1, 30.0))
    under = Intervention(ablations=(AblatedStream(2, "zero", 0, 2),), holds=held)
    made = session.generate(tokens, 6, 0, None, 0, under)
    expected = list(tokens)
    for _ in range(6):
        expected.append(session.intervene(expected, under)["top_after"][-1][0]["id"])
    assert made == expected
    assert made != session.generate(tokens, 6, 0, None, 0)


def test_an_intervention_without_effect_draws_the_same_tokens(model, lexicon):
    session = Session(model, TOKENIZER, lexicon=lexicon)
    tokens = session.encode("ab")
    made = session.generate(tokens, 12, 1.5, None, 7)
    used = {int(f) for f in session.trace(made)["features"][:, :, 0].ravel()}
    unused = next(f for f in range(24) if f not in used)
    assert session.generate(tokens, 12, 1.5, None, 7, Intervention(holds=(HeldFeature(0, unused),))) == made


def test_generate_follows_the_board_if_asked_to(page):
    box = page.locator("#intervened")
    assert not box.is_visible()
    put(page, holds=[[2, 3, 40], [5, 1, 40]], stream=2)
    box.check()
    asked = []
    page.on("request", lambda request: asked.append(request) if "/api/generate" in request.url else None)
    page.locator("#count").fill("1")
    length = page.evaluate("() => explorer.trace.T")
    page.locator("#generate").click()
    page.wait_for_function("(length) => explorer.trace.T === length + 1", arg=length)
    settle(page)
    assert asked[0].post_data_json["intervention"]["holds"][0] == {"stream": 2, "feature": 3, "value": 40}
    box.uncheck()
    page.locator("#count").fill("8")
    page.evaluate("(prompt) => explorer.load({ prompt }, { prompt })", PROMPT)
    page.wait_for_function("(length) => explorer.trace.T === length", arg=length)
