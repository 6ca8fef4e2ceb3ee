"""`srmlab explore`: the explorer in a browser."""

from __future__ import annotations

import socket
import threading
import webbrowser
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from srmlab.cli.shared import OfModel
from srmlab.errors import UserError

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from srmlab.explorer.session import Session


@dataclass(kw_only=True)
class Presents(OfModel):
    """A command that presents a model, trained or not."""

    preset: str | None = None
    """Use an untrained preset instead of a run."""
    dictionary: Path | None = None
    """Output folder of `srmlab dictionary`; by default the run's newest."""
    view: Annotated[tuple[Path, ...], tyro.conf.UseAppendAction] = ()
    """A JavaScript file with your own view; repeat for several."""

    def presented(self) -> Path | None:
        """The run to look at, or None for a preset; the views are registered."""
        from srmlab.explorer.frontend import register_view

        if (self.path is not None) + (self.preset is not None) + self.pretrained != 1:
            raise UserError("give one of: a run such as runs/nano, --pretrained, or --preset NAME")
        for path in self.view:
            register_view(path)
        return None if self.preset is not None else self.subject()

    def open(self, run: Path | None, segments: int | None = None) -> Session:
        """The session to look at, with a dictionary of its streams if there is one."""
        from srmlab.explorer.opening import open_preset, open_run, use_threads

        if run is None and self.dictionary is not None:
            raise UserError("--dictionary needs a trained run: a preset has no dictionary")
        if run is None and segments is not None:
            raise UserError("--segments is for puzzle runs: leave it out")
        session = open_run(run, self.dictionary, segments) if run else open_preset(self.preset or "")
        use_threads(session.model)
        return session


@dataclass(kw_only=True)
class Command(Presents):
    """Explore a model in the browser. Everything runs on this machine, with no requests to other hosts.

    Example:
        srmlab explore --pretrained
        srmlab explore runs/nano
        srmlab explore --preset srm-nano
        srmlab explore runs                      # every run in the folder; choose one on the page
        srmlab explore runs/nano --view my_view.js
        srmlab explore runs/sudoku
    """

    path: Annotated[
        Path | None,
        tyro.conf.Positional,
        tyro.conf.arg(metavar="RUN", help_behavior_hint="(or --pretrained, --preset)"),
    ] = None
    """A run (its last good checkpoint), a checkpoint or an export; or a folder of runs."""
    segments: int | None = None
    """Puzzles: how many segments to show; by default as many as in training."""
    port: int = 8765
    """0 picks any free port."""
    host: str = "127.0.0.1"
    """Address to listen on. Anything but loopback gives others access: there is no password."""
    browser: bool = True
    """Open the page in a browser."""

    def run(self) -> None:
        from srmlab.explorer.runs import Runs, runs_below
        from srmlab.explorer.server import create_app

        run = self.presented()
        if not 0 <= self.port <= 65535:
            raise UserError(f"--port {self.port}: must be between 0 and 65535")
        listener = listen(self.host, self.port)
        try:
            several = runs_below(run) if run is not None else {}
            for option in ("dictionary", "segments") if several else ():
                if getattr(self, option) is not None:
                    raise UserError(f"--{option} needs a single run, and {run} holds several: give one")
            if several:
                serve(f"{len(several)} runs", listener, self.host, self.browser, partial(Runs, several))
            else:
                session = self.open(run, self.segments)
                serve(session.name, listener, self.host, self.browser, partial(create_app, session))
        finally:
            listener.close()


def listen(host: str, port: int) -> socket.socket:
    """The listening socket, or one line about why not."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise UserError(f"--host {host}: not an address of this machine; leave it out for loopback") from None
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise UserError(
            f"cannot listen on {host}:{port} ({error.strerror}): try --port {port + 1 if port < 65535 else 0}"
        ) from None
    return listener


def serve(name: str, listener: socket.socket, host: str, browser: bool, make: Callable[..., ASGIApp]) -> None:
    """Answer until SIGINT or SIGTERM; then finish what is running and return. `make` takes the host names."""
    import uvicorn

    from srmlab.explorer.guard import LOOPBACK

    port = listener.getsockname()[1]
    shown = "localhost" if host in LOOPBACK else host
    url = f"http://{f'[{shown}]' if ':' in shown else shown}:{port}/"
    app = make(hosts=tuple({*LOOPBACK, host, *names_of(host)}))
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, timeout_graceful_shutdown=5, server_header=False
    )
    print(f"{name}: {url}   (Ctrl-C to stop)", flush=True)
    if host not in LOOPBACK:
        print("listening beyond this machine: anyone who reaches this address can use the model", flush=True)
    if browser:
        threading.Timer(0.8, webbrowser.open, (url,)).start()
    uvicorn.Server(config).run(sockets=[listener])


def names_of(host: str) -> tuple[str, ...]:
    """The names a server on all addresses is reached by."""
    if host not in ("0.0.0.0", "::"):
        return ()
    name = socket.gethostname()
    try:
        return (name, *socket.gethostbyname_ex(name)[2])
    except OSError:
        return (name,)
