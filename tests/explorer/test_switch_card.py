"""The card of an edge: which features open it, beside the token alone, on the shipped model's switches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from explorer_pages import put, settle
from explorer_subjects import serving

import srmlab.pretrained
from srmlab.dictionaries import Dictionary, Lexicon
from srmlab.errors import UserError
from srmlab.explorer.opening import open_run
from srmlab.explorer.session import Session


@pytest.fixture(scope="module")
def shipped() -> Session:
    return open_run(srmlab.pretrained.folder())


def beaten(session: Session, wanted: bool) -> tuple[int, int, int, int]:
    """A switch whose features surely tell more than the token, or one whose features tell less."""
    found = session.switches
    features = found.predictors.index("features")
    places = found.gain_low[:, features] > 0 if wanted else found.gain[:, features] < 0
    return found.edges[int(np.flatnonzero(places)[0])]


def test_the_shipped_switches_are_of_the_shipped_dictionary(shipped):
    assert shipped.switches.dictionary == shipped.lexicon.dictionary.mark
    assert [tuple(edge) for edge in shipped.info()["switches"]] == list(shipped.switches.edges)


def test_a_card_says_what_the_result_says(shipped):
    found, edge = shipped.switches, beaten(shipped, True)
    i = found.edges.index(edge)
    card = shipped.switch(edge)["switch"]
    areas = {one["name"]: one["value"] for one in card["auc"]}
    assert areas["features"] == found.auc[i, found.predictors.index("features")]
    assert {"token", "position", "shuffled", "random features"} <= set(areas)
    assert [one["share"] for one in card["pairs"]] == found.shares[i].tolist()
    for one, (target, source, sign) in zip(card["pairs"], found.pairs[i], strict=True):
        assert (one["target"]["stream"], one["source"]["stream"]) == edge[2:]
        assert one["opens"] == (sign > 0)
        for side, feature in ((one["target"], target), (one["source"], source)):
            assert side["feature"] == (None if feature < 0 else feature)
            assert bool(side["raises"]) == (feature >= 0)


def test_features_of_another_dictionary_get_no_words(shipped):
    other = Lexicon(Dictionary(shipped.lexicon.dictionary.config, seed=5), shipped.lexicon.features)
    card = replace(shipped, lexicon=other).switch(beaten(shipped, True))["switch"]
    assert not any(one[side]["raises"] for one in card["pairs"] for side in ("target", "source"))


def test_an_edge_that_is_not_there_or_not_known_is_refused(shipped):
    with pytest.raises(UserError, match="no edge"):
        shipped.switch((0, 9, 0, 0))
    with pytest.raises(UserError, match="--only switches"):
        replace(shipped, switches=None).switch((0, 0, 0, 0))


def test_the_routing_lens_opens_the_card_of_the_chosen_edge(shipped, watch):
    def card(edge) -> str:
        put(page, **dict(zip(("layer", "head", "stream", "source"), edge, strict=True)))
        settle(page)
        page.locator(".switch-line button").click()
        dialog = page.locator("dialog.switch")
        text = dialog.inner_text()
        dialog.locator("button", has_text="Close").click()
        return text

    with serving(replace(shipped, prompts=("the United States",))) as url:
        page = watch(url).page
        edge = beaten(shipped, True)
        said = card(edge)
        areas = {one["name"]: one["value"] for one in shipped.switch(edge)["switch"]["auc"]}
        both = f"{areas['features']:.3f} against {areas['token']:.3f}"
        assert f"Layer {edge[0]}, head {edge[1]}: S{edge[2]} ← S{edge[3]} opens when" in said
        assert f"tell more than the token alone: {both}" in said
        assert "position alone" in said
        assert shipped.switches.examples[shipped.switches.edges.index(edge)][0][2].strip() in said
        assert "do not beat the token" in card(beaten(shipped, False))
        assert page.locator(".switch-line").inner_text().startswith("L")
        weak = next(
            at
            for at in np.ndindex(shipped.switches.weight.shape)
            if at[0] > 0 and shipped.switches.weight[at] < 1 / 8
        )
        assert "less than an even share" in card([int(i) for i in weak])
        put(page, checkpoint="step-250")  # the result is of the model as it was opened
        settle(page)
        assert not page.locator(".switch-line").is_visible()
