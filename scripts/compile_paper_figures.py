"""Compile the paper's own figures on the files of `srmlab paper`: every picture of the LaTeX source that
reads data/, unchanged, one a page. Needs texlive with pgfplots (Debian: texlive-pictures).

    srmlab paper baseline=runs/base 161m=runs/med … --out paper
    python scripts/compile_paper_figures.py srm-paper.tex paper        writes paper/figures.pdf
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PREAMBLE = r"""\documentclass{article}
\usepackage{amsmath,pgfplots}
\usepgfplotslibrary{groupplots}
\usetikzlibrary{pgfplots.colormaps, arrows.meta, positioning, calc, math}
\pgfplotsset{compat=1.18}
\pagestyle{empty}
"""
source, folder = Path(sys.argv[1]), Path(sys.argv[2])
pictures = re.findall(
    r"\\begin{tikzpicture}.*?\\end{tikzpicture}", source.read_text(encoding="utf-8"), re.DOTALL
)
wanted, left_out = [], []
for picture in pictures:
    files = set(re.findall(r"data/[\w/.]+", picture))
    missing = sorted(name for name in files if not (folder / name).is_file())
    if missing:
        left_out.append(", ".join(missing))
    elif files:
        wanted.append(picture)
pages = "\n\\newpage\n".join(wanted)
(folder / "figures.tex").write_text(
    f"{PREAMBLE}\\begin{{document}}\n{pages}\n\\end{{document}}\n", encoding="utf-8"
)
done = subprocess.run(
    ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "figures.tex"],
    cwd=folder,
    capture_output=True,
    text=True,
    errors="replace",
    check=False,
)
if done.returncode:
    sys.exit("\n".join(line for line in done.stdout.splitlines() if line.startswith(("!", "l."))))
print(f"{folder / 'figures.pdf'}: {len(wanted)} figures")
for missing in left_out:
    print(f"left out for want of {missing}")
