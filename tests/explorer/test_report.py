"""The report is one file that holds everything, says what it shows, and opens without a network."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest
import torch
from explorer_pages import AT_REST, point_at
from explorer_pages import VIEWS as ALL_VIEWS
from explorer_subjects import tiny_model
from PIL import Image

from srmlab import analysis
from srmlab.analysis.drift import CLASSES, convergence, convergence_class
from srmlab.data import byte_tokenizer
from srmlab.errors import UserError
from srmlab.experiments import CellResult, SweepResult, experiment
from srmlab.experiments.results import Run
from srmlab.explorer.leaderboard import leaderboards, read_results
from srmlab.explorer.report import training_curve, training_sentence, write_report
from srmlab.explorer.session import Session

VIEWS = [view for view in ALL_VIEWS if view not in ("attention", "paths")]  # which ask a server


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    rows = [{"step": i, "loss": 8 * 0.99**i} for i in range(1, 301)] + [
        {"step": 100, "val_loss": 4.0},
        {"step": 300, "val_loss": 3.5},
    ]
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)) + '\n{"step": 301, "lo')
    (folder / "run.json").write_text(
        json.dumps(
            {"versions": {"torch": "2.x"}, "training": {"lr": 1e-3}, "data": {"fingerprint": "abc123"}}
        )
    )
    return folder


@pytest.fixture(scope="module")
def report(run, nano):
    session = replace(nano, saved={})
    session.saved["routing"] = {
        "kind": "routing",
        "headline": "hubs S1 <b>",
        "summary": "all & more",
        "evidence": "64 tokens",
    }
    batch = torch.arange(64).view(2, 32)
    session.saved["depth"] = {**session.saved["routing"], "kind": "depth", "headline": "loss 5.5"}
    session.saved["drift"] = {**session.saved["routing"], "kind": "drift", "headline": "late"}
    for kind in (analysis.depth, analysis.drift):
        kind(session.model, [batch]).save(run / "analysis" / kind.__name__)
    prompts = ["The streams begin to talk.", "</script><script>alert(1)</script> & more"]
    return write_report(session, run / "report.html", run=run, prompts=prompts)


def test_the_file_is_small_and_refers_to_nothing_outside(report):
    text = report.read_text()
    assert len(text) < 5_000_000
    assert not re.search(r'(?:src|href)\s*=\s*["\'](?!data:)', text.split("<script")[0])
    assert "default-src 'none'" in text
    assert "unsafe" not in text.split("<style>")[0]


def test_it_opens_from_a_file_draws_every_view_and_asks_for_nothing(watch, report):
    page = watch(report.as_uri()).page
    for view in VIEWS:
        page.locator(f"#panel-{view}").scroll_into_view_if_needed()
        page.wait_for_function(
            "(id) => Number(document.getElementById(`panel-${id}`).dataset.drawn) > 0", arg=view
        )
        caption = page.locator(f"#panel-{view} .caption").inner_text()
        assert re.search(r"\d", caption), view
        assert caption.endswith("."), view
    assert not page.locator("#panel-board .board").is_visible()  # its switches need the model
    said = page.evaluate("() => [...document.querySelectorAll('.about p')].map((p) => p.textContent).join()")
    assert "Each row sums to 1." in said
    assert not re.search("alt-click|ablates a|reruns", said, re.IGNORECASE)  # nor does anything else
    assert page.locator("#training canvas").count() == 1
    assert page.locator(".report .caption").first.inner_text() == (
        "Training loss goes from 7.92 to 0.42 nats per token in 300 steps; validation loss is lowest at step "
        "300, 3.500."
    )
    first, *_, last = page.locator(".report h2").all_inner_texts()
    assert (first, last) == ("How good it is", "Appendix: provenance and config")
    assert "The loss is" in page.locator(".findings").inner_text()
    assert "hubs S1 <b>" in " ".join(page.locator(".report .measured").all_inner_texts())
    before = page.locator("#panel-wall .caption").inner_text()
    page.locator("#tabs button").nth(1).click()
    page.wait_for_function("() => explorer.trace.manifest.prompt.startsWith('</script>')")
    assert page.locator("#panel-wall .caption").inner_text() != before


def test_it_is_read_on_a_telephone(watch, report):
    page = watch(report.as_uri(), viewport={"width": 390, "height": 844}).page
    assert page.evaluate("() => document.documentElement.scrollWidth") == 390
    drift = page.locator(".findings .figure", has=page.locator("[alt^=drift]"))
    sizes = drift.evaluate("(f) => [f.clientWidth, f.scrollWidth, f.firstChild.naturalWidth]")
    assert sizes[0] < 390 < sizes[1] == sizes[2]  # as large as it was drawn: it scrolls rather than shrinks


def test_in_the_report_traces_are_compared_with_each_other(watch, report):
    page = watch(report.as_uri()).page
    page.locator("#panel-compare").scroll_into_view_if_needed()
    page.locator("#panel-compare select").select_option("trace:0")
    page.wait_for_function("() => explorer.other === explorer.traces[0]")
    assert page.locator("#panel-compare .caption").inner_text() == "A and B are the same trace."
    page.locator("#panel-compare select").select_option("trace:1")
    page.wait_for_function(
        "() => explorer.other === explorer.traces[1] && explorer.panel('compare').pen?.regions.length === 3"
    )
    forth = page.locator("#panel-compare .caption").inner_text()
    page.locator("#tabs button").nth(1).click()  # A is now what B was
    page.wait_for_function("() => explorer.other === explorer.traces[0]")
    back = page.locator("#panel-compare .caption").inner_text()
    assert re.findall(r"([\d.]+) in A and ([\d.]+) in B", forth) == [
        (a, b) for b, a in re.findall(r"([\d.]+) in A and ([\d.]+) in B", back)
    ]


# How many pixels of the training chart have the palette's colour of that name.
PIXELS = """(name) => {
  const canvas = document.querySelector("#training canvas");
  canvas.style.color = `var(${name})`; // as this theme has it
  const wanted = getComputedStyle(canvas).color.match(/\\d+/g).map(Number);
  const { width, height } = canvas;
  const copy = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
  copy.drawImage(canvas, 0, 0);
  const { data } = copy.getImageData(0, 0, width, height);
  let found = 0;
  for (let i = 0; i < data.length; i += 4) found += wanted.every((value, c) => data[i + c] === value);
  return found;
}"""


def test_the_training_chart_draws_training_and_validation_loss_and_names_them(watch, report):
    page = watch(report.as_uri()).page
    assert page.evaluate(PIXELS, "--cool") > 200
    assert page.evaluate(PIXELS, "--warm") > 200  # a line from step 100 to 300, its two points
    assert page.locator("#training-legend span").all_inner_texts() == ["training", "validation"]
    page.evaluate("() => explorer.store.set({ theme: 'dark' })")
    page.wait_for_function("() => document.documentElement.dataset.theme === 'dark'")
    assert page.evaluate(PIXELS, "--warm") > 200  # of the dark palette now
    page.set_viewport_size({"width": 700, "height": 900})
    page.wait_for_function("() => document.querySelector('#training canvas').clientWidth <= 700")


def test_a_saved_analysis_has_its_headline_and_its_figure(watch, report):
    page = watch(report.as_uri()).page
    sections = page.locator(".measured section")
    assert sections.locator("h3").all_inner_texts() == ["routing", "depth", "drift"]
    assert sections.locator("p").all_inner_texts() == ["hubs S1 <b>", "loss 5.5", "late"]
    assert sections.nth(0).locator("img").count() == 0  # nothing of it is saved beside the run
    figure = sections.nth(1).locator("img")
    page.wait_for_function("(image) => image.complete", arg=figure.element_handle())
    assert figure.evaluate("(image) => image.naturalWidth") > 200


def test_nothing_moves_when_a_panel_comes_into_sight(watch, report):
    page = watch(report.as_uri()).page
    tops = """() => Object.fromEntries(
      explorer.panels.map(({ view, element }) =>
        [view.name, element.getBoundingClientRect().top + scrollY]))"""
    drawn = "() => explorer.panels.every(({ element }) => element.dataset.drawn > 0)"
    page.evaluate(AT_REST)
    before = page.evaluate(tops)
    assert not page.evaluate(drawn)
    for view in VIEWS:
        page.locator(f"#panel-{view}").scroll_into_view_if_needed()
    page.wait_for_function(drawn)
    page.evaluate(AT_REST)
    assert page.evaluate(tops) == pytest.approx(before, abs=1)


def test_the_keys_work_among_the_panels_and_scroll_elsewhere(watch, report):
    page = watch(report.as_uri()).page
    page.mouse.move(100, 40)  # on the heading
    page.keyboard.press("Space")
    page.wait_for_function("() => scrollY > 100")
    assert page.locator("#panel-stepper [title='Play (space)']").inner_text() == "▶"
    point_at(page, "stepper")
    page.keyboard.press("m")
    page.wait_for_function("() => explorer.store.get('big') === 'stepper'")
    page.keyboard.press("Escape")
    page.wait_for_function("() => !explorer.store.get('big')")
    point_at(page, "stepper")  # the page has moved under the pointer
    page.keyboard.press("Space")
    page.wait_for_function(
        """() => document.querySelector("#panel-stepper [title='Play (space)']").textContent === "❚❚" """
    )
    page.keyboard.press("Space")


def test_on_a_very_wide_screen_the_head_grows_with_the_panels(watch, report):
    tall = "(selector) => document.querySelector(selector).getBoundingClientRect().height"
    usual = watch(report.as_uri()).page
    wide = watch(report.as_uri(), viewport={"width": 3840, "height": 2160}).page
    for selector in (".report h1", ".report .caption", "#training canvas"):
        assert wide.evaluate(tall, selector) == pytest.approx(1.5 * usual.evaluate(tall, selector), rel=0.05)
    chart = "() => document.querySelector('#training canvas').getBoundingClientRect().right"
    place = "() => document.getElementById('training').getBoundingClientRect().right"
    assert wide.evaluate(chart) == pytest.approx(wide.evaluate(place), abs=2)
    usual.set_viewport_size({"width": 1920, "height": 1080})
    left = "(selector) => document.querySelector(selector).getBoundingClientRect().left"
    assert usual.evaluate(left, ".report h1") == usual.evaluate(left, ".panel")  # one edge


def test_on_a_very_wide_screen_findings_stand_in_pairs_and_the_stepper_fills_its_panel(watch, report):
    page = watch(report.as_uri(), viewport={"width": 3840, "height": 2160}).page
    first, second = (page.locator(".findings li").nth(i).bounding_box() for i in range(2))
    assert first["y"] == second["y"]
    assert first["x"] + first["width"] <= second["x"]
    page.locator("#panel-stepper").scroll_into_view_if_needed()
    page.evaluate(AT_REST)
    spare = """() => {
      const { body, canvas } = explorer.panel("stepper");
      return body.getBoundingClientRect().bottom - canvas.getBoundingClientRect().bottom;
    }"""
    assert page.locator("#panel-stepper.half").count() == 1
    assert page.evaluate(spare) < 40  # beside features, which are taller


@pytest.mark.parametrize(
    ("scheme", "theme", "is_turned"),
    [("light", "", False), ("dark", "", True), ("dark", "light", False), ("light", "dark", True)],
)
def test_a_figure_is_turned_in_the_dark_and_only_there(watch, report, scheme, theme, is_turned):
    page = watch(report.as_uri(), color_scheme=scheme).page
    if theme:
        page.evaluate("(theme) => explorer.store.set({ theme })", theme)
        page.wait_for_selector(f"html[data-theme={theme}]")
    figure = page.locator(".findings .figure img").first
    assert ("invert" in figure.evaluate("(img) => getComputedStyle(img).filter")) == is_turned
    figure.scroll_into_view_if_needed()
    corner = Image.open(BytesIO(figure.screenshot())).convert("L").getpixel((3, 3))
    assert (corner < 60) == is_turned  # its paper is as dark as the page


def open_for_print(browser, report, theme: str):
    page = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme=theme)
    page.goto(report.as_uri())
    page.wait_for_function("() => document.documentElement.dataset.ready === 'yes'")
    return page


def test_on_paper_every_picture_has_the_width_of_its_panel_and_the_light_colours(browser, report):
    page = open_for_print(browser, report, "dark")
    page.locator("#panel-tokens").scroll_into_view_if_needed()
    on_screen = page.locator(".token").first.evaluate("(t) => t.style.background")
    page.set_viewport_size({"width": 720, "height": 1000})  # a page
    page.emulate_media(media="print", color_scheme="dark")
    page.evaluate("() => dispatchEvent(new Event('beforeprint'))")
    assert not page.locator("#panel-wall .controls").is_visible()
    widths = page.evaluate("""() => [...document.querySelectorAll("canvas, svg")]
        .filter((picture) => picture.checkVisibility())
        .map((picture) => picture.clientWidth / picture.closest(".body, #training").clientWidth)""")
    assert len(widths) == len(VIEWS)  # the tokens are words, but there is the training curve
    assert all(0.9 < width <= 1 for width in widths), widths
    inks = page.evaluate(
        """() => [...document.querySelectorAll("svg text")].map((t) => t.getAttribute("fill"))"""
    )
    assert "#17191c" in inks
    assert not {"#e8e6e1", "#9da1a7"} & set(inks)  # the dark palette's
    assert page.evaluate("() => getComputedStyle(document.body).color") == "rgb(23, 25, 28)"
    assert page.evaluate("() => getComputedStyle(document.body).printColorAdjust") == "exact"
    assert page.locator(".token").first.evaluate("(t) => t.style.background") != on_screen
    assert page.locator("details:not([open])").count() == 0
    page.emulate_media(media="screen", color_scheme="dark")
    page.evaluate("() => dispatchEvent(new Event('afterprint'))")
    page.wait_for_function(
        "(was) => document.querySelector('.token').style.background === was", arg=on_screen
    )
    assert page.locator(".paper, details[open]").count() == 0
    page.close()


def test_a_dark_screen_prints_what_a_light_one_does(browser, report):
    printed = []
    for theme in ("light", "dark"):
        page = open_for_print(browser, report, theme)
        printed.append(re.sub(rb"D:\d+|<[0-9A-F]{32}>", b"", page.pdf()))  # without dates
        page.close()
    assert printed[0][:5] == b"%PDF-"
    assert printed[0] == printed[1]


def test_the_same_session_gives_the_same_report(run, tmp_path):
    session = Session(tiny_model(), byte_tokenizer(), name="tiny", prompts=("abc",))
    first = write_report(session, tmp_path / "a.html", run=run).read_bytes()
    assert write_report(session, tmp_path / "b.html", run=run).read_bytes() == first


def test_the_training_curve_skips_a_torn_line_and_is_thinned(run, tmp_path):
    curve = training_curve(run)
    assert curve is not None
    assert (curve["step"][-1], curve["val"][-1]) == (300, 3.5)
    assert training_sentence(curve).endswith("validation loss is lowest at step 300, 3.500.")
    long = tmp_path / "metrics.jsonl"
    long.write_text("\n".join(json.dumps({"step": i, "loss": 2.0}) for i in range(1, 5001)))
    thinned = training_curve(tmp_path)
    assert thinned is not None
    assert len(thinned["step"]) == 1000
    assert set(thinned["loss"]) == {2.0}
    assert training_curve(tmp_path / "nowhere") is None


def test_a_folder_that_cannot_be_written_is_one_clear_line(tmp_path):
    (tmp_path / "file").write_text("")
    session = Session(tiny_model(), byte_tokenizer(), prompts=("abc",))
    with pytest.raises(UserError, match="choose another --out"):
        write_report(session, tmp_path / "file" / "report.html")


CAPTIONS = """() => Object.fromEntries(
  [...document.querySelectorAll(".panel")].map((panel) => [
    panel.id.replace("panel-", ""), panel.querySelector(".caption").textContent]))"""


def captions(watch, path, *traces) -> dict[str, str]:
    """The sentences under the panels of a report of these traces, by view."""
    session = Session(tiny_model(), byte_tokenizer(), name="tiny")
    page = watch(write_report(session, path, traces=traces).as_uri()).page
    page.wait_for_function("() => explorer.traces.length < 2 || explorer.other")
    return page.evaluate(CAPTIONS)


def minus(number: str) -> str:
    return number.replace("-", "−")


def test_captions_say_what_the_arrays_hold(watch, tmp_path):
    trace = Session(tiny_model(), byte_tokenizer()).trace([72, 101, 121])
    said = captions(watch, tmp_path / "report.html", trace)
    kl = trace["ablation_kl"].astype(float).mean(0)
    assert f"Ablating S{kl.argmax()} has the largest effect, {kl.max():.3f} bits" in said["ranked"]
    worst = int(np.nanargmax(trace["surprisal"].astype(float)))
    assert f"highest at “{trace.token_strings[worst]}” (token {worst})" in said["tokens"]
    assert minus(f"{trace['connection_cosine'].astype(float).mean():.3f}") in said["align"]
    weights = trace.weights.mean(1)
    layer, head, target, source = np.unravel_index(weights.argmax(), weights.shape)
    edge = f"S{target} ← S{source} in layer {layer}, head {head}: {weights.max():.2f}"
    assert edge in said["routing"]
    frequency = (trace["routing"] > 25).mean(1)  # [layer, head, target, source]
    assert f"{100 * frequency.mean():.0f} % of all edges." in said["wall"]
    used = (frequency > 0.5).sum((1, 2, 3))
    assert said["flow"].endswith(f"by layer: {' '.join(map(str, used))}.")
    drift = trace["drift_cosine"].astype(float).mean(2)  # [transition, group, stream]
    converged = [convergence(curve) for curve in drift.reshape(len(drift), -1).T]
    late = sum(convergence_class(at, len(drift)) == CLASSES.index("late") for at in converged)
    assert f"{late} late" in said["drift"]
    change = trace["step_change"].astype(float).mean((1, 2))
    assert said["stepper"].endswith(f"by {change[0]:.2f}, the last by {change[-1]:.2f}.")
    norms = trace["write_norm"][-1].astype(float)
    assert f"norm {norms.max():.1f} after subtracting the mean, against a median of " in said["card"]
    steps = len(change) // 3
    right = trace["lens_target"][steps - 1 : len(change) : steps].astype(float).mean(1)
    assert minus(f"{right[-1]:.2f} after layer 2.") in said["lens"]


def test_the_caption_of_a_comparison_says_how_far_the_two_are_apart(watch, tmp_path):
    session = Session(tiny_model(), byte_tokenizer())
    one, other = session.trace([72, 101, 121]), session.trace([74, 117])
    a, b = one.weights.mean(1), other.weights.mean(1)
    at = np.unravel_index(np.abs(b - a).argmax(), a.shape)
    said = captions(watch, tmp_path / "two.html", one, other)["compare"]
    assert f"differ by {np.abs(b - a).mean():.3f} per edge" in said
    place = f"S{at[2]} ← S{at[3]} in layer {at[0]}, head {at[1]}"
    assert f"{place} ({a[at]:.2f} in A and {b[at]:.2f} in B)" in said
    wider = Session(tiny_model(streams=4), byte_tokenizer()).trace([72])
    assert captions(watch, tmp_path / "wider.html", one, wider)["compare"] == (
        "A has 3 layers, 2 heads and 3 streams; B has 3 layers, 2 heads and 4 streams."
    )


@pytest.mark.parametrize("changes", [{}, {"depth": 1, "gradient_depth": 1, "streams": 1}])
def test_captions_exist_for_the_smallest_prompt_and_the_smallest_model(watch, tmp_path, changes):
    trace = Session(tiny_model(**changes), byte_tokenizer()).trace([65])
    said = captions(watch, tmp_path / "report.html", trace)
    del said["compare"]  # there is nothing to compare with
    assert len(said) == len(VIEWS) - 2  # nor a dictionary
    for sentence in said.values():
        assert "nan" not in sentence.lower()
        assert sentence.endswith(".")


def test_experiments_go_into_the_report(tmp_path):
    runs = [[Run(seed, loss, loss, 60.0, [(1, 5.0), (9, loss)]) for seed in range(2)] for loss in (3.5, 3.25)]
    cells = [
        CellResult(name, "", None, 3.84, 1000, 10, 512, {}, {}, made)
        for name, made in zip(("ABC", "ABCABC"), runs, strict=True)
    ]
    about = {"source": "<words>", "vocab_size": 257, "fingerprint": "f"}
    result = SweepResult("step-ordering", "mini", 14, about, {}, cells)
    result.save(tmp_path / "step-ordering-mini", experiment("step-ordering"))
    (tmp_path / "step-ordering-mini" / "figure.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    html = leaderboards(read_results(tmp_path))
    assert html.index("<td>ABCABC</td>") < html.index("<td>ABC</td>")  # the best first
    assert "Does the order of the step functions matter?" in html
    assert "ABCABC at 3.250 against ABC at 3.500" in html
    assert "data:image/svg+xml;base64," in html
    assert "<details" not in html
    with pytest.raises(UserError, match="holds no results"):
        read_results(tmp_path / "nowhere")
