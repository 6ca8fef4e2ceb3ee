"""The run `ddp` of world_runs.py, unhurried, for torchrun: python world_train.py DATA RUN. Resumes RUN."""

import os
import sys
import time
from pathlib import Path

from small_runs import MODEL, small_config

from srmlab.training import train
from srmlab.training.loop import Trainer


def main() -> None:
    data, run = Path(sys.argv[1]), Path(sys.argv[2])
    rank = os.environ["RANK"]
    (run.parent / f"rank-{rank}.pid").write_text(str(os.getpid()))
    advance = Trainer.advance

    def unhurried(self: Trainer) -> int:
        time.sleep(0.1)  # time to be signalled
        return advance(self)

    Trainer.advance = unhurried
    result = train(small_config(strategy="ddp"), MODEL, data, run, resume=True, show=False)
    (run.parent / f"rank-{rank}.exit").write_text(str(result.exit_code))
    sys.exit(result.exit_code)


if __name__ == "__main__":
    main()
