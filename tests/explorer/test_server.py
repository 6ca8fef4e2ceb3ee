"""The server answers, refuses in one line, keeps tabs apart, and opens nothing it was not told to."""

from __future__ import annotations

import asyncio
import http.client
import threading
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from urllib.parse import urlsplit

import httpx
import pytest
import torch
from explorer_subjects import serving, tiny_model

from srmlab.data import byte_tokenizer
from srmlab.explorer import Trace, background
from srmlab.explorer.frontend import static_files
from srmlab.explorer.guard import MAX_BODY
from srmlab.explorer.session import Session
from srmlab.explorer.worker import Busy, Gone, Worker

client: httpx.Client  # one for all: making one takes longer than most of the tests


@pytest.fixture(scope="module", autouse=True)
def _open_the_client():
    """Opened anew if a worker comes back to this file after others."""
    global client
    with httpx.Client(timeout=30, trust_env=False) as client:
        yield


def post(address: str, path: str, body, **options) -> httpx.Response:
    return client.post(f"{address}{path}", json=body, **options)


def ablate(*streams: int, last: int = 2) -> dict:
    return {"ablations": [{"stream": s, "mode": "zero", "first": 0, "last": last} for s in streams]}


# What it answers


def test_the_model_tells_its_shape(address):
    info = client.get(f"{address}/api/model").json()
    assert (info["name"], info["streams"], info["layers"], info["heads"], info["max_tokens"]) == (
        "tiny",
        3,
        3,
        2,
        64,
    )
    assert info["order"] == [["A", "B", "C"]] * 3
    assert info["shape"] == ["3 streams", "3 layers × ABC", "2 heads"]


def test_one_layer_and_one_head_are_no_layers_and_heads():
    model = tiny_model(depth=1, gradient_depth=1, stream_heads=1)
    assert Session(model, byte_tokenizer()).shape() == ["3 streams", "1 layer × ABC", "1 head"]


def test_a_trace_over_the_wire_is_the_trace(address, session):
    answer = post(address, "/api/trace", {"prompt": "héllo"})
    assert answer.headers["content-type"] == "application/octet-stream"
    trace = Trace.from_bytes(answer.content)
    assert trace.prompt == "héllo"
    assert (trace["routing"] == session.trace(session.encode("héllo"))["routing"]).all()


def test_text_and_its_tokens_give_the_same_answer(address):
    by_text = post(address, "/api/trace", {"prompt": "ab"}).content
    assert by_text == post(address, "/api/trace", {"tokens": [97, 98]}).content


def test_an_intervention_tells_before_and_after_at_every_token(address):
    found = post(
        address, "/api/intervene", {"prompt": "abc", "intervention": ablate(0, 1), "each": True}
    ).json()
    assert len(found["kl"]) == len(found["top_before"]) == len(found["top_after"]) == 3
    assert min(found["kl"]) > 0
    assert [one["stream"] for one in found["each"]] == [0, 1]
    assert all(str(bar["id"]) in found["vocabulary"] for row in found["top_after"] for bar in row)
    before = [bar["before"] for bar in found["top_before"][0]]
    after = [bar["after"] for bar in found["top_after"][0]]
    assert before == sorted(before, reverse=True)
    assert after == sorted(after, reverse=True)


def test_a_traced_intervention_is_in_the_trace(address):
    plain = Trace.from_bytes(post(address, "/api/trace", {"prompt": "abc"}).content)
    cut = {"cuts": [{"layer": 1, "head": 0, "target": 2, "source": 0, "token": None}]}
    changed = Trace.from_bytes(post(address, "/api/trace", {"prompt": "abc", "intervention": cut}).content)
    assert plain["routing"][1, :, 0, 2, 0].all()
    assert not changed["routing"][1, :, 0, 2, 0].any()
    assert changed.manifest["note"]["intervention"]["cuts"][0]["layer"] == 1


