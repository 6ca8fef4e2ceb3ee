"""The colours of figures, report and explorer, said once: the page's own `palette.js` is made from them.

Streams take Okabe and Ito's six, which survive colour-blindness, and two more; heads take Tol's, so that
lanes and arcs are told apart. A share is darker the larger it is; a signed value is blue below zero and
orange above it.
"""

from __future__ import annotations

BLUE, ORANGE, GREEN, VERMILION, SKY, PURPLE, BLACK = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#000000",
)  # fmt: skip
INDIGO, SAND = "#332288", "#DDCC77"  # Tol's, where seven are too few
LINES = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY, BLACK)
GREY = "#8a8a8a"

STREAMS = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION, "#8A7FD1", "#9AA21A")
HEADS = ("#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377", "#BB5566", "#777777")
STEPS = ("#566C98", "#8C6743", "#4C765E", "#82608F", "#74713C", "#53737A")  # white letters are read on them

# from the least to the most, on white paper and on a dark screen
SHARE = (
    "#FBFBF8", "#DEF5E5", "#ADE3C0", "#6CD3AD", "#43BBAD", "#35A1AB", "#3487A6", "#366DA0", "#3D5296",
    "#403974", "#35264C", "#231526",
)  # fmt: skip
SHARE_DARK = ("#15181C", *reversed(SHARE[1:-1]))
SIGNED = (
    "#0B3C6F", "#1F66A8", "#4A90CF", "#8FBCE6", "#CFE0F1", "#F7F6F2", "#FBE0C5", "#F3B57C", "#E2872F",
    "#B85F0C", "#7A3B04",
)  # fmt: skip
SIGNED_DARK = (
    "#9FD0FF", "#5AA2E0", "#2F6CA6", "#1F4468", "#1B2733", "#1B1D20", "#33261A", "#6B4216", "#AD6A1C",
    "#EA9A3E", "#FFCF94",
)  # fmt: skip
SHARE_MAP = "srmlab.share"  # matplotlib knows them by these names (style.py)
SIGNED_MAP = "srmlab.signed"
