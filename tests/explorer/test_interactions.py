"""What a hand can do on the page, in a real browser, and what follows from it; exports."""

from __future__ import annotations

import csv
import io
import re
import xml.etree.ElementTree as ElementTree

import pytest
from explorer_pages import PICTURE, VIEWS, click_region, picture, point_at, put, settle, state
from explorer_subjects import PROMPT, serving, tiny_model

from srmlab.data import byte_tokenizer
from srmlab.explorer import capture
from srmlab.explorer.session import Session

# Interactions


def test_clicking_a_token_selects_it_everywhere_and_shift_click_a_range(page):
    tokens = page.locator("#panel-tokens .token")
    tokens.nth(7).click()
    assert state(page)["token"] == 7
    assert "token 7 " in page.locator("#selection").inner_text()
    assert "at 7" in page.locator("#panel-routing .note").inner_text()
    tokens.nth(10).click(modifiers=["Shift"])
    assert (state(page)["token"], state(page)["rangeEnd"]) == (7, 10)
    assert page.locator("#panel-tokens .token[aria-selected=true]").count() == 4


def test_tokens_of_a_text_that_runs_to_the_left_stand_in_their_order(watch, nano_address):
    page = watch(nano_address).page
    lefts = page.evaluate(
        """() => {
          const tokens = [...document.querySelectorAll(".token")].slice(3, 6);
          tokens.forEach((token, i) => { token.textContent = "\u05d0\u05d1\u05d2"[i]; });
          return tokens.map((token) => token.getBoundingClientRect().left);
        }"""
    )
    assert lefts == sorted(lefts)
    shown = page.evaluate("async () => (await import('/dom.js')).visible('a\u202e\u2066 b')")
    assert shown == "a\\x202e\\x2066·b"  # nor can one turn those after it


def test_hovering_a_token_shows_five_expected_tokens(page):
    page.locator("#panel-tokens .token").nth(5).hover()
    lines = page.locator(".tooltip").inner_text().splitlines()
    assert len(lines) == 7
    assert all("%" in line for line in lines[2:])


def test_on_a_telephone_a_tooltip_is_inside_and_names_the_click_that_cuts(page):
    page.set_viewport_size({"width": 390, "height": 844})
    put(page, click="change")
    point_at(page, "routing")
    box = page.locator(".tooltip").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390
    said = page.locator(".tooltip").inner_text()
    page.mouse.move(0, 0)
    page.set_viewport_size({"width": 1280, "height": 900})
    assert "click cuts this edge" in said
    assert "alt-click" not in said


def test_clicking_the_wall_opens_that_map_in_the_routing_lens(page):
    before = picture(page, "routing")
    click_region(page, "wall", 2, 5, which=7)  # regions go layer by layer: 7 is layer 3, head 1
    found = state(page)
    assert (found["layer"], found["head"], found["stream"], found["source"]) == (3, 1, 2, 5)
    assert picture(page, "routing") != before
    assert "L3 H1" in page.locator("#panel-routing .note").inner_text()


def test_hovering_the_wall_moves_the_cross_hair_in_the_routing_lens(page):
    before = picture(page, "routing")
    page.locator("#panel-wall").scroll_into_view_if_needed()
    page.locator("#panel-wall canvas.picture").hover(position={"x": 60, "y": 40})
    assert page.evaluate(PICTURE, "routing") == before or state(page)["hover"] is not None
    assert state(page)["hover"]["target"] >= 0
    assert page.evaluate(PICTURE, "routing") != before


def test_alt_click_cuts_an_edge_and_runs_again(page):
    click_region(page, "routing", 3, 1, modifiers=["Alt"])
    found = state(page)
    assert found["cuts"] == [[found["layer"], found["head"], 3, 1, found["token"]]]
    kl = page.evaluate("() => explorer.outcome.kl")
    assert max(kl) > 0
    assert max(kl[: found["token"]]) < 1e-5  # what comes before cannot know
    assert page.locator(".cuts button").count() == 1
    page.locator(
        ".cuts button"
    ).hover()  # leaving the lens redraws; a hand takes longer than a frame to press
    settle(page)
    page.locator(".cuts button").click()
    assert state(page)["cuts"] == []
    assert max(page.evaluate("() => explorer.outcome.kl")) < 1e-5


