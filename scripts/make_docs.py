"""The API reference, from the docstrings: `make docs` writes it to site/, without a network.

By pdoc, because the docstrings are its whole input: they are Markdown already, and there is no second tree of
pages to keep (Sphinx and mkdocs want one). A page for every room of the package, with the names that it makes
public, and for every bridge to another library.
"""

import pkgutil
import sys
import warnings
from pathlib import Path

import pdoc
import pdoc.render
import torch

import srmlab
import srmlab.interop


def modules() -> list[str]:
    bridges = (found.name for found in pkgutil.iter_modules(srmlab.interop.__path__, "srmlab.interop."))
    return ["srmlab", *(f"srmlab.{room}" for room in srmlab.ROOMS), *bridges]


def make_docs(folder: Path) -> None:
    pdoc.render.configure(show_source=False, search=True, footer_text=f"srmlab {srmlab.__version__}")
    torch.nn.Module.__init__.__doc__ = None  # or every model would be introduced by torch's words
    with warnings.catch_warnings():  # an inherited annotation it cannot evaluate is shown as it is written
        warnings.filterwarnings("ignore", "Error parsing type annotation")
        pdoc.pdoc(*modules(), output_directory=folder)


if __name__ == "__main__":
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "site")
    make_docs(out)
    print(f"open {out / 'srmlab.html'}")
