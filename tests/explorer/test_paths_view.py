"""The view of paths: it draws the numbers of srmlab.analysis.edge_attribution, and a click cuts an edge."""

from __future__ import annotations

import csv
import io

import pytest
import torch
from explorer_pages import picture, put, settle, state

from srmlab.analysis import edge_attribution


def table(page) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(page.evaluate("() => explorer.panel('paths').csv()"))))


def test_it_draws_what_the_analysis_measures_and_the_slider_prunes(page, nano):
    many = picture(page, "paths")
    found = table(page)
    tokens = page.evaluate("() => explorer.tokens()")
    expected = edge_attribution(nano.model, torch.tensor(tokens), state(page)["token"])
    first = [int(found[0][name]) for name in ("layer", "head", "target", "source")]
    largest = expected.edges.abs().max().item()
    assert abs(float(found[0]["logits"])) == pytest.approx(largest, rel=1e-3)
    assert float(found[0]["logits"]) == pytest.approx(expected.edges[tuple(first)].item(), rel=1e-3)
    put(page, edges=3)
    assert picture(page, "paths") != many
    assert page.locator("#panel-paths .chips button").count() == 3
    put(page, reach="earlier")
    assert float(table(page)[0]["logits"]) == pytest.approx(
        max(expected.earlier.flatten().tolist(), key=abs), rel=1e-3
    )


def test_a_click_on_an_edge_cuts_it_at_the_token_and_the_paths_follow(page):
    picture(page, "paths")
    chip = page.locator("#panel-paths .chips button").first
    layer, head, target, source = (int(table(page)[0][n]) for n in ("layer", "head", "target", "source"))
    chip.click()
    settle(page)
    assert state(page)["cuts"] == [[layer, head, target, source, state(page)["token"]]]
    put(page, version="intervened")
    picture(page, "paths")
    edge = {"layer": str(layer), "head": str(head), "target": str(target), "source": str(source)}
    assert not [row for row in table(page) if {**row, **edge} == row]  # what is cut carries nothing
    where = page.evaluate(
        """() => {
          const panel = explorer.panel('paths');
          for (let x = 0; x < panel.size[0]; x += 5)
            for (let y = 20; y < panel.size[1] - 20; y += 5)
              if (panel.drawn.tip({ row: y, column: x })) return [x, y];
        }"""
    )
    page.locator("#panel-paths canvas").click(position={"x": where[0], "y": where[1]})
    assert len(state(page)["cuts"]) == 2
