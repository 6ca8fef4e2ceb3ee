"""What a view asks of a model about a prompt: a request in the words of `schema`, and its answer. The server
and the notebook both ask this way.
"""

from __future__ import annotations

from srmlab.explorer import schema
from srmlab.explorer.attention import to_bytes
from srmlab.explorer.session import Session
from srmlab.explorer.tracing import display_strings
from srmlab.models import Exit


def read(session: Session, body: schema.Prompt, cut: bool = False) -> list[int]:
    """The token ids a request is about."""
    if body.tokens is not None:
        return session.check_tokens(body.tokens)
    return session.encode(body.prompt or "", cut)


def trace(session: Session, body: schema.TraceRequest) -> bytes:
    return session.trace(read(session, body, body.cut), body.intervention, body.checkpoint).to_bytes()


def intervene(session: Session, body: schema.InterveneRequest) -> schema.Bars:
    return schema.Bars(
        **session.intervene(read(session, body), body.intervention, body.checkpoint, body.each)
    )


def paths(session: Session, body: schema.PathsRequest) -> schema.Paths:
    tokens = read(session, body)
    return schema.Paths(**session.paths(tokens, body.token, body.target, body.intervention, body.checkpoint))


def attention(session: Session, body: schema.AttentionRequest) -> bytes:
    return to_bytes(session.attention(read(session, body), body.call, body.intervention, body.checkpoint))


def generate(session: Session, body: schema.GenerateRequest) -> schema.Tokens:
    prompt = read(session, body)
    exit = None if body.exit is None else Exit(body.exit)
    tokens = session.generate(
        prompt,
        body.count,
        body.temperature,
        body.top_k,
        body.seed,
        body.intervention,
        body.checkpoint,
        exit,
    )
    known = [token for token in tokens if token < session.tokenizer.vocab_size]
    return schema.Tokens(
        tokens=tokens,
        added=len(tokens) - len(prompt),
        strings=display_strings(session.tokenizer, tokens),
        text=session.tokenizer.decode(known),
        mean_levels=exit.mean_levels if exit is not None and exit.tokens else None,
    )