def test_the_board_ablates_a_stream_and_draws_new_bars(page):
    before = picture(page, "board")
    page.locator('[data-ablate="6"]').click()  # stream 2, mean
    settle(page)
    assert state(page)["ablated"] == [6]
    assert picture(page, "board") != before
    mean_kl = page.evaluate("() => explorer.outcome.kl")
    assert min(mean_kl) > 0
    assert re.fullmatch(r"KL [\d.]+ bits", page.locator("#panel-board .note").inner_text())
    page.locator('[data-ablate="7"]').click()  # the same stream at zero instead
    assert state(page)["ablated"] == [7]
    assert page.evaluate("() => explorer.outcome.kl") != mean_kl
    page.locator("#panel-board select").first.select_option("0")
    assert page.evaluate("() => explorer.intervention().ablations[0]") == {
        "stream": 2,
        "mode": "zero",
        "first": 0,
        "last": 7,
    }
    page.locator(".bar button", has_text="clear").click()
    assert state(page)["ablated"] == []


def test_the_boards_kl_is_the_traces_for_the_final_state_at_its_mean(page):
    put(page, ablated=[3 * 4])
    kl = page.evaluate("() => explorer.outcome.kl")
    traced = page.evaluate(
        "() => Array.from({ length: explorer.trace.T }, (_, t) => explorer.trace.at('ablation_kl', t, 4))"
    )
    assert kl == pytest.approx(traced, rel=0.01, abs=1e-3)


def test_clicking_a_ranked_bar_toggles_its_stream_on_the_board(page):
    click_region(page, "ranked", 0, 1)
    stream = page.evaluate("() => explorer.store.get('stream')")
    assert state(page)["ablated"] == [stream * 3]
    click_region(page, "ranked", 0, 1)
    assert state(page)["ablated"] == []


def test_brushing_bars_sets_the_joint_effect_against_the_sum(page):
    panel = page.locator("#panel-ranked")
    panel.scroll_into_view_if_needed()
    settle(page)
    box = page.locator("#panel-ranked canvas.picture").bounding_box()
    region = page.evaluate(
        "() => { const r = explorer.panel('ranked').pen.regions[0]; return [r.x, r.y, r.w, r.h]; }"
    )
    y = box["y"] + region[1] + region[3] / 2
    at = lambda i: box["x"] + region[0] + (i + 0.5) * region[2] / 8  # noqa: E731
    page.mouse.move(at(0), y)
    page.mouse.down()
    page.mouse.move(at(1), y)
    page.mouse.move(at(3), y)
    page.mouse.up()
    settle(page)
    assert "4 together" in page.evaluate("() => explorer.panel('ranked').svg()")
    assert state(page)["ablated"] == []
    page.locator("#panel-ranked canvas.picture").press("Enter")  # a key is not the end of a drag
    assert len(state(page)["ablated"]) == 1


def test_the_effect_of_a_group_is_not_shown_beside_the_bars_of_an_intervention(page):
    put(page, brush=[0, 1], ablated=[0, 9], first=0, last=7)
    panel = "explorer.panel('ranked')"
    picture(page, "ranked")
    measured = page.evaluate(f"() => {panel}.csv()")
    assert "together" in measured
    put(page, version="intervened")
    assert "together" not in page.evaluate(f"() => {panel}.svg() + {panel}.csv() + {panel}.drawn.python()")
    assert "a group is measured in the baseline" in page.evaluate(f"() => {panel}.svg()")
    put(page, version="baseline")
    assert page.evaluate(f"() => {panel}.csv()") == measured


def test_a_sweep_runs_as_a_job_and_fills_the_map(page):
    page.locator("#panel-ranked").scroll_into_view_if_needed()
    page.locator("#panel-ranked button", has_text="by layer").click()
    settle(page)
    before = page.evaluate(PICTURE, "ranked")
    page.locator("#panel-ranked button", has_text="sweep").click()
    page.wait_for_function("() => explorer.sweep !== null", timeout=60_000)
    assert page.evaluate("() => explorer.sweep.length") == 64
    assert picture(page, "ranked") != before