def test_generation_goes_on_from_the_prompt_and_stops_at_the_end_of_the_context(address):
    made = post(address, "/api/generate", {"prompt": "ab", "count": 4, "temperature": 0}).json()
    assert made["tokens"][:2] == [97, 98]
    assert len(made["tokens"]) == len(made["strings"]) == 6
    assert len(post(address, "/api/generate", {"tokens": [1] * 60, "count": 64}).json()["tokens"]) == 64


def test_a_sweep_is_a_job_that_ends_with_every_stream_at_every_layer(address):
    job = post(address, "/api/sweep", {"prompt": "abc"}).json()
    assert job["total"] == 9
    while job["status"] == "running":
        time.sleep(0.02)
        job = client.get(f"{address}/api/jobs/{job['id']}").json()
    assert job["status"] == "done"
    assert [(piece["layer"], piece["stream"]) for piece in job["pieces"]] == [
        (i // 3, i % 3) for i in range(9)
    ]


def test_checkpoints_are_asked_for_by_name(session):
    from explorer_subjects import tiny_model

    session.checkpoints["step-1"] = lambda: tiny_model(init_seed=1)
    with serving(session) as address:
        last = Trace.from_bytes(post(address, "/api/trace", {"prompt": "ab"}).content)
        first = Trace.from_bytes(
            post(address, "/api/trace", {"prompt": "ab", "checkpoint": "step-1"}).content
        )
        assert (last["routing"] != first["routing"]).any()
        refused = post(address, "/api/trace", {"prompt": "ab", "checkpoint": "../../etc"})
        assert (refused.status_code, list(refused.json())) == (422, ["error"])


def test_the_page_and_all_its_files_are_served_with_a_strict_policy(address):
    assert b"SRM explorer" in client.get(address).content
    for path, content in static_files().items():
        answer = client.get(f"{address}/{path}")
        assert (answer.status_code, answer.content) == (200, content)
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "access-control-allow-origin" not in answer.headers


def test_no_file_of_the_page_names_another_host():
    for path, content in static_files().items():
        if path.endswith((".js", ".css", ".html")) and not path.startswith("vendor/"):
            text = content.decode().replace("http://www.w3.org/2000/svg", "")
            assert "http://" not in text, path
            assert "https://" not in text, path


# What it refuses


@pytest.mark.parametrize(
    ("path", "body", "status", "line"),
    [
        ("/api/trace", {}, 422, "give prompt or tokens"),
        ("/api/trace", {"prompt": "a", "tokens": [1]}, 422, "give prompt or tokens"),
        ("/api/trace", {"prompt": ""}, 422, "empty"),
        ("/api/trace", {"prompt": "x" * 65}, 422, "65 tokens, at most 64"),
        ("/api/trace", {"prompt": "x" * 20_001}, 422, "prompt"),
        ("/api/trace", {"tokens": [257]}, 422, "not in 0…256"),
        ("/api/trace", {"tokens": [-1]}, 422, "tokens.0"),
        ("/api/trace", {"prompt": "a", "path": "/etc/passwd"}, 422, "path"),
        ("/api/intervene", {"prompt": "a", "intervention": ablate(3)}, 422, "stream 3: must be 0 to 2"),
        ("/api/intervene", {"prompt": "a", "intervention": ablate(-1)}, 422, "stream -1: must be 0 to 2"),
        ("/api/intervene", {"prompt": "a", "intervention": ablate(*[0] * 257)}, 422, "at most 256"),
        ("/api/intervene", {"prompt": "a", "intervention": {"paths": []}}, 422, "paths"),
        (
            "/api/intervene",
            {"prompt": "a", "intervention": {"holds": [{"stream": 0, "feature": 0, "value": 1e300}]}},
            422,
            "not within",
        ),
        ("/api/generate", {"prompt": "a", "temperature": -1}, 422, "temperature"),
        ("/api/sweep", {"prompt": "a", "checkpoint": "x"}, 422, "no such checkpoint"),
    ],
)
def test_a_bad_request_is_one_line_of_json(address, path, body, status, line):
    answer = post(address, path, body)
    assert answer.status_code == status
    assert list(answer.json()) == ["error"]
    assert line in answer.json()["error"]
    assert "\n" not in answer.json()["error"]


def test_broken_json_unknown_pages_and_wrong_verbs_are_json_too(address):
    broken = client.post(f"{address}/api/trace", content=b"{", headers={"content-type": "application/json"})
    assert (broken.status_code, broken.json()) == (400, {"error": "the request is not valid JSON"})
    for path in (
        "/api/nothing",
        "/api/jobs/none",
        "/api/results/none",
        "/../../etc/passwd",
        "/%2e%2e/server.py",
        "/static/server.py",
    ):
        answer = client.get(address + path)
        assert (answer.status_code, list(answer.json())) == (404, ["error"]), path
    assert client.get(f"{address}/api/trace").status_code == 405


def test_a_foreign_host_name_is_refused(address):
    for host in ("evil.example", "evil.example:80", "localhost.evil.example", ""):
        answer = client.get(f"{address}/api/model", headers={"host": host})
        assert (answer.status_code, list(answer.json())) == (421, ["error"]), host
    assert client.get(f"{address}/api/model", headers={"host": "LOCALHOST:1234"}).status_code == 200
    assert client.get(f"{address}/api/model", headers={"host": "[::1]:1234"}).status_code == 200


def test_a_page_of_another_site_cannot_ask(address):
    for origin in ("http://evil.example", "null"):
        assert post(address, "/api/trace", {"prompt": "a"}, headers={"origin": origin}).status_code == 403
    assert post(address, "/api/trace", {"prompt": "a"}, headers={"origin": address}).status_code == 200
    simple = client.post(
        f"{address}/api/trace", content=b'{"prompt":"a"}', headers={"content-type": "text/plain"}
    )
    assert simple.status_code in (415, 422)


def test_a_body_too_large_is_refused_whatever_its_length_claims(address):
    announced = client.post(
        f"{address}/api/trace", content=b"x" * (MAX_BODY + 1), headers={"content-type": "application/json"}
    )
    assert announced.status_code == 413
    chunks = (b"x" * 65536 for _ in range(MAX_BODY // 65536 + 2))
    unannounced = client.post(
        f"{address}/api/trace", content=chunks, headers={"content-type": "application/json"}
    )
    assert (unannounced.status_code, list(unannounced.json())) == (413, ["error"])


def test_past_the_bound_of_the_queue_the_answer_is_429(session, monkeypatch):
    release = threading.Event()
    slow = session.generate
    monkeypatch.setattr(session, "generate", lambda *a: (release.wait(20), slow(*a))[1])
    with serving(session, queue=2) as address, ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(post, address, "/api/generate", {"prompt": "a"}) for _ in range(3)]
        (refused,) = wait(asked, timeout=20, return_when=FIRST_COMPLETED).done
        release.set()
        assert refused.result().headers["retry-after"] == "1"
        assert sorted(future.result().status_code for future in asked) == [200, 200, 429]
        assert post(address, "/api/trace", {"prompt": "a"}).status_code == 200


# Many at a time


def test_the_interventions_of_many_tabs_do_not_mix(address, session):
    cases = [[], [0], [1], [2], [0, 1], [0, 2]]
    request = lambda streams: {"prompt": "abcdef", "intervention": ablate(*streams)}  # noqa: E731
    expected = [post(address, "/api/intervene", request(streams)).json() for streams in cases]
    with ThreadPoolExecutor(12) as pool:
        answers = list(
            pool.map(
                lambda i: (i % 6, post(address, "/api/intervene", request(cases[i % 6])).json()), range(60)
            )
        )
    assert all(answer == expected[i] for i, answer in answers)
    assert not session.model.listening


def test_requests_leave_the_weights_as_they_are(address, session):
    before = {name: value.clone() for name, value in session.model.state_dict().items()}
    for path, body in [
        ("/api/trace", {"prompt": "a"}),
        ("/api/intervene", {"prompt": "a", "intervention": ablate(1)}),
        ("/api/generate", {"prompt": "a", "count": 3}),
        ("/api/intervene", {"prompt": "a", "intervention": ablate(7)}),
    ]:
        post(address, path, body)
    assert all(torch.equal(before[name], value) for name, value in session.model.state_dict().items())
    assert not session.model.training


def test_a_withdrawn_question_gives_up_its_turn(session, monkeypatch):
    begun, release, asked = threading.Event(), threading.Event(), []
    trace = session.trace
    monkeypatch.setattr(
        session, "trace", lambda tokens, *a: (asked.append(tuple(tokens)), trace(tokens, *a))[1]
    )
    monkeypatch.setattr(
        session, "generate", lambda tokens, *_: (begun.set(), release.wait(20), list(tokens))[2]
    )
    with serving(session) as address, ThreadPoolExecutor(1) as pool:
        first = pool.submit(post, address, "/api/generate", {"prompt": "a"})
        begun.wait(10)
        stale = http.client.HTTPConnection(urlsplit(address).netloc)
        stale.request("POST", "/api/trace", '{"tokens":[7]}', {"content-type": "application/json"})
        time.sleep(0.3)
        stale.close()
        time.sleep(0.5)
        release.set()
        assert first.result().status_code == 200
        assert post(address, "/api/trace", {"tokens": [8]}).status_code == 200
    assert asked == [(8,)]


# The worker and its jobs, without a server


def test_the_worker_counts_who_waits_and_forgets_who_left():
    worker = Worker(bound=2)
    release = threading.Event()
    waiting = [worker.submit(release.wait) for _ in range(2)]
    with pytest.raises(Busy):
        worker.submit(release.wait)
    release.set()
    assert all(future.result() for future in waiting)
    assert worker.submit(lambda: 5).result() == 5
    worker.close()


def test_a_gone_asker_frees_its_place():
    worker = Worker()
    release = threading.Event()
    worker.submit(release.wait)

    async def gone() -> bool:
        return True

    def ask() -> int:
        return asyncio.run(worker.run(lambda: 1, gone))

    with (
        pytest.raises(Gone),
        ThreadPoolExecutor(1) as elsewhere,
    ):  # here the browser may run its loop
        elsewhere.submit(ask).result()
    release.set()
    worker.close()


def test_a_job_can_be_stopped_and_tells_of_its_failure():
    worker = Worker()
    board = background.Jobs(worker)
    steady = board.start(10**6, iter(range(10**6)))
    assert board.stop(steady.id) is steady
    broken = board.start(2, (1 // (1 - i) for i in range(2)))
    for job in (steady, broken):
        deadline = time.monotonic() + 10
        while job.status == "running" and time.monotonic() < deadline:
            time.sleep(0.01)
    assert steady.status == "stopped"
    assert (broken.status, broken.done, broken.error) == ("failed", 1, "integer division or modulo by zero")
    board.close()
    worker.close()


def test_too_many_jobs_are_refused_and_old_ones_forgotten():
    worker = Worker()
    board = background.Jobs(worker)
    release = threading.Event()
    held = [board.start(1, iter(release.wait, None)) for _ in range(background.MAX_RUNNING)]
    with pytest.raises(Busy):
        board.start(1, iter([1]))
    for job in held:
        board.stop(job.id)
    release.set()
    deadline = time.monotonic() + 10
    while any(job.status == "running" for job in held) and time.monotonic() < deadline:
        time.sleep(0.01)
    for _ in range(background.MAX_KEPT + 4):
        job = board.start(1, iter([1]))
        while job.status == "running":
            time.sleep(0.001)
    assert board.get(held[0].id) is None
    assert board.get(job.id) is job
    board.close()
    worker.close()
