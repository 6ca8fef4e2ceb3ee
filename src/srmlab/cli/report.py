"""`srmlab report`: one self-contained HTML file about a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from srmlab.cli.explore import Presents
from srmlab.errors import UserError


@dataclass(kw_only=True)
class Command(Presents):
    """Write one HTML file about a run: its training, what the analyses found, and the explorer's views on a
    few prompts.

    The file is self-contained, works offline, and can be sent to a colleague.

    Example:
        srmlab report runs/nano
        srmlab report --pretrained
        srmlab report runs/nano --prompt "To be or not" --prompt "The streams" --out nano.html
    """

    prompt: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """A prompt to trace; repeat for several. By default sentences from the run's evaluation text."""
    results: Path | None = None
    """A folder of `srmlab sweep` results, whose tables go into the report."""
    out: Path | None = None
    """Where to write; by default report.html in the run, or next to a checkpoint or export."""

    def run(self) -> None:
        from srmlab.explorer.leaderboard import read_results
        from srmlab.explorer.report import write_report
        from srmlab.progress import Display
        from srmlab.training.run_text import place_for

        run = self.presented()
        if run is None and self.out is None:
            raise UserError("--out missing: say where to write, or give a run: srmlab report runs/nano")
        if self.out is not None and self.out.is_dir():
            raise UserError(f"--out {self.out} is a folder: give a file, such as {self.out / 'report.html'}")
        if "" in self.prompt:
            raise UserError('--prompt "" is empty: give at least one token, or leave it out')
        if self.results is not None:
            read_results(self.results)  # refused before the work
        session = self.open(run)
        out = self.out or place_for(run or Path(), "report.html")
        prompts = [session.encode(prompt) for prompt in self.prompt or session.prompts]
        with Display() as display:
            task = display.task("reading", len(prompts), "prompts")
            traces = []
            for prompt in prompts:
                traces.append(session.trace(prompt))
                task.update(len(traces))
            drawing = display.task("drawing", unit="figures")

            def drawn(name: str, done: int, total: int) -> None:
                if total:
                    drawing.update(done, name, total)

            path = write_report(session, out, run=run, traces=traces, results=self.results, progress=drawn)
        print(f"{path}   {path.stat().st_size / 1e6:.1f} MB, open it in a browser")