def test_a_sweep_of_another_prompt_is_stopped(watch, nano_address):
    page = watch(nano_address).page
    put(page, rank="layers")
    page.locator("#panel-ranked button", has_text="sweep").click()
    page.wait_for_function("() => explorer.job !== null")
    page.evaluate("() => explorer.load({ prompt: 'ab' }, { prompt: 'ab' })")
    page.wait_for_function("() => explorer.trace.T === 2 && explorer.job === null")
    page.evaluate(
        "() => { explorer.startSweep(); return explorer.load({ prompt: 'abc' }); }"
    )  # not yet a job
    page.wait_for_function("() => explorer.trace.T === 3")
    settle(page)
    page.wait_for_timeout(700)
    assert page.evaluate("() => [explorer.job, explorer.sweep]") == [None, None]
    assert page.locator("#panel-ranked button", has_text="sweep").is_visible()


def test_space_plays_the_recursion_and_clicking_a_column_goes_there(page):
    put(page, layer=0, step=0)
    page.evaluate("() => document.activeElement.blur()")
    page.keyboard.press(" ")
    page.wait_for_function("() => explorer.tick() >= 2")
    page.keyboard.press(" ")
    at = page.evaluate("() => explorer.tick()")
    page.wait_for_timeout(500)
    assert page.evaluate("() => explorer.tick()") == at
    click_region(page, "stepper", 0, 17)
    assert (state(page)["layer"], state(page)["step"]) == (5, 2)


def test_flow_plays_through_depth_and_stops_at_the_last_layer(page):
    page.locator("#panel-flow").scroll_into_view_if_needed()
    page.locator("#panel-flow button", has_text="depth").click()
    page.wait_for_function("() => explorer.store.get('layer') >= 1")
    page.locator("#panel-flow button", has_text="depth").click()
    assert state(page)["layer"] < 7


def test_clicking_an_alignment_cell_selects_it(page):
    click_region(page, "align", 6, 3)
    assert (state(page)["layer"], state(page)["stream"]) == (6, 3)
    page.locator("#panel-align button", has_text="update – output").click()
    click_region(page, "align", 10, 1)
    assert (state(page)["layer"], state(page)["step"], state(page)["stream"]) == (3, 1, 1)


def test_clicking_the_lens_selects_layer_and_token_or_stream(page):
    put(page, token=24)
    click_region(page, "lens", 4, 0)
    assert state(page)["layer"] == 4
    assert state(page)["token"] < 24
    page.locator("#panel-lens button", has_text="streams").click()
    click_region(page, "lens", 5, 6)
    assert (state(page)["layer"], state(page)["stream"]) == (5, 6)


def test_the_cards_strongest_token_can_be_gone_to(page):
    put(page, stream=3)
    click_region(page, "card", 0, 0)
    strongest = page.evaluate(
        """() => {
          const norms = explorer.trace.strings.map((_, t) => explorer.trace.at("write_norm", 7, t, 3));
          return norms.indexOf(Math.max(...norms));
        }"""
    )
    assert state(page)["token"] == strongest


@pytest.mark.parametrize("against", ["intervention", "prompt:Another prompt of another length."])
def test_compare_shows_both_and_their_difference(page, against):
    put(page, ablated=[0, 4], first=0, against=against)
    page.wait_for_function("() => explorer.other !== null")
    page.locator("#panel-compare").scroll_into_view_if_needed()
    settle(page)
    assert page.evaluate("() => explorer.panel('compare').pen.regions.length") == 3
    assert (
        page.evaluate("() => Math.max(...explorer.panel('compare').pen.regions[2].grid.values.map(Math.abs))")
        > 0
    )
    before = picture(page, "compare")
    put(page, measure="connection")
    assert picture(page, "compare") != before
    put(page, measure="lens")  # tokens differ for another prompt: then there is no difference to draw
    assert page.evaluate("() => explorer.panel('compare').pen.regions.length") == (
        3 if against == "intervention" else 2
    )


def test_where_nothing_changes_no_range_of_changes_is_named(page):
    put(page, ablated=[0], version="difference", against="intervention")  # after the last layer
    page.wait_for_function("() => explorer.other !== null && explorer.trace.pair")
    settle(page)
    assert "weight: no change" in page.evaluate("() => explorer.panel('compare').svg()")
    assert page.evaluate("() => explorer.panel('stepper').svg()").count("no change") >= 3
    assert page.locator("#panel-stepper .note").inner_text().endswith("grey: not among the first 5 before")
    put(page, first=0)
    page.wait_for_function("() => explorer.other !== null")
    settle(page)
    assert "no change" not in page.evaluate("() => explorer.panel('compare').svg()")


