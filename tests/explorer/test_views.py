"""Every view in a real browser: drawn, changing with what it depends on."""

from __future__ import annotations

import numpy as np
import pytest
from explorer_pages import COLORS, VIEWS, picture, put
from explorer_subjects import PROMPT

# Drawn


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_is_drawn(page, view):
    page.locator(f"#panel-{view}").scroll_into_view_if_needed()
    page.wait_for_function(
        "(id) => Number(document.getElementById(`panel-${id}`).dataset.drawn) > 0", arg=view
    )
    if view == "tokens":
        assert page.locator("#panel-tokens .token").count() == len(PROMPT)
    elif view == "flow":
        assert page.locator("#panel-flow svg path").count() > 50
    else:
        assert page.evaluate(COLORS, view) > (2 if view == "compare" else 8)


CHANGES = [
    ("tokens", {"token": 3}),
    ("tokens", {"color": "entropy"}),
    ("tokens", {"color": "ablation"}),
    ("wall", {"threshold": 0.2}),
    ("wall", {"wall": "mean"}),
    ("wall", {"scope": "selection"}),
    ("wall", {"layer": 5}),
    ("wall", {"stream": 6, "source": 2}),
    ("routing", {"layer": 4}),
    ("routing", {"head": 1}),
    ("routing", {"token": 20}),
    ("flow", {"threshold": 0.3}),
    ("flow", {"token": 20}),
    ("flow", {"layer": 3}),
    ("lens", {"lens": "streams"}),
    ("lens", {"lens": "curves"}),
    ("lens", {"token": 20}),
    ("ranked", {"stream": 4}),
    ("ranked", {"rank": "layers"}),
    ("stepper", {"token": 20}),
    ("stepper", {"stream": 3}),
    ("stepper", {"layer": 6, "step": 2}),
    ("align", {"align": "update"}),
    ("align", {"align": "update_in"}),
    ("align", {"stream": 5}),
    ("card", {"stream": 7}),
    ("card", {"threshold": 0.3}),
    ("drift", {"drift": "kl"}),
    ("drift", {"stream": 2}),
    ("drift", {"layer": 5}),
    ("board", {"token": 20}),
    ("features", {"token": 20}),
    ("features", {"stream": 3}),
    ("features", {"layer": 6}),
    ("wall", {"theme": "dark"}),
    ("card", {"theme": "dark"}),
]


@pytest.mark.parametrize(
    ("view", "change"),
    CHANGES,
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value)),
)
def test_the_picture_changes_with_what_it_depends_on(page, view, change):
    before = picture(page, view)
    put(page, **change)
    assert picture(page, view) != before


def test_the_lens_curves_mark_the_chosen_layer(page):
    put(page, lens="curves")
    before = picture(page, "lens")
    put(page, layer=5)
    assert picture(page, "lens") != before


def test_the_stepper_and_drift_say_what_their_numbers_are(page):
    assert "log-probability, nats" in page.evaluate("() => explorer.panel('stepper').svg()")
    assert "A: 1 − cos " in page.evaluate("() => explorer.panel('drift').svg()")
    put(page, drift="kl")
    assert "A: KL, nats" in page.evaluate("() => explorer.panel('drift').svg()")


@pytest.mark.parametrize("threshold", [0, 0.05, 0.1, 0.125, 0.4999, 0.51, 0.7, 1])
def test_the_walls_frequencies_are_those_of_the_weights(page, threshold):
    put(page, threshold=threshold, wall="frequency")
    shown = page.evaluate("() => explorer.panel('wall').drawn.table().rows.map((row) => Number(row[4]))")
    code = page.evaluate("() => explorer.panel('wall').drawn.python()").splitlines()
    names: dict = {}
    exec("\n".join(code[:-1]), names)
    frequency = (np.round(names["weights"] * 255) > np.floor(threshold * 255 + 1e-9)).mean(1)
    assert frequency.ravel().tolist() == pytest.approx(shown, abs=1e-5)
