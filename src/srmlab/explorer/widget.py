"""A trace in a notebook: `trace.show()`.

With anywidget (`pip install "srmlab[notebook]"`) the explorer's views appear in the cell and answer
to the mouse. Without it the same call gives a drawing: the tokens by surprisal and, where streams attend to
each other, the routing wall, as plain HTML that any notebook viewer shows.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from functools import cache
from html import escape
from typing import Any

import numpy as np
from pydantic import BaseModel

from srmlab.analysis.states import StateMeans
from srmlab.errors import UserError
from srmlab.explorer import questions, schema
from srmlab.explorer.frontend import script, shadow_styles, view_names
from srmlab.explorer.report import packed
from srmlab.explorer.session import Session
from srmlab.explorer.trace import Trace, config_hash
from srmlab.explorer.tracing import TextTokens
from srmlab.models import LanguageModel, config_from_dict


def show(
    trace: Trace,
    views: Sequence[str] | None = None,
    static: bool = False,
    model: LanguageModel | None = None,
    tokenizer: TextTokens | None = None,
    reference: StateMeans | None = None,
) -> Any:
    """Something the notebook displays. `views` chooses panels by name, by default all that the trace has the
    arrays for; `static=True` asks for the drawing. With `model` and `tokenizer` the kernel answers the views
    that ask something: the board, paths, what is intervened on. They are those of the trace, and so is
    `reference`, if it was captured with one.
    """
    names = view_names()
    unknown = [name for name in views or () if name not in names]
    if unknown:
        raise UserError(f"no view is called {unknown[0]!r}; there are {', '.join(names)}")
    if model is not None:
        _check_same(trace, model, reference)
    if static or importlib.util.find_spec("anywidget") is None:
        return Drawing(trace)
    widget = _widget_class(script("widget.js"))
    session = None
    if model is not None and tokenizer is not None:
        session = Session(
            model,
            tokenizer,
            name=trace.manifest["model"]["name"],
            reference=reference,
            python=python_of(trace),
        )
    shown = widget(
        trace=packed(trace),
        views=list(views or names),
        python=python_of(trace),
        info={} if session is None else session.info(),
    )
    if session is not None:
        shown.on_msg(lambda _, question, __: shown.send(*answered(session, question)))
    return shown


def _check_same(trace: Trace, model: LanguageModel, reference: StateMeans | None) -> None:
    """What the kernel says stands next to the trace: it has to be about the same model, by the same means."""
    traced = config_from_dict(trace.manifest["model"]["config"])  # of an older version, too
    if config_hash(model.config) != config_hash(traced):
        raise UserError("this trace is of a model of another config: give the model that was traced")
    if reference is None and trace.manifest["reference"] == "evaluation tokens":
        raise UserError("this trace was captured with a reference: give it here, too (reference=…)")
    if reference is not None and trace.manifest["reference"] == "this prompt":
        raise UserError("this trace was captured without a reference: leave it out here, too")


QUESTIONS: dict[str, tuple[type[schema.Question], Callable[[Session, Any], bytes | BaseModel]]] = {
    "/api/trace": (schema.TraceRequest, questions.trace),
    "/api/intervene": (schema.InterveneRequest, questions.intervene),
    "/api/paths": (schema.PathsRequest, questions.paths),
    "/api/attention": (schema.AttentionRequest, questions.attention),
}


def answered(session: Session, question: dict[str, Any]) -> tuple[dict[str, Any], list[bytes]]:
    """The answer to what a view asks, in the words of the web interface: content and buffers of a message."""
    reply: dict[str, Any] = {"id": question["id"]}
    try:
        if question["path"] not in QUESTIONS:
            raise UserError("only the explorer's own page can do that: srmlab explore RUN")
        request, ask = QUESTIONS[question["path"]]
        found = ask(session, request(**question["body"]))
    except (UserError, ValueError) as error:
        return {**reply, "error": str(error).split("\n")[0]}, []
    return (reply, [found]) if isinstance(found, bytes) else ({**reply, "json": found.model_dump()}, [])


def python_of(trace: Trace) -> str:
    """The lines that make model and tokenizer: the trace's own, or else from the config it carries."""
    return trace.manifest.get("python") or (
        f"model = srmlab.build(srmlab.config_from_dict({trace.manifest['model']['config']!r})).eval()"
        "  # as built: srmlab.load(PATH) if it was trained\n"
        "tokenizer = srmlab.data.byte_tokenizer()  # or the one it was trained with"
    )


@cache
def _widget_class(code: str) -> type:
    import anywidget
    import traitlets

    class TraceWidget(anywidget.AnyWidget):
        _esm = f"{code}\nexport default {{ render: entry_module.render }};"
        trace = traitlets.Unicode().tag(sync=True)
        views = traitlets.List(traitlets.Unicode()).tag(sync=True)
        styles = traitlets.Unicode(shadow_styles()).tag(sync=True)
        python = traitlets.Unicode().tag(sync=True)
        info = traitlets.Dict().tag(sync=True)

    return TraceWidget


class Drawing:
    """The trace as HTML without scripts."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    def _repr_html_(self) -> str:
        wall = self._wall() if "routing" in self.trace.arrays else ""
        return f'<div style="font:13px/1.8 monospace">{self._tokens()}</div>{wall}'

    def _tokens(self) -> str:
        surprisal = np.nan_to_num(self.trace["surprisal"].astype(float))
        top = max(float(surprisal.max()), 1e-6)
        return "".join(
            f'<span title="{bits:.2f} bits" '
            f'style="background:rgba(52,135,166,{0.85 * bits / top:.2f});padding:2px 1px">'
            f"{escape(string).replace(' ', '·')}</span>"
            for string, bits in zip(self.trace.token_strings, surprisal, strict=True)
        )

    def _wall(self) -> str:
        """Mean weights, layers along x, heads along y, as SVG squares."""
        mean = self.trace.weights.mean(1)  # [layer, head, target, source]
        layers, heads, streams, _ = mean.shape
        cell = max(2, 72 // streams)
        size, top = cell * streams, max(float(mean.max()), 1e-6)
        squares = []
        for (layer, head, target, source), weight in np.ndenumerate(mean):
            x, y = layer * (size + 6) + source * cell, 14 + head * (size + 6) + target * cell
            squares.append(
                f'<rect x="{x}" y="{y}" width="{cell}" height="{cell}" fill="#134a66" '
                f'fill-opacity="{weight / top:.2f}"/>'
            )
        names = "".join(
            f'<text x="{layer * (size + 6)}" y="10" font-size="10">L{layer}</text>' for layer in range(layers)
        )
        width, height = layers * (size + 6), 14 + heads * (size + 6)
        caption = (
            f"Routing, mean weight (up to {top:.2f}); row = target, column = source; heads below each other"
        )
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" role="img" '
            f'aria-label="{caption}" '
            f'style="background:#fff">{names}{"".join(squares)}</svg><div '
            f'style="font-size:11px">{caption}</div>'
        )