def test_compare_offers_what_there_is_to_compare_with(page):
    panel = page.locator("#panel-compare")
    panel.scroll_into_view_if_needed()
    settle(page)
    offered = panel.locator(".chips button")
    assert offered.all_inner_texts() == ["another prompt"]  # nothing is changed, nothing was trained
    assert not panel.locator("canvas").is_visible()
    put(page, ablated=[0])
    assert offered.all_inner_texts() == ["the intervention", "another prompt"]
    offered.first.click()
    page.wait_for_function("() => explorer.other !== null")
    settle(page)
    assert page.evaluate("() => explorer.panel('compare').pen.regions.length") == 3
    assert not offered.first.is_visible()


MEASURES = [
    ("routing", {"stream": 3, "source": 1}),
    ("connection", {"layer": 3, "stream": 1}),
    ("update", {"layer": 1, "step": 0, "stream": 1}),
    ("lens", {"layer": 3, "token": 1}),
]


@pytest.mark.parametrize(("measure", "chosen"), MEASURES)
def test_compare_marks_the_chosen_cell_and_a_click_chooses_one(page, measure, chosen):
    put(page, ablated=[0], against="intervention", measure=measure, stream=6, source=6, layer=6, token=9)
    page.wait_for_function("() => explorer.other !== null")
    before = picture(page, "compare")
    click_region(page, "compare", 3, 1, which=1)
    assert {key: state(page)[key] for key in chosen} == chosen
    assert picture(page, "compare") != before


def test_compare_names_b_by_what_it_is(page):
    put(page, ablated=[0, 4], first=1, last=3, against="intervention")
    page.wait_for_function("() => explorer.other !== null")
    settle(page)
    svg = page.evaluate("() => explorer.panel('compare').svg()")
    assert "B  ablate S0 mean" in svg
    assert "A  The streams" in svg


def test_compare_subtracts_no_right_tokens_of_other_tokens(page):
    put(page, against=f"prompt:{PROMPT[::-1]}", measure="lens")  # as many tokens, but others
    page.wait_for_function("() => explorer.other !== null")
    picture(page, "compare")
    assert page.evaluate("() => explorer.panel('compare').pen.regions.length") == 2
    click_region(page, "compare", 5, 2, which=1)
    assert (state(page)["layer"], state(page)["token"]) == (5, 12)


def test_the_card_marks_the_chosen_token(page):
    count = "() => explorer.panel('card').pen.regions.filter((r) => r.kind === 'token').length"
    put(page, stream=3)
    click_region(page, "card", 0, 0, which=4)
    assert page.evaluate(count) == 5
    least = page.evaluate(
        """() => {
          const norms = explorer.trace.strings.map((_, t) => explorer.trace.at("write_norm", 7, t, 3));
          return norms.indexOf(Math.min(...norms));
        }"""
    )
    before = picture(page, "card")
    put(page, token=least)
    assert picture(page, "card") != before
    assert page.evaluate(count) == 6


def test_keys_move_the_selection(page):
    put(page, token=5, layer=2, stream=1, head=0)
    page.evaluate("() => document.activeElement.blur()")
    for key in ("ArrowRight", "ArrowDown", "]", "h", "a"):
        page.keyboard.press(key)
        settle(page)
    found = state(page)
    assert [found[name] for name in ("token", "layer", "stream", "head", "ablated")] == [6, 3, 2, 1, [6]]
    for key in ("ArrowLeft", "ArrowUp", "[", ","):
        page.keyboard.press(key)
    found = state(page)
    assert [found[name] for name in ("token", "stream")] == [5, 1]
    for key in ("Shift+ArrowRight", "Shift+ArrowRight", "Shift+ArrowLeft"):
        page.keyboard.press(key)
    assert (state(page)["token"], state(page)["rangeEnd"]) == (5, 6)
    page.locator("#panel-wall .actions button").first.focus()
    page.mouse.move(0, 0)
    page.keyboard.press("m")
    assert state(page)["big"] == "wall"
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    assert page.locator("dialog.help").is_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("t")
    assert state(page)["theme"] in ("dark", "light")
    page.keyboard.press("/")
    assert page.evaluate("() => document.activeElement.id") == "prompt"


