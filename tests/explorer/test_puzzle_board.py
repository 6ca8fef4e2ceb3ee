"""The board of a puzzle: in a trace, on the page, in a report."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from explorer_pages import click_region, picture, put, settle, state
from explorer_subjects import serving

from srmlab.analysis import AblatedStream, CutEdge, Intervention
from srmlab.cli import main
from srmlab.errors import UserError
from srmlab.explorer.boards import Board, examples
from srmlab.explorer.opening import open_run
from srmlab.explorer.session import Session
from srmlab.models import SRMConfig
from srmlab.models.puzzle import log_stablemax
from srmlab.puzzles import PuzzleConfig, find_kind, prepare_puzzles
from srmlab.training import TrainConfig, train
from srmlab.training.run_puzzles import open_boards

SRM = SRMConfig(
    vocab_size=6, causal=False, context=17, puzzle_positions=1, embedding_dim=8, streams=3, stream_dim=8,
    mlp_dim=8, token_heads=1, head_dim=8, stream_heads=2, depth=2, gradient_depth=1,
)  # fmt: skip
BOARD = "...43.....1..2.."


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("boards")
    prepare_puzzles(PuzzleConfig("sudoku:4x4", folder / "data", count=60, held_out=0.3))
    config = TrainConfig(
        steps=2, warmup=1, batch_size=4, segments=3, halting="trm", peak_flops=1e11, device="cpu"
    )
    train(config, SRM, folder / "data", folder / "run", show=False)
    return folder / "run"


@pytest.fixture(scope="module")
def boards(run) -> Session:
    return open_run(run)


@pytest.fixture(scope="module")
def board_page(boards, browser):
    with serving(boards) as url:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(url)
        page.wait_for_function("() => document.documentElement.dataset.ready === 'yes'")
        settle(page)
        yield page
        assert not errors
        page.close()


def test_the_trace_has_the_board_after_every_layer_of_every_segment(boards):
    trace = boards.trace(boards.encode(BOARD))
    tokens = torch.tensor([boards.encode(BOARD)])
    with torch.no_grad():
        for layer in range(6):
            logits = boards.model.at_depth(layer + 1)(tokens)[0]
            probability, value = log_stablemax(logits).max(-1)
            assert np.array_equal(trace["cell_value"][layer], value)
            assert np.allclose(trace["cell_probability"][layer], probability.exp(), atol=2e-3)
    kind = find_kind("sudoku:4x4")
    assert kind.line(trace["target"]) == "2134342143121243"
    assert trace["given"].tolist() == [int(mark != ".") for mark in BOARD]
    assert trace.manifest["puzzle"]["segment_depth"] == 2
    assert trace.manifest["axes"]["layer"] == 6


def test_every_view_of_a_board_has_the_probabilities_it_was_trained_with(boards):
    tokens = boards.encode(BOARD)
    trace = boards.trace(tokens)
    ids = torch.tensor(tokens)
    with torch.no_grad():
        full = log_stablemax(boards.model(ids[None])[0])
    at = torch.arange(len(ids))
    target = torch.from_numpy(trace["target"]).long()
    assert np.allclose(trace["lens_target"][-1], full[at, target], atol=5e-3)
    assert np.allclose(trace["surprisal"], -full[at, target] / np.log(2), atol=5e-3)
    silence = Intervention(ablations=(AblatedStream(1, "mean", 5, 5),))
    outcome = boards.intervene(tokens, silence)
    best = torch.tensor([bars[0]["before"] for bars in outcome["top_before"]])
    assert np.allclose(best, full[:, 2:].exp().amax(-1), atol=1e-4)  # digits
    assert np.allclose(outcome["kl"], trace["ablation_kl"][:, 1], atol=1e-3)
    with torch.no_grad():
        hooks = boards.hooks(tokens, silence)
        changed = log_stablemax(boards.model.run_with_hooks(ids[None], fwd_hooks=hooks)[0])
    kl = (full.exp() * (full - changed)).sum(-1) / np.log(2)
    assert np.allclose(outcome["kl"], kl, atol=1e-5)


def test_a_cell_is_offered_digits_only(boards):
    tokens = boards.encode(BOARD)
    trace = boards.trace(tokens)
    assert trace["lens_ids"].shape[-1] == 4  # not the padding, not an empty cell
    assert set(trace["lens_ids"].flat) == {2, 3, 4, 5}
    assert trace["stream_lens_id"].min() >= 2
    ablated = boards.intervene(tokens, Intervention(ablations=(AblatedStream(1, "zero", 0, 5),)))
    assert set(ablated["vocabulary"].values()) == set("1234")


def test_any_value_of_a_maze_may_stand_in_an_answer():
    board = Board(find_kind("maze:3"), 1, log_stablemax)
    assert board.token_strings(board.values) == list("#.SGo")


def test_the_hardest_board_comes_first(run):
    boards = open_boards(run).puzzles
    ratings = dict(zip(map(boards.kind.line, boards.test.inputs), boards.test.ratings, strict=True))
    offered = [ratings[board] for board in examples(boards)]
    assert offered == sorted(offered, reverse=True)
    assert offered[0] == max(ratings.values())
    assert offered[-1] == min(ratings.values())


def test_interventions_change_the_board_and_a_cut_is_at_its_cell(boards):
    tokens = boards.encode(BOARD)
    plain = boards.trace(tokens)
    ablated = boards.trace(tokens, Intervention(ablations=(AblatedStream(1, "zero", 0, 5),)))
    assert not np.array_equal(plain["cell_probability"], ablated["cell_probability"])
    cut = boards.trace(tokens, Intervention(cuts=(CutEdge(2, 0, 1, 0, 3),)))
    changed = (cut["routing"] != plain["routing"]).any((2, 3, 4))[2]  # of the third layer, by cell
    assert changed.tolist() == [cell == 3 for cell in range(16)]


def test_a_board_is_read_in_one_line_or_drawn():
    board = Board(find_kind("sudoku:4x4"), 2, log_stablemax)
    drawn = "1 . | . 4\n. . | 2 .\n----+----\n. 3 | . .\n4 . | . 0"
    assert board.decode(board.encode(drawn)) == "1..4..2..3..4..."
    for text, says in (("12", "2 cells"), ("x" * 16, "is not a value"), ("5" * 16, "is not a value")):
        with pytest.raises(UserError, match=says):
            board.encode(text)
    with pytest.raises(UserError, match="no solution"):
        board.answer(board.encode("11" + "." * 14))


def test_a_mazes_answer_is_its_way():
    board = Board(find_kind("maze:3"), 1, log_stablemax)
    answer = board.answer(board.encode("S.. ##. G.."))
    assert answer is not None
    assert board.decode(answer) == "Soo##oGoo"


@pytest.mark.parametrize(
    "text", ["S..##.G..", "S  ## G  ", "S  \n## \nG  ", "S\n##\nG\n", "S . .\n# # .\nG . ."]
)
def test_open_cells_of_a_maze_may_be_blank(text):
    board = Board(find_kind("maze:3"), 1, log_stablemax)
    assert board.decode(board.encode(text)) == "S..##.G.."


@pytest.mark.parametrize("text", ["S  ## G", "S  \n## "])
def test_a_maze_of_another_size_is_refused(text):
    with pytest.raises(UserError, match="a maze:3 has 9"):
        Board(find_kind("maze:3"), 1, log_stablemax).encode(text)


def test_the_page_shows_the_board_first_and_no_generation(board_page):
    assert board_page.locator("#app .panel").first.get_attribute("id") == "panel-puzzle"
    assert not board_page.locator("#generate").is_visible()
    assert state(board_page)["layer"] == 5  # the last
    note = board_page.locator("#panel-puzzle .note").text_content() or ""
    assert "segment 3, layer 2" in note


def test_on_a_telephone_all_of_it_is_inside(board_page):
    board_page.set_viewport_size({"width": 390, "height": 844})
    settle(board_page)
    board_page.locator("#panel-puzzle").scroll_into_view_if_needed()
    settle(board_page)
    regions = board_page.evaluate("() => explorer.panel('puzzle').pen.regions")
    width, height = board_page.evaluate("() => explorer.panel('puzzle').size")
    assert all(one["x"] >= 0 and one["x"] + one["w"] <= width for one in regions)
    assert all(one["y"] >= 0 and one["y"] + one["h"] <= height for one in regions)
    board_page.set_viewport_size({"width": 1280, "height": 900})
    settle(board_page)


def test_a_large_screen_has_board_layers_and_streams_side_by_side(board_page):
    places = {}
    for width in (1280, 1920):
        board_page.set_viewport_size({"width": width, "height": 1080})
        picture(board_page, "puzzle")
        regions = board_page.evaluate("() => explorer.panel('puzzle').pen.regions")
        big, lens = regions[0], regions[-1]
        small = [one for one in regions if one["part"] == "small"]
        right = max(one["x"] + one["w"] for one in small)
        bottom = max(one["y"] + one["h"] for one in small)
        assert lens["part"] == "lens"
        assert small[0]["x"] > big["x"] + big["w"]
        places[width] = (lens["x"] > right, lens["y"] > bottom)
        room = board_page.evaluate("() => explorer.panel('puzzle').size[0]")
        assert room - 20 < lens["x"] + lens["w"] <= room
    board_page.set_viewport_size({"width": 1280, "height": 900})
    settle(board_page)
    assert places == {1280: (False, True), 1920: (True, False)}


def test_a_click_on_a_small_board_goes_to_its_layer_and_one_on_a_cell_selects_it(board_page):
    before = picture(board_page, "puzzle")
    click_region(board_page, "puzzle", row=0, column=0, which=2)  # the board itself, then one for each layer
    assert state(board_page)["layer"] == 1
    assert picture(board_page, "puzzle") != before
    click_region(board_page, "puzzle", row=2, column=1)
    assert state(board_page)["token"] == 9


def test_a_ratio_to_next_to_nothing_has_no_digits(board_page):
    said = """async ([most, least]) => {
      const kl = new Float32Array(explorer.base.data("ablation_kl").length).fill(least);
      for (let i = 0; i < kl.length; i += explorer.base.S) kl[i] = most;
      const trace = Object.create(explorer.base, {
        data: { value: () => kl }, memory: { value: new Map() },
      });
      return explorer.panel("ranked").view.caption(trace);
    }"""
    assert "a factor of 6.0)" in board_page.evaluate(said, [0.6, 0.1])
    assert "a factor of over 1000)" in board_page.evaluate(said, [0.6, 6e-7])


# The words of the picture in one line, and how many cells are struck out.
DRAWN = """() => {
  const host = document.createElement("div");
  host.innerHTML = explorer.panel("puzzle").svg();
  const words = [...host.querySelectorAll("text")].map((text) => text.textContent).join(" ");
  const struck = [...host.querySelectorAll("path")].filter((path) => path.getAttribute("d").includes("L"));
  return [words, struck.length];
}"""


def test_a_stream_is_left_out_with_one_button_and_the_board_follows(board_page):
    put(board_page, layer=5, stream=1, ablated=[], version="baseline")
    before = picture(board_page, "puzzle")
    board_page.locator("[data-without='1']").click()
    settle(board_page)
    now = state(board_page)
    assert (now["ablated"], now["first"], now["last"], now["version"]) == ([3], 0, 5, "intervened")
    assert picture(board_page, "puzzle") != before
    words, struck = board_page.evaluate(DRAWN)
    assert "orange ones wrong" in words
    assert struck > 0
    put(board_page, version="difference")
    assert "breaks" in (board_page.locator("#panel-puzzle .note").text_content() or "")
    words, struck = board_page.evaluate(DRAWN)
    assert "mends the blue ones" in words
    assert "orange ones wrong" not in words
    assert struck == 0  # a line in the colour of its cell would cut the digit
    put(board_page, ablated=[], version="baseline")
    assert picture(board_page, "puzzle") == before


# Stops the play as soon as it is at the third layer, however slow the machine is.
STOPPED = """() => {
  if (explorer.store.get("layer") !== 2) return false;
  document.querySelector("#panel-puzzle .controls button").click();
  return true;
}"""


def test_playing_goes_through_depth(board_page):
    put(board_page, layer=5)
    board_page.locator("#panel-puzzle .controls button").first.click()
    board_page.wait_for_function(STOPPED)
    stopped = state(board_page)["layer"]
    assert 2 <= stopped < 5  # it began anew, and did not go on to the end
    board_page.wait_for_timeout(700)  # two more layers, if it still played
    assert state(board_page)["layer"] == stopped


def test_no_picture_of_a_board_speaks_of_tokens_and_every_digit_has_a_bar(board_page):
    put(board_page, token=3, layer=5)
    assert board_page.locator("#selection").inner_text().startswith("row 1, column 4 ")
    spoken = {}
    for name in board_page.evaluate("() => explorer.panels.map(({ view }) => view.name)"):
        picture(board_page, name)
        svg = board_page.evaluate("(name) => explorer.panel(name).svg()", name)
        note = board_page.locator(f"#panel-{name} .note").inner_text()
        if found := [words for words in (*re.findall(r">([^<]+)</text>", svg), note) if "token" in words]:
            spoken[name] = found
        if name in ("lens", "attention"):
            assert ">r1c4</text>" in svg  # what stands in a cell, often nothing, is no name for it
    assert not spoken
    bars = board_page.evaluate("() => explorer.panel('board').drawn.table().rows.map(([value]) => value)")
    assert sorted(bars) == list("1234")


def test_cells_stand_in_the_rows_of_the_board(board_page):
    tops = """() => [...document.querySelectorAll("#panel-tokens .token")].map((one) =>
      Math.round(one.getBoundingClientRect().top))"""
    rows = [board_page.evaluate(tops)[first : first + 4] for first in range(0, 16, 4)]
    assert all(len(set(row)) == 1 for row in rows)
    assert len({row[0] for row in rows}) == 4
    assert board_page.locator("#panel-tokens .token").nth(1).bounding_box()["width"] >= 26  # a finger's
    side = "(name) => document.querySelector(`#panel-${name}`).getBoundingClientRect()"
    cells, lens, board = (board_page.evaluate(side, name) for name in ("tokens", "lens", "puzzle"))
    assert cells["left"] >= lens["right"]  # beside the lens, under the board
    assert cells["top"] == lens["top"] >= board["bottom"]


def test_help_and_every_explanation_speak_of_cells(board_page):
    panels = board_page.evaluate(
        """() => explorer.panels.flatMap(({ element }) =>
          [...element.querySelectorAll("h2, .about, [title], [aria-label]")].flatMap((one) =>
            [one.textContent, one.title, one.getAttribute("aria-label")]))"""
    )
    board_page.locator("#help").click()
    words = board_page.locator("dialog").inner_text()
    board_page.keyboard.press("Escape")
    assert "A square of the board" in words
    assert "Cell attention" in panels
    assert not [one for one in (*panels, words) if one and re.search(r"token|\btext\b", one, re.IGNORECASE)]


def test_the_wall_is_over_the_board_and_attention_that_does_not_change_is_called_so(board_page):
    picture(board_page, "wall")
    assert board_page.locator("#panel-wall .choice").nth(1).inner_text().split() == ["board", "selection"]
    last = board_page.evaluate("() => explorer.base.L") - 1
    put(board_page, ablated=[0], first=last, last=last, version="difference")  # after the last attention
    picture(board_page, "attention")
    note = board_page.locator("#panel-attention .note").inner_text()
    assert note.endswith("does not change")
    put(board_page, ablated=[], version="baseline")


def test_the_tour_speaks_of_cells_and_begins_at_the_board(board_page):
    board_page.locator("#help").click()
    board_page.locator("#tour").click()
    tour = board_page.locator(".tour")
    said, about = [], []
    while tour.count():
        said.append(tour.locator("p").inner_text())
        about.append(board_page.evaluate("() => document.querySelector('.toured')?.id"))
        tour.locator(".primary").click()
        settle(board_page)
    assert said[0].startswith("For every cell this model keeps several states")
    assert about[1] == "panel-puzzle"
    assert "write into that cell" in said[2]
    assert not [words for words in said if "token" in words]


def test_the_report_has_the_board(run, tmp_path, browser):
    out = tmp_path / "report.html"
    with pytest.raises(SystemExit) as stop:
        main(["report", str(run), "--out", str(out)])
    assert not stop.value.code
    page = browser.new_page()
    page.goto(out.as_uri())
    page.wait_for_selector("#panel-puzzle")
    assert "open cells" in (page.locator("#panel-puzzle").text_content() or "")
    head = page.locator(".report").first.inner_text()
    assert "3 segments of 2 layers" in head
    assert "nats per cell" in head
    assert "of its test boards are solved" in head
    assert "Inside 6 boards" in head
    page.wait_for_selector("#panel-lens .caption:not([hidden])")
    captions = page.locator(".caption").all_inner_texts()
    assert "open cells" in page.locator("#panel-board .caption").inner_text()
    assert not [words for words in (head, *captions) if "token" in words]
    page.close()


def test_a_checkpoint_of_boards_has_its_own_means_and_its_python_is_unrolled(watch, boards):
    (name,) = boards.checkpoints
    with serving(boards) as url:
        page = watch(f"{url}/#checkpoint={name}").page
        settle(page)
        assert page.evaluate("() => explorer.base.manifest.reference") == "evaluation tokens"
        names: dict = {}
        exec(page.evaluate("() => explorer.panel('ranked').drawn.python()"), names)
        shown = page.evaluate("() => Array.from(explorer.base.data('ablation_kl'))")
        assert names["trace"]["ablation_kl"].astype(float).ravel() == pytest.approx(shown, abs=1e-6)


def test_an_untrained_twin_stands_beside_a_model_of_boards(watch, boards):
    with serving(boards) as url:
        page = watch(url).page
        page.locator("#twin input").check()
        settle(page)
        untrained = boards.trace(page.evaluate("() => explorer.tokens()"), checkpoint="untrained")
        bits = float(np.mean(untrained["surprisal"].astype(float)))
        assert page.locator("#panel-tokens .beside").inner_text().endswith(f"surprisal {bits:.2f} bits")
        assert "Features: dictionaries are for text" in page.locator(".absent").inner_text()
