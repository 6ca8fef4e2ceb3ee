"""Every view in a real browser: drawn, changing with what it depends on."""

from __future__ import annotations

import re

import numpy as np
import pytest
from explorer_pages import COLORS, VIEWS, picture, put, settle
from explorer_subjects import PROMPT, serving, tiny_model

from srmlab.data import byte_tokenizer
from srmlab.explorer.session import Session
from srmlab.explorer.trace import FIELDS

# Drawn


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_is_drawn(page, view):
    if view == "compare":  # with nothing to compare it offers what there is
        put(page, ablated=[0], against="intervention")
        page.wait_for_function("() => explorer.other !== null")
    page.locator(f"#panel-{view}").scroll_into_view_if_needed()
    page.wait_for_function(
        "(id) => Number(document.getElementById(`panel-${id}`).dataset.drawn) > 0", arg=view
    )
    if view == "tokens":
        assert page.locator("#panel-tokens .token").count() == len(PROMPT)
    elif view == "flow":
        assert page.locator("#panel-flow svg path").count() > 50
    else:
        settle(page)
        assert page.evaluate(COLORS, view) > 8


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


def test_the_range_beside_tokens_is_called_that_of_the_colours(page):
    picture(page, "tokens")
    note = page.locator("#panel-tokens .note").inner_text()
    assert re.search(r"tokens · colours [\d.]+ – [\d.]+ bits$", note)  # their strongest is not the largest


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


AXIS = "async (given) => (await import('/lines.js')).axis(...given)"
SCALE = "async (given) => (await import('/color.js')).scaleFor({ pair: true }, ...given).high"


def test_a_change_of_one_rounding_step_has_no_strong_colour(page):
    assert page.evaluate(SCALE, [[0.004, 0], 0, 1, 0.05]) == 0.05
    assert page.evaluate(SCALE, [[0.004, -0.2], 0, 1, 0.05]) == 0.2


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        ([2.37, 3.57], ["2.0", "2.5", "3.0", "3.5", "4.0"]),
        ([-0.044, 0.002], ["−0.05", "−0.04", "−0.03", "−0.02", "−0.01", "0.00", "0.01"]),
        ([0, 1.6e-6], ["0", "5e−7", "1e−6", "1.5e−6", "2e−6"]),
        ([0.0013, 0.97, True], ["0.001", "0.01", "0.1", "1"]),
        ([0.26, 2.0, True], ["0.2", "0.5", "1", "2"]),
    ],
)
def test_the_labels_of_an_axis_are_round_and_none_is_there_twice(page, given, texts):
    found = page.evaluate(AXIS, given)
    assert found["texts"] == texts
    assert found["low"] <= given[0] < given[1] <= found["high"]


def test_effects_too_small_for_two_digits_keep_a_scale(page):
    page.evaluate("() => { for (const e of explorer.trace.once('ranking')) e.kl *= 1e-6; }")
    try:
        texts = re.findall(r">([^<]*)</text>", page.evaluate("() => explorer.panel('ranked').svg()"))
        assert sum(bool(re.fullmatch(r"[\d.]+e−\d+", text)) for text in texts) >= 2
        assert re.search(
            r"e−\d+ bits per token",
            page.evaluate("() => explorer.panel('ranked').view.caption(explorer.trace)"),
        )
    finally:
        page.evaluate("() => explorer.trace.memory.delete('ranking')")


def test_values_that_are_all_the_same_stand_in_the_middle_of_a_small_axis(page):
    ends = page.evaluate(
        """async () => {
          const { lineChart } = await import("./lines.js");
          const host = document.createElement("div"), theme = { dim: "#888", faint: "#eee" };
          return [[0, 0, 0], [0, 1, 0.5]].map((values) => {
            const spec = { x: [0, 1, 2], series: [{ label: "drift", values, color: "#000" }] };
            return new Promise((done) => {
              const plot = lineChart(host, spec, { width: 300, height: 200, theme });
              requestAnimationFrame(() => done([plot.scales.y.min, plot.scales.y.max]));
            });
          }).reduce(async (all, one) => [...(await all), await one], []);
        }"""
    )
    assert np.allclose(ends, [[-0.5, 0.5], [0, 1.1]])


def test_a_prompt_of_one_token_has_no_surprisal_and_no_number_for_it(page):
    page.locator("#prompt").fill("a")
    page.locator("#trace").click()
    settle(page)
    assert page.locator("#panel-tokens .note").inner_text() == "1 token"
    assert (
        page.evaluate("() => explorer.panel('tokens').view.statistic(explorer.base)")
        == "mean surprisal – bits"
    )
    page.locator("#prompt").fill(PROMPT)
    page.locator("#trace").click()
    settle(page)


def test_of_a_difference_the_card_lists_the_largest_changes_of_what_a_stream_writes(page):
    put(page, ablated=[9], first=0, last=7, stream=3, version="difference")
    facts = page.evaluate("() => explorer.panel('card').drawn.table().rows")
    changes = [
        float(about.split(", ")[1].replace("−", "-")) for name, _, about in facts if name == "largest write"
    ]
    assert min(changes) < 0
    assert [abs(one) for one in changes[:5]] == sorted((abs(one) for one in changes[:5]), reverse=True)
    assert facts[0][1].endswith(" points")
    assert "Δ norm" in page.evaluate("() => explorer.panel('card').svg()")


