"""Checkpoints as a time axis, and an untrained twin's numbers beside the model's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from explorer_pages import click_region, picture, put, settle, state
from explorer_subjects import PROMPT, serving, tiny_model

import srmlab.analysis
from srmlab.analysis.null import twins
from srmlab.analysis.states import state_means
from srmlab.data import byte_tokenizer
from srmlab.errors import UserError
from srmlab.explorer import capture
from srmlab.explorer.opening import over_training, saved_results
from srmlab.explorer.session import Session
from srmlab.storage import save

FIRST = tiny_model(init_seed=5)


@pytest.fixture(scope="module")
def session() -> Session:
    model = tiny_model()
    steps = {"step-1": lambda: FIRST, "step-2": lambda: model}
    return Session(model, byte_tokenizer(), checkpoints=steps, twin=True, prompts=(PROMPT,))


def test_the_slider_goes_through_the_checkpoints_and_every_question_with_it(watch, session):
    with serving(session) as address:
        page = watch(address).page
        settle(page)
        assert page.locator("#time").inner_text().strip() == "step 2"
        page.locator("#time input").fill("0")
        page.wait_for_function("() => explorer.base.manifest.note.checkpoint === 'step-1'")
        settle(page)
        assert page.locator("#time").inner_text().strip() == "step 1"
        assert "checkpoint=step-1" in page.url
        shown = page.evaluate("() => Array.from(explorer.trace.data('surprisal')).slice(1)")
        traced = capture(FIRST, byte_tokenizer(), PROMPT)
        assert np.allclose(shown, traced["surprisal"][1:].astype(float))
        page.evaluate("() => explorer.store.set({ ablated: [3] })")
        settle(page)
        kl = page.evaluate("() => explorer.outcome.kl")
        assert kl == pytest.approx(traced["ablation_kl"][:, 1].astype(float), rel=0.02, abs=2e-3)


def test_a_click_on_the_training_curve_goes_to_the_checkpoint(watch, session):
    found = srmlab.analysis.dynamics(
        [(1, FIRST), (2, tiny_model(init_seed=6)), (3, session.model)], [torch.arange(24).view(2, 12)]
    )
    saved = {"dynamics": {"over_training": over_training(found)}}
    kept = {"step-1": lambda: FIRST}
    with serving(replace(session, checkpoints=kept, saved=saved)) as address:
        page = watch(address).page
        picture(page, "training")
        rows = page.evaluate("() => explorer.panel('training').drawn.table().rows")
        assert [row[:2] for row in rows] == [[i + 1, pytest.approx(found.loss[i])] for i in range(3)]
        assert page.locator("#panel-training .note").inner_text().endswith(" · 24 tokens")
        click_region(page, "training", 0, 0, which=1)  # step 2, whose weights are not kept
        assert state(page)["checkpoint"] == ""
        held = []
        page.route("**/api/trace", lambda route: held.append(route), times=1)
        page.evaluate("() => explorer.panel('training').drawn.click({ index: 0 })")
        page.wait_for_selector(".grid.stale")  # until they are of the checkpoint
        assert page.locator("#status").inner_text() == "tracing …"
        held[0].continue_()
        assert state(page)["checkpoint"] == "step-1"
        assert page.locator(".grid.stale").count() == 0
        click_region(page, "training", 0, 0, which=2)
        assert state(page)["checkpoint"] == ""


def test_of_a_checkpoint_the_head_names_it_and_the_end_gives_no_wrong_reason(watch, nano):
    with serving(replace(nano, checkpoints={"step-1": lambda: nano.model})) as address:
        page = watch(f"{address}/#checkpoint=step-1").page
        settle(page)
        assert page.locator("#time").is_hidden()  # one checkpoint is no axis
        assert page.locator("#selection").inner_text().startswith("step 1 · token ")
        assert "Features: the dictionary is of other weights" in page.locator(".absent").inner_text()


def test_another_prompt_is_compared_by_the_weights_of_the_checkpoint(watch, session):
    with serving(session) as address:
        page = watch(f"{address}/#checkpoint=step-1&against=prompt:Another+text&measure=surprisal").page
        picture(page, "compare")
        shown = page.evaluate("() => Array.from(explorer.other.data('surprisal')).slice(1)")
        assert np.allclose(shown, capture(FIRST, byte_tokenizer(), "Another text")["surprisal"][1:])
        assert "B  Another text" in page.evaluate("() => explorer.panel('compare').svg()")


def test_training_says_when_no_answer_comes(watch, session):
    found = srmlab.analysis.dynamics([(1, FIRST), (2, session.model)], [torch.arange(24).view(2, 12)])
    with serving(replace(session, saved={"dynamics": {"over_training": over_training(found)}})) as address:
        watched = watch(address)
        page = watched.page
        page.route("**/api/results/dynamics", lambda route: route.abort())
        picture(page, "training")
        assert "The server did not answer." in page.evaluate("() => explorer.panel('training').svg()")
        page.unroute("**/api/results/dynamics")
        page.locator("#trace").click()
        picture(page, "training")
        assert len(page.evaluate("() => explorer.panel('training').drawn.table().rows")) == 2
        watched.errors.clear()  # the browser's own words about it


def test_an_untrained_twin_stands_beside_the_model(watch, session):
    twin = capture(next(twins(session.model, 1))[1].eval(), byte_tokenizer(), PROMPT)
    with serving(session) as address:
        page = watch(address).page
        assert page.locator("#panel-tokens .beside").inner_text() == ""
        page.locator("#twin input").check()
        settle(page)
        said = page.locator("#panel-tokens .beside").inner_text()
        theirs = np.nanmean(twin["surprisal"].astype(float))
        assert said.endswith(f"untrained mean surprisal {theirs:.2f} bits")
        put(page, threshold=0.3)  # every number is of the threshold that is chosen
        ours, theirs = (
            one["hub_score"][int(0.3 * 255)]
            for one in (capture(session.model, byte_tokenizer(), PROMPT), twin)
        )
        read = [
            f"most-read stream {100 * hub.max():.0f} %, mean {100 * hub.mean():.0f} % over 0.30"
            for hub in (ours, theirs)
        ]
        assert page.locator("#panel-wall .beside").inner_text() == " · untrained ".join(read)
        put(page, ablated=[0], version="intervened")
        assert page.locator("#panel-tokens .beside").inner_text() == f"baseline: {said}"
        page.locator("#help").click()
        page.locator("#tour").click()
        while page.locator("#twin.toured").count() == 0:
            page.locator(".tour .primary").click()
        assert "random weights" in page.locator(".tour p").inner_text()


def kl(trace) -> np.ndarray:
    return trace["ablation_kl"].astype(float)


def test_means_of_checkpoints_and_of_the_twin_are_over_the_same_text_as_the_models(session):
    text = [torch.arange(48).view(2, 24)]
    means = {name: state_means(session.subject(name).model, text) for name in ("", "step-1", "untrained")}
    informed = replace(session, reference=means[""], evaluation=text)
    for name, reference in means.items():
        model = session.subject(name).model
        shown = informed.trace([7], checkpoint=name)
        assert shown.manifest["reference"] == "evaluation tokens"
        assert (kl(shown) == kl(capture(model, byte_tokenizer(), [7], reference=reference))).all()
        assert kl(shown).min() > 0  # by its own means a prompt of one token loses nothing
    assert kl(session.trace([7], checkpoint="untrained")).max() == 0


def test_the_python_of_a_checkpoint_takes_its_own_means(watch, session, tmp_path):
    text = [torch.arange(48).view(2, 24)]
    save(session.model, tmp_path / "last")
    save(FIRST, tmp_path / "checkpoints" / "step-1")
    lines = (
        f"import srmlab.data\nrun = {str(tmp_path)!r}\n"
        "model, tokenizer = srmlab.load(f'{run}/last'), srmlab.data.byte_tokenizer()\n"
        "evaluation_text = lambda run, model: [torch.arange(48).view(2, 24)]\n"
        "reference = srmlab.analysis.state_means(model, evaluation_text(run, model))"
    )
    means = state_means(session.model, text)
    informed = replace(session, reference=means, evaluation=text, python=lines)
    with serving(informed) as address:
        for name in ("step-1", "untrained"):
            page = watch(f"{address}/#checkpoint={name}").page
            settle(page)
            names: dict = {}
            exec(page.evaluate("() => explorer.panel('ranked').drawn.python()"), names)
            shown = page.evaluate("() => Array.from(explorer.base.data('ablation_kl'))")
            assert kl(names["trace"]).ravel() == pytest.approx(shown, abs=1e-6)


def test_a_twin_is_offered_only_where_something_was_learned(session):
    with pytest.raises(UserError, match="no such checkpoint"):
        Session(session.model, byte_tokenizer()).trace([1, 2], checkpoint="untrained")


def test_saved_results_stand_beside_those_of_the_runs_twins(tmp_path, session):
    batches = [torch.arange(24).view(2, 12)]
    folder = tmp_path / "analysis"
    srmlab.analysis.routing(session.model, batches).save(folder / "routing")
    for seed, model in twins(session.model, 2):
        srmlab.analysis.routing(model.eval(), batches).save(folder / "null" / f"seed-{seed}" / "routing")
    assert "next to 2 untrained twins" in saved_results(tmp_path)["routing"]["summary"]