def test_a_panel_can_fill_the_page_and_go_back(page):
    small = page.locator("#panel-wall canvas.picture").bounding_box()["width"]
    page.locator("#panel-wall button[title^=Maximise]").click()
    settle(page)
    assert page.locator("#panel-wall canvas.picture").bounding_box()["width"] > 1.4 * small
    assert not page.locator("#panel-card").is_visible()
    page.keyboard.press("Escape")
    settle(page)
    assert page.locator("#panel-card").is_visible()


@pytest.mark.parametrize("view", VIEWS)
def test_every_panel_exports_svg_csv_and_python_that_are_well_formed(page, view):
    page.locator(f"#panel-{view}").scroll_into_view_if_needed()
    settle(page)
    svg = page.evaluate("(id) => explorer.panel(id).svg()", view)
    assert ElementTree.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"
    assert "NaN" not in svg
    rows = list(csv.reader(io.StringIO(page.evaluate("(id) => explorer.panel(id).csv()", view))))
    assert len({len(row) for row in rows}) == 1
    assert len(rows) > (0 if view in ("compare", "board") else 4)
    compile(page.evaluate("(id) => explorer.panel(id).drawn.python()", view), view, "exec")


def test_the_python_of_a_panel_gives_the_numbers_on_the_screen(page):
    put(page, wall="mean")
    code = page.evaluate("() => explorer.panel('wall').drawn.python()").splitlines()
    names: dict = {}
    exec("\n".join(code[:-1]), names)
    mean = eval(code[-1].split("#")[0], names)
    shown = page.evaluate(
        "() => Array.from(explorer.panel('wall').drawn.table().rows.slice(0, 64), (row) => Number(row[4]))"
    )
    assert mean[0, 0].ravel().tolist() == pytest.approx(shown, abs=1e-4)


def test_the_python_of_the_board_and_of_compare_give_the_numbers_on_the_screen(page):
    put(page, ablated=[0, 5], first=1, last=3, against="intervention", measure="routing", layer=4, head=1)
    for view, shown in (
        ("board", "() => explorer.outcome.kl"),
        ("compare", "() => explorer.panel('compare').drawn.table().rows.map((row) => row[4])"),
    ):
        code = page.evaluate("(id) => explorer.panel(id).drawn.python()", view).splitlines()
        names: dict = {}
        exec("\n".join(code[:-1]), names)
        found = eval(code[-1].split("#")[0], names)
        assert found.ravel().tolist() == pytest.approx(page.evaluate(shown), abs=2e-4), view
        assert abs(found).max() > 1e-3


def run(page, view: str):
    """What a panel's Python gives: the names it defines, and the value of its last line."""
    code = page.evaluate("(id) => explorer.panel(id).drawn.python()", view).splitlines()
    names: dict = {}
    exec("\n".join(code[:-1]), names)
    return names, eval(code[-1].split("#")[0], names)


def test_ranked_exports_the_group_or_the_sweep_that_it_shows(page):
    put(page, brush=[0, 2])
    rows = page.evaluate("() => explorer.panel('ranked').drawn.table().rows")
    assert [row[-1] for row in rows] == [1, 1, 1, 0, 0, 0, 0, 0, 1, 1]
    shown = [float(row[2]) for row in rows[-2:]]
    assert list(run(page, "ranked")[1]) == pytest.approx(shown, abs=1e-4)
    put(page, brush=[], rank="layers")
    page.evaluate("() => { explorer.sweep = null; }")
    assert page.evaluate("() => explorer.panel('ranked').csv()") == "layer,stream,kl_bits\n"
    page.evaluate("() => explorer.startSweep()")
    shown = page.evaluate("() => explorer.panel('ranked').drawn.table().rows.map((row) => row[2])")
    assert [kl for row in run(page, "ranked")[1] for kl in row] == pytest.approx(shown, abs=1e-4)


def test_the_python_of_the_card_gives_all_its_facts(page):
    put(page, stream=3)
    code = page.evaluate("() => explorer.panel('card').drawn.python()")
    names: dict = {}
    exec(code, names)
    facts = {row[0]: row[1] for row in page.evaluate("() => explorer.panel('card').drawn.table().rows")}
    for fact, name in (("is read", "is_read"), ("reads", "reads"), ("itself", "itself")):
        assert float(facts[fact].rstrip(" %")) == pytest.approx(100 * names[name], abs=0.06)
    assert facts["converges"] == "  ".join(f"{a} {b}" for a, b in zip("ABC", names["converges"], strict=True))
    assert float(facts["ablation"]) == pytest.approx(names["ablation"], abs=1e-3)
    assert len(names["lens"]) == 8


