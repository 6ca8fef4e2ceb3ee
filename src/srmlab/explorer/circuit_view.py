"""An attribution graph as a view of the explorer: `srmlab circuit … --view circuit.js`, then
`srmlab explore RUN --view circuit.js` (or `srmlab report`).

The file is the drawing with the graph inside, so it can be kept and sent like any other view.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from srmlab.files import write_file

TEMPLATE = Path(__file__).with_name("circuit_view.js")


def write_circuit_view(document: dict[str, Any], path: Path) -> Path:
    """Write the view of a graph in Neuronpedia's format, as `srmlab.interop.neuronpedia` makes it."""
    graph = json.dumps(document, ensure_ascii=False).replace("</", "<\\/")  # a report has it in a script
    write_file(path, TEMPLATE.read_text(encoding="utf-8").replace('"__GRAPH__"', graph))
    return path
