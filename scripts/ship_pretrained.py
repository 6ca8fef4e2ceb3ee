"""Make src/srm/pretrained/srm-nano from a finished run: `python scripts/ship_pretrained.py runs/pretrained`.

The run is made by

    srm prepare sotu --out data/sotu --tokenizer bpe:512
    srm train --config src/srm/pretrained/srm-nano/train.toml
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import srm
import srm.training
from srm.data import open_tokens
from srm.storage import load_tokenizer
from srm.training.run import RunDirectory

EXCERPT = 16 * 256  # tokens of validation text
EARLY = 250  # the step of the checkpoint to compare with
TOML = """# srm train --config {path}
preset = "srm-nano"
data = "data/sotu"
out = "runs/pretrained"
[training]
"""


def main(run: Path) -> None:
    out = srm.pretrained.folder()
    if out.exists():
        shutil.rmtree(out)
    saved, tokenizer = RunDirectory(run).read(), load_tokenizer(run)
    assert tokenizer is not None
    srm.save(srm.load(run), out, tokenizer)
    srm.save(
        srm.load(run / "checkpoints" / f"step-{EARLY}"), out / "checkpoints" / f"step-{EARLY}", tokenizer
    )
    about = json.loads((run / "run.json").read_text())
    about["data"]["path"] = "data/sotu"
    (out / "run.json").write_text(json.dumps(about, indent=2) + "\n")
    shutil.copy(run / "metrics.jsonl", out)
    val = open_tokens(saved.data).val
    (out / "validation.txt").write_text(tokenizer.decode(val.read(0, EXCERPT).tolist()), encoding="utf-8")
    shutil.copytree(run / "analysis", out / "analysis", ignore=shutil.ignore_patterns("*.partial*"))
    recipe = srm.training.recipe("srm-nano").to_dict()
    changed = {name: value for name, value in about["training"].items() if value != recipe[name]}
    lines = [f"{name} = {json.dumps(value)}" for name, value in changed.items()]
    relative = out.relative_to(Path(__file__).parents[1])
    (out / "train.toml").write_text(TOML.format(path=relative) + "\n".join(lines) + "\n")
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    print(f"{relative}: {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
