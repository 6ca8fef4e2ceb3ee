"""What every request passes first: whom it is addressed to, where it comes from, how large it is.

A server on loopback is still reachable from any page the browser has open. A foreign page that makes its own
name resolve to 127.0.0.1 (DNS rebinding) is stopped by the Host check, one that posts to us directly by the
Origin check. No CORS headers are ever sent. The size limit counts the bytes that arrive, whatever
Content-Length claims.
"""

from __future__ import annotations

import contextlib
import json
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY = 256 * 1024  # bytes
LOOPBACK = ("localhost", "127.0.0.1", "::1")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    b"content-security-policy": POLICY.encode(),
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-resource-policy": b"same-origin",
    b"cache-control": b"no-store",
}


class TooLarge(Exception):
    pass


class Guard:
    """ASGI middleware; plain, so that a client's hanging up is still seen by the endpoint."""

    def __init__(self, app: ASGIApp, hosts: tuple[str, ...] = LOOPBACK) -> None:
        self.app = app
        self.hosts = {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self.refusal(headers)
        if refusal is not None:
            await answer(send, *refusal)
            return
        arrived, started, overflow = 0, False, False

        async def counted() -> Message:
            nonlocal arrived, overflow
            message = await receive()
            arrived += len(message.get("body", b""))
            if arrived > MAX_BODY:
                overflow = True
                raise TooLarge
            return message

        async def with_headers(message: Message) -> None:
            nonlocal started
            if overflow and not started:
                return  # whatever the application makes of it, the answer is 413
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message.get("headers", []), *HEADERS.items()]
            await send(message)

        with contextlib.suppress(TooLarge):
            await self.app(scope, counted, with_headers)
        if overflow and not started:
            await answer(send, 413, _too_large())

    def refusal(self, headers: dict[bytes, str]) -> tuple[int, str] | None:
        """The status and line to refuse a request with, or None to let it pass."""
        if hostname(headers.get(b"host", "")) not in self.hosts:
            return 421, "this server does not answer for that host name; open it by the address it printed"
        origin = headers.get(b"origin")
        if origin is not None and hostname(urlsplit(origin).netloc) not in self.hosts:
            return 403, "requests from other sites are refused"
        length = headers.get(b"content-length", "0")
        if length.isdecimal() and int(length) > MAX_BODY:
            return 413, _too_large()
        return None


def hostname(netloc: str) -> str:
    """'localhost:8000' → 'localhost', '[::1]:8000' → '::1'."""
    if netloc.startswith("["):
        return netloc[1:].partition("]")[0].lower()
    return netloc.partition(":")[0].lower()


def _too_large() -> str:
    return f"the request is larger than {MAX_BODY // 1024} KB: shorten the prompt"


async def answer(send: Send, status: int, line: str) -> None:
    body = json.dumps({"error": line}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *HEADERS.items(),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
