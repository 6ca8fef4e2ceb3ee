"""Things to test the explorer on: a tiny model, and a live server around a session."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

import srm
from srm.explorer.server import create_app
from srm.explorer.session import Session

PROMPT = "The streams begin to talk."


def tiny_model(**changes) -> srm.SRM:
    config = srm.SRMConfig(
        vocab_size=257,
        context=64,
        embedding_dim=16,
        streams=3,
        stream_dim=8,
        mlp_dim=16,
        token_heads=2,
        stream_heads=2,
        head_dim=4,
        depth=3,
        gradient_depth=2,
    ).replace(**changes)
    model = srm.build(config)
    assert isinstance(model, srm.SRM)
    return model.eval()


@contextmanager
def serving(session: Session, **options) -> Iterator[str]:
    """The address of a live server around the session."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        port = listener.getsockname()[1]
        config = uvicorn.Config(
            create_app(session, **options), log_level="error", timeout_graceful_shutdown=3
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = True
            thread.join(timeout=20)
            assert not thread.is_alive()
