"""A trace in a notebook: the widget with anywidget, a drawing without, and the tutorial runs."""

from __future__ import annotations

import importlib.util
import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
import torch
from explorer_subjects import tiny_model

import srmlab
from srmlab.analysis import state_means
from srmlab.data import byte_tokenizer
from srmlab.errors import UserError
from srmlab.explorer import Trace, capture
from srmlab.explorer.session import Session
from srmlab.explorer.widget import Drawing, answered, python_of

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def trace() -> Trace:
    return capture(tiny_model(), byte_tokenizer(), "a <b> & c")


def test_without_anywidget_show_gives_a_drawing(trace, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "anywidget" else found(name, *a)
    )
    html = trace.show()._repr_html_()
    assert "&lt;" in html
    assert "<b>" not in html
    wall = ElementTree.fromstring(html[html.index("<svg") : html.index("</svg>") + 6])
    assert len(wall.findall("{http://www.w3.org/2000/svg}rect")) == 3 * 2 * 9


def test_static_asks_for_the_drawing_and_an_unknown_view_is_refused(trace):
    assert isinstance(trace.show(static=True), Drawing)
    with pytest.raises(UserError, match="no view is called 'walls'"):
        trace.show(views=["walls"])


def test_with_anywidget_show_gives_a_widget_whose_views_a_browser_draws(trace, browser, tmp_path):
    widget = trace.show(views=["tokens", "wall", "stepper"])
    state = {name: getattr(widget, name) for name in ("trace", "views", "styles", "python")}
    data = json.dumps(state).replace("<", "\\u003c")
    module = widget._esm.replace("export default", "const widget =")
    read = "const state = JSON.parse(document.getElementById('state').textContent);"
    call = "widget.render({ model: { get: (name) => state[name] }, el: document.getElementById('cell') });"
    (tmp_path / "widget.html").write_text(
        f'<!doctype html><meta charset="utf-8"><div id="cell"></div>'
        f'<script type="application/json" id="state">{data}</script>'
        f'<script type="module">{module}\n{read}\n{call}</script>'
    )
    page = browser.new_page(viewport={"width": 1000, "height": 900})
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto((tmp_path / "widget.html").as_uri())
    page.wait_for_function("() => document.getElementById('cell').dataset.ready === 'yes'")
    page.wait_for_function(
        """() => {
          const panels = [...document.getElementById("cell").shadowRoot.querySelectorAll(".panel")];
          return panels.every((panel) => panel.dataset.drawn > 0);
        }"""
    )
    assert page.locator(".panel").count() == 3
    assert page.locator(".token").count() == 9
    assert page.locator(".body").first.evaluate("(body) => getComputedStyle(body).paddingLeft") == "10px"
    assert errors == []
    page.close()


def test_the_widgets_python_makes_the_model_that_was_traced(trace):
    names: dict = {"srmlab": srmlab}
    exec(python_of(trace), names)
    again = capture(names["model"], names["tokenizer"], trace.prompt)
    np.testing.assert_array_equal(again["ablation_kl"], trace["ablation_kl"])


def test_the_tutorial_notebook_runs_from_start_to_end():
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(ROOT / "notebooks" / "explorer.ipynb", as_version=4)
    NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(ROOT)}}
    ).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    assert any("application/vnd.jupyter.widget-view+json" in output.get("data", {}) for output in outputs)


def test_single_views_and_a_board_that_the_kernel_answers(trace, browser, tmp_path):
    assert trace.routing().views == ["wall", "routing"]
    assert trace.lens().views == ["tokens", "lens"]
    model = tiny_model()
    widget = trace.board(model, byte_tokenizer())
    names = ("trace", "views", "styles", "python", "info")
    data = json.dumps({name: getattr(widget, name) for name in names}).replace("<", "\\u003c")
    module = widget._esm.replace("export default", "const widget =")
    script = """
      const state = JSON.parse(document.getElementById("state").textContent);
      const model = {
        get: (name) => state[name],
        on: (_, listener) => { model.hear = listener; },
        send: async (question) => model.hear(JSON.parse(await kernel(JSON.stringify(question))), []),
      };
      widget.render({ model, el: document.getElementById("cell") });"""
    (tmp_path / "board.html").write_text(
        f'<!doctype html><meta charset="utf-8"><div id="cell"></div>'
        f'<script type="application/json" id="state">{data}</script>'
        f'<script type="module">{module}\n{script}</script>'
    )
    page = browser.new_page(viewport={"width": 1000, "height": 900})
    session = Session(model, byte_tokenizer())
    page.expose_function("kernel", lambda text: json.dumps(answered(session, json.loads(text))[0]))
    page.goto((tmp_path / "board.html").as_uri())
    page.wait_for_function("() => document.getElementById('cell').dataset.ready === 'yes'")
    page.locator('[data-ablate="3"]').click()
    page.locator(".bar .effect", has_text="KL").wait_for()
    assert page.locator(".bar .chips button").inner_text() == "✕ S1 mean after L2"
    page.close()


def test_the_kernel_is_about_the_model_and_the_means_of_the_trace(trace):
    model, tokenizer = tiny_model(), byte_tokenizer()
    with pytest.raises(UserError, match="another config"):
        trace.board(tiny_model(streams=4), tokenizer)
    reference = state_means(model, [torch.arange(48).view(2, 24)])
    with pytest.raises(UserError, match="captured without a reference"):
        trace.board(model, tokenizer, reference=reference)
    other = capture(model, tokenizer, trace.prompt, reference=reference)
    with pytest.raises(UserError, match="captured with a reference"):
        other.board(model, tokenizer)
    assert other.board(model, tokenizer, reference=reference).info["name"] == "SRM"


def test_the_kernel_answers_in_the_words_of_the_web_interface(trace):
    session = Session(tiny_model(), byte_tokenizer())
    tokens = trace["tokens"].tolist()
    content, buffers = answered(session, {"id": 1, "path": "/api/trace", "body": {"tokens": tokens}})
    assert content == {"id": 1}
    assert (Trace.from_bytes(buffers[0])["tokens"] == trace["tokens"]).all()
    content, _ = answered(session, {"id": 2, "path": "/api/paths", "body": {"tokens": tokens, "token": 3}})
    assert len(content["json"]["direct"]) == 3
    content, buffers = answered(
        session, {"id": 2, "path": "/api/attention", "body": {"tokens": tokens, "call": 0}}
    )
    assert content == {"id": 2}
    assert len(buffers) == 1
    content, _ = answered(session, {"id": 3, "path": "/api/sweep", "body": {}})
    assert "srmlab explore" in content["error"]
    content, _ = answered(session, {"id": 4, "path": "/api/trace", "body": {"tokens": [999]}})
    assert "not in 0…256" in content["error"]
