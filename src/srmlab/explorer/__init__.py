"""The explorer: look at the streams of one model think, in a browser, in one file, or in a notebook.

trace.py          the data contract: one prompt as named arrays and a manifest
lens.py           the likeliest tokens of many states
capture.py        model + prompt → trace
interventions.py  what the board asks for, in terms of srmlab.analysis; before and after
session.py        one model, its tokenizer and checkpoints: what the server serves
worker.py         one thread around the model, with a bounded queue
jobs.py           long sweeps with progress
server.py         the web interface on loopback
static/           the front end: plain ES modules
frontend.py       its files, and views of a user's own
bundle.py         the modules as one script, for the report and the notebook
report.py         one self-contained HTML file
widget.py         the same views in a notebook
"""

from srmlab.explorer.capture import capture
from srmlab.explorer.frontend import register_view
from srmlab.explorer.trace import Trace, TraceError

__all__ = ["Trace", "TraceError", "capture", "register_view"]