def test_the_bars_of_the_paths_add_up_to_the_logit_that_is_said(page):
    picture(page, "paths")
    svg = page.evaluate("() => explorer.panel('paths').svg()")
    logit, *bars = (
        float(text.replace("−", "-"))
        for text in [re.search(r"logit (\S+) above", svg)[1], *re.findall(r">(−?\d+\.\d\d)</text>", svg)]
    )
    assert len(bars) == 8
    assert sum(bars) == pytest.approx(logit, abs=0.06)
    assert "logits" in page.locator("#panel-paths .chips span").inner_text()


def test_the_python_of_a_view_is_shown_from_its_first_letter(page):
    page.set_viewport_size({"width": 390, "height": 844})
    page.evaluate("() => explorer.panel('wall').showPython()")
    scrolled = page.evaluate(
        "() => { const { scrollLeft, scrollTop } = document.querySelector('dialog textarea');"
        " return [scrollLeft, scrollTop]; }"
    )
    page.keyboard.press("Escape")
    page.set_viewport_size({"width": 1280, "height": 900})
    assert scrolled == [0, 0]


# Show the trace without these arrays, use all of every view that is left, and return their names.
WITHOUT = """(missing) => {
  const whole = explorer.trace;
  const kept = Object.entries(whole.arrays).filter(([name]) => !missing.includes(name));
  const trace = Object.create(Object.getPrototypeOf(whole));
  Object.assign(trace, whole, { arrays: Object.fromEntries(kept), memory: new Map() });
  explorer.show(trace);
  try {
    return explorer.panels.map((panel) => {
      panel.changed(new Set(["trace"]));
      panel.draw();
      panel.svg();
      panel.csv();
      panel.drawn.python();
      panel.view.caption?.(trace, trace);
      return panel.view.name;
    });
  } finally {
    explorer.show(whole);
  }
}"""


@pytest.mark.parametrize("missing", [name for name in FIELDS if name != "tokens"])
def test_a_view_whose_arrays_the_trace_lacks_is_not_shown_and_the_others_are(page, missing):
    needs = page.evaluate("() => explorer.mounted.map(({ view }) => [view.name, view.needs])")
    expected = [name for name, arrays in needs if missing not in arrays]
    assert page.evaluate(WITHOUT, [missing]) == expected


def test_a_trace_without_attention_between_streams_keeps_what_does_not_need_it(page):
    lacking = ["routing", "routing_entropy", "connection_cosine"]
    shown = page.evaluate(WITHOUT, lacking)
    assert set(VIEWS) - set(shown) == {"wall", "flow", "routing", "card", "paths"}


@pytest.mark.parametrize("threshold", [0, 0.05, 0.1, 0.125, 0.4999, 0.51, 0.7, 1])
def test_the_walls_frequencies_are_those_of_the_weights(page, threshold):
    put(page, threshold=threshold, wall="frequency")
    shown = page.evaluate("() => explorer.panel('wall').drawn.table().rows.map((row) => Number(row[4]))")
    code = page.evaluate("() => explorer.panel('wall').drawn.python()").splitlines()
    names: dict = {}
    exec("\n".join(code[:-1]), names)
    frequency = (np.round(names["weights"] * 255) > np.floor(threshold * 255 + 1e-9)).mean(1)
    assert frequency.ravel().tolist() == pytest.approx(shown, abs=1e-5)


def test_the_caption_of_drift_counts_every_group_and_stream(page):
    caption = page.evaluate("() => explorer.panel('drift').view.caption(explorer.trace)")
    assert "of 24 group–stream pairs" in caption


def test_a_model_of_many_layers_has_its_wall_in_several_lines_none_of_them_outside(watch):
    session = Session(tiny_model(depth=40), byte_tokenizer(), prompts=("So.",))
    with serving(session) as address:
        page = watch(address).page
        picture(page, "wall")
        boxes = page.evaluate(
            "() => explorer.panel('wall').pen.regions.map(({ x, y, w, layer }) => [x + w, y, layer])"
        )
        assert max(right for right, _, _ in boxes) <= page.evaluate("() => explorer.panel('wall').size[0]")
        assert {layer for _, _, layer in boxes} == set(range(40))
        assert len({y for _, y, _ in boxes}) > 2  # two heads, in more than one line
        assert "press a number" in page.evaluate("() => explorer.panel('board').svg()").lower()
        page.locator("#help").click()
        assert page.evaluate("() => document.querySelector('dialog').scrollTop") == 0


def test_a_model_of_one_layer_has_no_drift_to_export_and_one_token_reads_itself_wholly(watch):
    model = tiny_model(depth=1, gradient_depth=1)
    with serving(Session(model, byte_tokenizer(), prompts=("S",))) as address:
        page = watch(address).page
        picture(page, "attention")
        words = "(name) => explorer.panel(name).svg().match(/>[^<]+<\\/text>/g).join()"
        assert "no transitions" in page.evaluate(words, "drift")
        assert page.evaluate(words, "attention").count(">1.00</text>") == 2  # where both scales end
