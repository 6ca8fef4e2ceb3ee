"""A view of a user's own, in one file outside the package, is shown like any other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from explorer_pages import COLORS, picture, put, settle
from explorer_subjects import PROMPT, serving, tiny_model

from srmlab.cli import main
from srmlab.data import byte_tokenizer
from srmlab.errors import UserError
from srmlab.explorer import capture, frontend, register_view
from srmlab.explorer.report import write_report
from srmlab.explorer.session import Session

GUIDE = (Path(__file__).parents[2] / "docs" / "explorer.md").read_text(encoding="utf-8")
VIEW = """
export const view = {
  name: "NAME",
  title: "Surprisal, large",
  place: "wide",
  needs: ["surprisal"],
  shows: "The surprisal of the selected token.",
  reading: "In bits.",
  uses: ["token"],
  mount: (panel, app) => ({
    render(pen, width, height, theme) {
      const bits = app.trace.data("surprisal")[app.store.get("token")];
      pen.text(`${bits.toFixed(3)} bits`, 10, 60, { color: theme.ink, size: 40 });
    },
  }),
};
"""


@pytest.fixture(autouse=True)
def registry(monkeypatch) -> None:
    """An empty registry for each test."""
    monkeypatch.setattr(frontend, "_own", {})


def write(folder: Path, source: str = VIEW, name: str = "mine") -> Path:
    path = folder / f"{name}.js"
    path.write_text(source.replace("NAME", name), encoding="utf-8")
    return path


def test_the_page_draws_it_from_the_trace_and_redraws_what_it_depends_on(watch, session, tmp_path):
    assert register_view(write(tmp_path)) == "mine"
    with serving(session) as address:
        page = watch(f"{address}/#prompt=The+streams&token=3").page
        settle(page)
        bits = page.evaluate("() => explorer.trace.data('surprisal')[3].toFixed(3)")
        assert f">{bits} bits</text>" in page.evaluate("() => explorer.panel('mine').svg()")
        before = picture(page, "mine")
        assert page.evaluate(COLORS, "mine") > 2
        put(page, token=5)
        assert picture(page, "mine") != before
        title = page.locator("#panel-mine h2").get_attribute("title")
        assert title == "The surprisal of the selected token. In bits."
        page.locator("#panel-mine [title=Export]").click()
        assert page.locator("#panel-mine .menu button:visible").all_inner_texts() == ["PNG", "SVG"]


def test_the_guides_example_is_in_the_report_with_its_caption(watch, tmp_path):
    (example,) = re.findall(r"^```js\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    register_view(write(tmp_path, example))
    report = write_report(Session(tiny_model(), byte_tokenizer(), prompts=(PROMPT,)), tmp_path / "r.html")
    page = watch(report.as_uri()).page
    panel = page.locator("#panel-entropy")
    panel.scroll_into_view_if_needed()
    page.wait_for_function("() => explorer.panel('entropy').element.dataset.drawn > 0")
    assert panel.locator(".caption").inner_text() == "Routing entropy over 3 layers and 2 heads."
    bars = page.evaluate("() => explorer.panel('entropy').svg()").count("<rect")
    assert bars == 1 + 3 * 2  # and the paper
    box = panel.locator("canvas").bounding_box()
    panel.locator("canvas").click(position={"x": box["width"] - 5, "y": 80})
    page.wait_for_function("() => explorer.store.get('layer') === 2 && explorer.store.get('head') === 1")


def test_the_notebook_has_it_and_takes_a_files_new_content(tmp_path):
    pytest.importorskip("anywidget")
    trace = capture(tiny_model(), byte_tokenizer(), "ab")
    register_view(write(tmp_path))
    widget = trace.show(views=["tokens", "mine"])
    assert "Surprisal, large" in widget._esm
    register_view(write(tmp_path, VIEW.replace("large", "huge")))
    assert "Surprisal, huge" in trace.show(views=["mine"])._esm


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        (VIEW.replace('needs: ["surprisal"],', ""), "view mine: declares no needs"),
        (VIEW.replace("mount: (panel, app) => ({", "mount: (panel, app) => (missing, {"), "missing is not"),
        (VIEW.replace("render(pen", "render)(pen"), "--view: Unexpected token"),
    ],
    ids=["incomplete", "failing", "not JavaScript"],
)
def test_a_view_with_a_fault_is_named_on_the_page_and_the_others_are_shown(
    browser, session, tmp_path, source, complaint
):
    register_view(write(tmp_path, source))
    with serving(session) as address:
        page = browser.new_page()  # not watched: the browser logs the fault
        page.goto(address)
        page.wait_for_function("() => document.documentElement.dataset.ready === 'yes'")
        assert complaint in page.locator("#status").inner_text()
        assert page.locator("#panel-mine").count() == 0
        assert page.locator("#panel-wall").is_visible()
        page.close()


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        (None, "No such file or directory"),
        ("export const other = 1;", "must have `export const view = "),
        (VIEW.replace("NAME", "wall"), "there is already a view called 'wall'"),
        (f'import {{ f }} from "./mine-too.js";\n{VIEW}', "imports views/mine-too.js, which is not there"),
        (f'import * as d3 from "d3";\n{VIEW}', "cannot bundle"),
    ],
    ids=["missing", "no view", "name taken", "imports another file", "imports a library"],
)
@pytest.mark.parametrize(("command", "rest"), [("explore", ()), ("report", ("--out", "report.html"))])
def test_a_bad_file_is_one_line_and_exit_code_2(command, rest, source, complaint, tmp_path, capsys):
    path = tmp_path / "mine.js" if source is None else write(tmp_path, source)
    with pytest.raises(SystemExit) as stop:
        main([command, "--preset", "srm-nano", "--view", str(path), *rest])
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"srmlab {command}: view {path}: ")
    assert complaint in line


def test_two_files_cannot_have_one_name(tmp_path):
    register_view(write(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(UserError, match="already a view called 'mine'"):
        register_view(write(tmp_path / "elsewhere"))


def test_report_takes_several_views(watch, tmp_path):
    views = [str(write(tmp_path, name=name)) for name in ("first", "second")]
    out = tmp_path / "report.html"
    with pytest.raises(SystemExit) as stop:
        main(["report", "--preset", "srm-nano", "--view", views[0], "--view", views[1], "--out", str(out)])
    assert stop.value.code == 0
    page = watch(out.as_uri()).page
    assert page.locator("#panel-first, #panel-second").count() == 2
