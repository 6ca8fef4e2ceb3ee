"""Things to test the explorer on: a tiny model, and a live server around a session."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import uvicorn

import srmlab
from srmlab import dictionaries
from srmlab.analysis.states import points_of
from srmlab.data import byte_tokenizer
from srmlab.dictionaries import DictionaryConfig
from srmlab.explorer.server import create_app
from srmlab.explorer.session import Session
from srmlab.storage.identity import model_mark

PROMPT = "The streams begin to talk."


def tiny_model(**changes) -> srmlab.SRM:
    config = srmlab.SRMConfig(
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
    model = srmlab.build(config)
    assert isinstance(model, srmlab.SRM)
    return model.eval()


def write_lexicon(model: srmlab.SRM, folder: Path) -> Path:
    """A dictionary of every layer as it begins, and its features on a little text, as `srmlab dictionary`
    writes them."""
    config = DictionaryConfig(
        streams=model.config.streams,
        dim=model.config.stream_dim,
        features=24,
        k=3,
        points=points_of(model),
        model=model_mark(model),
    )
    dictionary = dictionaries.Dictionary(config).eval()
    text = torch.tensor(byte_tokenizer().encode(f"{PROMPT} And so they do.")).expand(2, -1)
    dictionaries.save(dictionary, folder)
    dictionaries.features(model, dictionary, [text], examples=2).save(folder / "features")
    return folder


def serving(session: Session, **options):
    """The address of a live server around the session."""
    return listening(create_app(session, **options))


@contextmanager
def listening(app) -> Iterator[str]:
    """The address at which an application answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        port = listener.getsockname()[1]
        config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=3)
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
