"""Many runs under one address: listed, each with its page, opened when asked for."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

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


def test_weights_that_are_no_longer_there_are_a_line(tmp_path):
    with TestClient(Runs({"gone": tmp_path / "gone"}), base_url="http://localhost") as other:
        reply = other.get("/gone/")
    assert reply.status_code == 422
    assert "\n" not in reply.json()["error"]