def test_the_python_of_the_stepper_has_all_three_curves(page):
    code = page.evaluate("() => explorer.panel('stepper').drawn.python()")
    assert all(f'trace["{name}"]' in code for name in ("step_change", "state_norm", "drift_cosine"))


def test_alignments_csv_has_the_distribution_of_the_chosen_cell(page):
    put(page, layer=4, stream=2)
    rows = page.evaluate("() => explorer.panel('align').drawn.table().rows")
    mean = next(float(row[3]) for row in rows if row[:3] == [4, 2, "mean"])
    tokens = [float(row[3]) for row in rows if row[:2] == [4, 2] and row[2] != "mean"]
    assert len(tokens) == len(PROMPT)
    assert sum(tokens) / len(tokens) == pytest.approx(mean, abs=1e-4)


def test_the_boards_picture_says_what_is_switched_on(page):
    put(page, ablated=[0, 4], first=1, last=3, cuts=[[0, 1, 2, 3, None]])
    svg = page.evaluate("() => explorer.panel('board').svg()")
    assert "ablate S0 mean, S1 zero after L1–L3; cut L0 H1 S2←S3" in svg


def test_the_picture_of_a_long_prompt_is_whole_and_has_the_chosen_range(watch, nano_address):
    page = watch(nano_address).page
    page.locator("#prompt").fill("many words in many lines " * 10)
    page.locator("#prompt").press("Enter")
    page.wait_for_function("() => explorer.trace.T === 250")
    put(page, token=3, rangeEnd=9)
    svg = ElementTree.fromstring(page.evaluate("() => explorer.panel('tokens').svg()"))
    bottom = max(float(text.get("y")) for text in svg if text.tag.endswith("text"))
    assert 60 < bottom < float(svg.get("height"))
    assert sum(rect.get("stroke") is not None for rect in svg) == 7


def test_the_export_menu_downloads_files(watch, nano_address):
    page = watch(nano_address).page
    settle(page)
    for kind, start in (
        ("png", b"\x89PNG"),
        ("svg", b"<svg"),
        ("csv", b"layer,head,target,source,frequency"),
    ):
        page.locator("#panel-wall button[title=Export]").click()
        with page.expect_download() as download:
            page.locator(f"#panel-wall [data-export={kind}]").click()
        assert download.value.suggested_filename == f"wall.{kind}"
        with open(download.value.path(), "rb") as file:
            assert file.read(len(start)) == start
    page.locator("#panel-wall button[title=Export]").click()
    page.locator("#panel-wall [data-export=python]").click()
    assert (
        "capture(model, tokenizer, prompt, lexicon=lexicon)"
        in page.locator("dialog.python textarea").input_value()
    )


def test_compare_sets_a_checkpoint_against_the_model_at_any_layer_and_head(tiny, watch):
    early = tiny_model(init_seed=5)
    session = Session(tiny, byte_tokenizer(), checkpoints={"step-5": lambda: early})
    prompt = "abcdef"
    before, after = (capture(model, byte_tokenizer(), prompt).weights.mean(1) for model in (tiny, early))
    session.prompts = (prompt,)
    with serving(session) as url:
        page = watch(url).page
        settle(page)
        assert "checkpoint step-5" in page.locator("#panel-compare select").inner_text()
        put(page, measure="routing", against="checkpoint:step-5")
        page.wait_for_function("() => explorer.other?.manifest.note.checkpoint === 'step-5'")
        pictures = set()
        for layer, head in ((0, 0), (1, 1), (2, 0)):
            put(page, layer=layer, head=head)
            rows = page.evaluate("() => explorer.panel('compare').drawn.table().rows")
            assert [row[2] for row in rows] == pytest.approx(before[layer, head].ravel().tolist(), abs=1e-5)
            assert [row[3] for row in rows] == pytest.approx(after[layer, head].ravel().tolist(), abs=1e-5)
            pictures.add(picture(page, "compare"))
            assert "B  checkpoint step-5" in page.evaluate("() => explorer.panel('compare').svg()")
        assert len(pictures) == 3
