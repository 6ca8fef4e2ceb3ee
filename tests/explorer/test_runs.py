"""Many runs under one address: listed, each with its page, opened when asked for."""

from __future__ import annotations

import pytest
from explorer_pages import click_region, picture, put, state
from explorer_subjects import listening, tiny_model
from starlette.testclient import TestClient

import srmlab
from srmlab.data import byte_tokenizer
from srmlab.explorer import capture
from srmlab.explorer.runs import Runs, runs_below
from srmlab.pretrained import folder


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    home = tmp_path_factory.mktemp("runs")
    (home / "sweep").mkdir()
    for name in ("first", "sweep/second"):
        (home / name).symlink_to(folder(), target_is_directory=True)
    return runs_below(home)


@pytest.fixture(scope="module")
def client(several):
    with TestClient(Runs(several), base_url="http://localhost", follow_redirects=False) as client:
        yield client


def test_the_runs_below_a_folder_are_found_and_a_run_is_none_of_them(several):
    assert list(several) == ["first", "sweep--second"]
    assert runs_below(folder()) == {}


def test_they_are_listed_and_each_has_its_page_and_knows_the_others(client):
    assert 'href="sweep--second/"' in client.get("/").text
    assert client.get("/first").headers["location"] == "/first/"
    assert "SRM explorer" in client.get("/first/").text
    assert client.get("/first/style.css").status_code == 200
    model = client.get("/sweep--second/api/model").json()
    assert (model["name"], model["runs"]) == ("sweep--second", ["first", "sweep--second"])


def test_no_other_name_is_opened_and_no_other_host_answered(client):
    assert client.get("/..%2fetc/api/model").status_code == 404
    assert client.get("/third/").json() == {"error": "no such run; / lists them"}
    assert client.get("/", headers={"host": "evil.example"}).status_code == 421
    assert client.get("/first/api/model", headers={"host": "evil.example"}).status_code == 421


def test_two_runs_of_unlike_shapes_are_compared_by_token_and_by_share_of_depth(tmp_path, watch):
    deeper = srmlab.build(srmlab.preset("transformer-nano", vocab_size=257))
    for name, model in {"small": tiny_model(), "deep": deeper}.items():
        srmlab.save(model, tmp_path / name, byte_tokenizer())
    with listening(Runs({name: tmp_path / name for name in ("small", "deep")})) as address:
        page = watch(f"{address}/small/#against=run:deep&measure=lens").page
        picture(page, "compare")
        panels = page.evaluate("() => explorer.panel('compare').pen.regions.map((one) => one.grid.rows)")
        assert panels == [3, deeper.depth, 3]  # A, B, and their difference by the layers of A
        click_region(page, "compare", deeper.depth - 1, 2, which=1)  # the last layer of B
        assert (state(page)["layer"], state(page)["token"]) == (2, 2)
        put(page, measure="surprisal")
        rows = page.evaluate("() => explorer.panel('compare').drawn.table().rows")
        theirs = capture(
            deeper.eval(), byte_tokenizer(), page.evaluate("() => explorer.base.manifest.prompt")
        )
        assert rows[3][3] == pytest.approx(float(theirs["surprisal"][3]), abs=1e-2)
        put(page, measure="routing")
        assert "B has no routing" in page.evaluate("() => explorer.panel('compare').svg()")


def test_the_menu_of_runs_takes_the_prompt_along_but_no_ids_or_checkpoint_of_this_run(tmp_path, watch):
    for name in ("one", "other"):
        srmlab.save(tiny_model(), tmp_path / name, byte_tokenizer())
    with listening(Runs({name: tmp_path / name for name in ("one", "other")})) as address:
        page = watch(f"{address}/one/#prompt=AB").page
        put(page, ids=[65, 200, 66], checkpoint="step-1", stream=2)
        page.locator("#runs").select_option("other")
        page.wait_for_url("**/other/**")
        page.wait_for_function("() => document.documentElement.dataset.ready === 'yes'")
        assert state(page)["checkpoint"] == ""
        assert page.evaluate("() => explorer.tokens()") == [65, 66]
        assert state(page)["stream"] == 2


def test_weights_that_are_no_longer_there_are_a_line(tmp_path):
    with TestClient(Runs({"gone": tmp_path / "gone"}), base_url="http://localhost") as other:
        reply = other.get("/gone/")
    assert reply.status_code == 422
    assert "\n" not in reply.json()["error"]
