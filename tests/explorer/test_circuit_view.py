"""An attribution graph as a view of the explorer: drawn, hovered, pinned, grouped and cut."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from explorer_pages import COLORS, CROWDED, put, settle
from explorer_subjects import PROMPT, serving, tiny_model

import srmlab.dictionaries
from srmlab.data import byte_tokenizer
from srmlab.dictionaries import Target, attribute
from srmlab.dictionaries.circuit_checks import check_circuit, prune
from srmlab.explorer import frontend, register_view
from srmlab.explorer.circuit_view import write_circuit_view
from srmlab.interop.neuronpedia import document


@pytest.fixture
def view(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(frontend, "_own", {})
    model, prompt = tiny_model(), byte_tokenizer().encode(PROMPT)[:8]
    windows = torch.tensor([prompt])
    learned = srmlab.dictionaries.learn(model, lambda _: windows, of="mlp", steps=3, features=16, k=2)
    graph = attribute(model, learned, prompt, Target(token=101), nodes=48)
    kept = prune(graph)
    found = document(graph, kept, lambda t: "</script>" if t == prompt[0] else chr(t), probability=0.5)
    checked = check_circuit(model, learned, graph, kept, count=4, draws=1)
    again = document(graph, kept, chr, actual=checked.each)
    assert any("actual" in node["srmlab"] for node in again["nodes"])
    found["nodes"] = again["nodes"]
    return write_circuit_view(found, tmp_path / "circuit.js")


def test_the_graph_is_drawn_and_its_nodes_are_pinned_grouped_and_cut(watch, session, view):
    assert "</script>" not in view.read_text(encoding="utf-8")
    assert register_view(view) == "circuit"
    with serving(session) as address:
        page = watch(f"{address}/#prompt=The+streams").page
        settle(page)
        page.evaluate("() => document.querySelector('#panel-circuit').scrollIntoView()")
        settle(page)
        assert page.evaluate(COLORS, "circuit") > 3
        svg = page.evaluate("() => explorer.panel('circuit').svg()")
        assert ">S0</text>" in svg
        assert ">0A</text>" in svg
        tip = page.evaluate("() => explorer.panel('circuit').drawn.tip({ node: 0 })")
        assert "influence" in tip
        chips = page.locator("#panel-circuit .chips button")
        click = "([node, keys]) => explorer.panel('circuit').drawn.click({ node }, keys)"
        page.evaluate(click, [0, {}])
        assert "pinned" in chips.first.inner_text()
        page.evaluate(click, [1, {"shiftKey": True}])
        page.evaluate(click, [2, {"shiftKey": True}])
        assert "group 1: 2 features" in chips.nth(1).inner_text()
        page.evaluate(click, [1, {"altKey": True}])
        assert "1 cut" in chips.nth(2).inner_text()
        assert "predicted" in chips.nth(2).inner_text()
        assert "shared paths" not in chips.nth(2).inner_text()
        page.evaluate(click, [2, {"altKey": True}])
        assert "summed to first order, shared paths counted twice" in chips.nth(2).inner_text()
        chips.nth(2).click()
        assert chips.count() == 2
        page.locator(".bar [data-value=change]").click()  # a finger has no alt
        page.evaluate(click, [1, {}])
        assert "1 cut" in chips.nth(2).inner_text()


def test_its_words_fit_and_it_is_of_no_version(watch, session, view):
    register_view(view)
    with serving(session) as address:
        page = watch(f"{address}/#prompt=The+streams").page
        for width in (390, 1440):
            page.set_viewport_size({"width": width, "height": 900})
            page.locator("#panel-circuit").scroll_into_view_if_needed()
            settle(page)
            assert page.evaluate(CROWDED, "circuit") == []
        panel = page.locator("#panel-circuit")
        assert panel.locator(".note").inner_text().startswith("“e” (0 %) after “")
        assert ">logit of</text>" in page.evaluate("() => explorer.panel('circuit').svg()")
        put(page, ablated=[0], first=0, last=2, version="difference")
        shown = """(name) => {
          const version = explorer.panel(name).element.querySelector(".version");
          return getComputedStyle(version, "::before").content;
        }"""
        assert "difference" in page.evaluate(shown, "wall")
        assert page.evaluate(shown, "circuit") == "none"  # the graph is the same
