"""What the explorer's tests share: a tiny model and a nano one, a live server, and a real browser."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from explorer_pages import put, settle
from explorer_subjects import PROMPT, serving, tiny_model, write_lexicon

import srmlab
from srmlab.data import byte_tokenizer
from srmlab.dictionaries import Lexicon
from srmlab.explorer.opening import open_preset
from srmlab.explorer.session import Session

CHROMIUM = Path("/usr/bin/chromium")
# The popups of chromium's own address bar are two more pages that every window loads and draws: a quarter of
# the work of opening ours. This list replaces playwright's, so that the names of that one are here again.
OFF = [
    "WebUIOmniboxPopup",
    "WebUIOmniboxAimPopup",
    "AimEnabled",
    "AvoidCorsURLLoaderRestartOnRedirect",
    "AvoidUnnecessaryBeforeUnloadCheckSync",
    "DestroyProfileOnBrowserClose",
    "HttpsFirstBalancedModeAutoEnable",
    "HttpsUpgrades",
    "LensOverlay",
    "MediaRouter",
    "NetworkTimeServiceQuerying",
    "OptimizationHints",
    "PaintHolding",
    "PreconnectToSearch",
    "ThirdPartyStoragePartitioning",
]
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    f"--disable-features={','.join(OFF)}",
]


@pytest.fixture(scope="module")
def tiny() -> srmlab.SRM:
    return tiny_model()


@pytest.fixture(scope="module")
def session(tiny) -> Session:
    return Session(tiny, byte_tokenizer(), name="tiny")


@pytest.fixture(scope="module")
def address(session) -> Iterator[str]:
    with serving(session) as url:
        yield url


@pytest.fixture(scope="session")
def nano(tmp_path_factory) -> Session:
    plain = open_preset("srm-nano")
    folder = write_lexicon(plain.model, tmp_path_factory.mktemp("nano") / "dictionary")
    lines = f"import srmlab.dictionaries\nlexicon = srmlab.dictionaries.Lexicon.load({str(folder)!r})"
    return replace(
        plain,
        lexicon=Lexicon.load(folder, plain.model),
        python=f"{plain.python}\n{lines}",
        prompts=(PROMPT,),
    )


@pytest.fixture(scope="session")
def nano_address(nano) -> Iterator[str]:
    with serving(nano) as url:
        yield url


@pytest.fixture(scope="session")
def browser():
    if not CHROMIUM.exists():
        if os.environ.get("CI"):
            pytest.fail("chromium is missing: apt-get install chromium")
        pytest.skip("chromium is missing: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        yield chromium
        chromium.close()


@dataclass
class Watched:
    """A page, and what went wrong on it."""

    page: object
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@pytest.fixture
def watch(browser) -> Iterator[Callable[..., Watched]]:
    """Open pages that note console errors and requests; at the end there must be none of the first, and none
    to other hosts.
    """
    opened: list[tuple[Watched, str]] = []
    contexts = []

    def go(url: str, **options) -> Watched:
        context = browser.new_context(
            **{"viewport": {"width": 1280, "height": 900}, "accept_downloads": True, **options}
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        watched = Watched(page)
        page.on(
            "console",
            lambda message: message.type in ("error", "warning") and watched.errors.append(message.text),
        )
        page.on("pageerror", lambda error: watched.errors.append(str(error)))
        page.on("request", lambda request: watched.requests.append(request.url))
        page.goto(url)
        page.wait_for_function("() => document.documentElement.dataset.ready === 'yes'")
        opened.append((watched, "/".join(url.split("/")[:3]) if url.startswith("http") else url))
        return watched

    yield go
    for watched, home in opened:
        assert not watched.errors
        outside = [url for url in watched.requests if not url.startswith((home, "blob:", "data:"))]
        assert not outside
    for context in contexts:
        context.close()


@pytest.fixture(scope="module")
def shared(browser, nano_address):
    """One page for the tests that only look; each starts from a known state."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(30_000)
    errors, requests = [], []
    page.on("console", lambda message: message.type in ("error", "warning") and errors.append(message.text))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(nano_address)
    page.wait_for_function("() => document.documentElement.dataset.ready === 'yes'")
    settle(page)
    start = page.evaluate("() => structuredClone(explorer.store.state)")
    yield page, start
    assert not errors
    assert not [url for url in requests if not url.startswith((nano_address, "blob:", "data:"))]
    context.close()


@pytest.fixture
def page(shared):
    page, start = shared
    put(page, **start)
    return page
