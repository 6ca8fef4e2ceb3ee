"""A page for browsing features: one self-contained HTML file."""

from __future__ import annotations

from html import escape
from pathlib import Path

from srmlab.analysis.result import Array
from srmlab.dictionaries.features import Decode, Features
from srmlab.files import write_file

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title><style>
:root {{ color-scheme: light dark; background: Canvas; color: CanvasText; }}
body {{ font: 14px/1.45 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.3rem; }}
h3 {{ font-size: 1rem; margin: 1.4rem 0 .2rem; }}
small {{ font-weight: normal; color: #595959; }}
summary {{ cursor: pointer; font-weight: 600; padding: .4rem 0; }}
section {{ border-bottom: 1px solid #8884; padding-bottom: .6rem; content-visibility: auto; }}
section p {{ margin: .25rem 0; font: 12px ui-monospace, monospace; white-space: pre-wrap; }}
code {{ background: #8882; padding: 0 .25em; border-radius: 3px; white-space: pre; }}
mark {{ color: inherit; background: rgb(230 159 0 / calc(var(--share) * 1%)); }}
@media (prefers-color-scheme: dark) {{
  small {{ color: #b3b3b3; }}
  mark {{ background: rgb(230 159 0 / calc(var(--share) * .45%)); }}
}}
</style></head><body><h1>{title}</h1>
<p>The strongest {most} features of each stream, measured on {about}. Under each are the tokens whose logits
it raises and lowers most, and the text where it is most active: the stronger the shade, the more active.</p>
{streams}</body></html>
"""


def page_of(found: Features, decode: Decode, title: str, most: int = 64) -> str:
    """The strongest `most` features of each stream, with their examples."""
    streams = "\n".join(_stream(found, s, decode, most) for s in range(len(found.fired)))
    about = escape(str(found.evidence))
    return PAGE.format(title=escape(title), about=about, most=most, streams=streams)


def write_page(found: Features, path: str | Path, decode: Decode, title: str, most: int = 64) -> Path:
    """Write a page for browsing features: one self-contained HTML file."""
    path = Path(path)
    write_file(path, page_of(found, decode, title, most))
    return path


def _stream(found: Features, s: int, decode: Decode, most: int) -> str:
    ranking = found.ranking(s)
    blocks = "\n".join(_feature(found, s, f, decode) for f in ranking[:most])
    title = f"Stream {s}: {len(ranking):,} of {found.fired.shape[1]:,} features fire"
    return f"<details{' open' if s == 0 else ''}><summary>{title}</summary>{blocks}</details>"


def _feature(found: Features, s: int, f: int, decode: Decode) -> str:
    def listed(tokens: Array) -> str:
        return " ".join(f"<code>{escape(_visible(decode(int(token))))}</code>" for token in tokens)

    shown = (e for e in range(found.strength.shape[2]) if found.strength[s, f, e] > 0)
    examples = "".join(f"<p>{_example(found, s, f, e, decode)}</p>" for e in shown)
    title = f"{found.frequency[s, f]:.2%} of tokens, peak {found.strength[s, f, 0]:.1f}"
    return (
        f'<section id="S{s}-{f}"><h3>S{s} · {f} <small>{title}</small></h3>'
        f"<div>raises {listed(found.raised[s, f])}</div>"
        f"<div>lowers {listed(found.lowered[s, f])}</div>{examples}</section>"
    )


def _example(found: Features, s: int, f: int, e: int, decode: Decode) -> str:
    words = []
    for token, activation in zip(found.context[s, f, e], found.activation[s, f, e], strict=True):
        if token < 0:
            continue
        word = escape(_visible(decode(int(token))))
        if activation > 0:
            share = 100 * activation / found.strength[s, f, 0]
            word = f'<mark style="--share:{share:.0f}" title="{activation:.2f}">{word}</mark>'
        words.append(word)
    return "".join(words)


def _visible(text: str) -> str:
    return text.replace("\n", "↵")
