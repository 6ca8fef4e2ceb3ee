"""The explorer: look at the streams of one model think, in a browser, in one file, or in a notebook.

trace.py          the data contract: one prompt as named arrays and a manifest
measures.py       numbers of a whole prompt, by the formulas of srmlab.analysis
lens.py           the likeliest tokens of many states
tracing.py        model + prompt → trace
outcomes.py       a prompt before and after an intervention
feature_cards.py  one feature in full, search, and a reader's notes
session.py        one model, its tokenizer and checkpoints: what the server serves
questions.py      requests about a prompt, and their answers
worker.py         one thread around the model, with a bounded queue
background.py     long sweeps with progress
server.py         the web interface on loopback
runs.py           many runs under one address
static/           the front end: plain ES modules
frontend.py       its files, and views of a user's own
bundle.py         the modules as one script, for the report and the notebook
report.py         one self-contained HTML file
widget.py         the same views in a notebook
"""

from srmlab.explorer.frontend import register_view
from srmlab.explorer.trace import Trace, TraceError
from srmlab.explorer.tracing import capture

__all__ = ["Trace", "TraceError", "capture", "register_view"]
