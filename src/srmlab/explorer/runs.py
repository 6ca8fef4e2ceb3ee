"""Many runs under one address: a list of them at /, each at /NAME/, opened when it is first asked for.

    srmlab explore runs/           every run below the folder; the page of one has a menu of the others

The last few stay open. A link keeps its prompt and selection from run to run.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from html import escape
from pathlib import Path

from fastapi import FastAPI
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from srmlab.errors import UserError
from srmlab.explorer.guard import LOOPBACK, Guard
from srmlab.explorer.opening import open_run, use_threads
from srmlab.explorer.server import create_app

KEPT = 2  # runs open at a time
PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Runs – SRM explorer</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,"><style>
:root {{ color-scheme: light dark; }} body {{ font: 15px/1.7 system-ui, sans-serif; max-width: 40rem;
margin: 3rem auto; padding: 0 1rem; }}</style></head><body><h1>Runs</h1><ul>{rows}</ul></body></html>"""


def runs_below(folder: str | Path) -> dict[str, Path]:
    """The runs below a folder that is not one itself, by the name they have in an address."""
    folder = Path(folder)
    if not folder.is_dir() or (folder / "run.json").is_file() or (folder / "config.json").is_file():
        return {}
    found = sorted(file.parent for depth in ("*", "*/*") for file in folder.glob(f"{depth}/run.json"))
    return {"--".join(path.relative_to(folder).parts): path for path in found}


class Runs:
    """The application around all of them (ASGI)."""

    def __init__(
        self,
        paths: Mapping[str, Path],
        hosts: tuple[str, ...] = LOOPBACK,
    ) -> None:
        self.paths, self.hosts = paths, hosts
        self._open: OrderedDict[str, FastAPI] = OrderedDict()
        self._opening = asyncio.Lock()
        self._list = Guard(self._answer, hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            name = scope["path"].split("/")[1]
            if name in self.paths and scope["path"] != f"/{name}":
                try:
                    app: ASGIApp = await self._app(name)
                except UserError as error:
                    app = Guard(JSONResponse({"error": str(error)}, 422), self.hosts)
                await app({**scope, "root_path": f"/{name}"}, receive, send)
            else:
                await self._list(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = scope["path"].split("/")[1]
        if name in self.paths:
            await RedirectResponse(f"/{name}/")(scope, receive, send)
        elif name:
            await JSONResponse({"error": "no such run; / lists them"}, 404)(scope, receive, send)
        else:
            rows = "".join(f'<li><a href="{escape(one)}/">{escape(one)}</a></li>' for one in self.paths)
            await HTMLResponse(PAGE.format(rows=rows))(scope, receive, send)

    async def _app(self, name: str) -> FastAPI:
        async with self._opening:  # one at a time: a page asks for many files at once
            if name not in self._open:
                self._open[name] = await asyncio.to_thread(self._opened, name)
                while len(self._open) > KEPT:
                    self._open.popitem(last=False)[1].state.close()
            self._open.move_to_end(name)
            return self._open[name]

    def _opened(self, name: str) -> FastAPI:
        session = open_run(self.paths[name])
        use_threads(session.model)
        return create_app(replace(session, name=name, runs=tuple(self.paths)), hosts=self.hosts)

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                for app in self._open.values():
                    app.state.close()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return
