"""Make src/srmlab/pretrained/srm-nano from a finished run:

    python scripts/ship_pretrained.py runs/pretrained

The run is made by

    srmlab prepare sotu --out data/sotu --tokenizer bpe:512
    srmlab train --config src/srmlab/pretrained/srm-nano/train.toml
    srmlab analyze runs/pretrained --tokens 16384 --null 5
    srmlab analyze runs/pretrained --only dynamics --tokens 4096
    srmlab dictionary runs/pretrained --layers every
    srmlab analyze runs/pretrained --only switches --tokens 8192
    srmlab transcoder runs/pretrained --features 128 --batch-size 1 --lr 4e-3 --tokens 41000 \\
        --eval-tokens 8192 --no-each
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

import srmlab
import srmlab.training
from srmlab.data import open_tokens
from srmlab.dictionaries import load_transcoders, save_transcoders, transcoder_quality
from srmlab.files import sealed_folder
from srmlab.storage import load_tokenizer
from srmlab.training.run import RunConfig
from srmlab.training.run_text import open_text

EXCERPT = 16 * 256  # tokens of validation text
DICTIONARY = "dictionaries/every-256-4"
TRANSCODERS = "dictionaries/transcoders-mlp-128-4"
EARLY = 250  # the step of the checkpoint to compare with
TOML = """# srmlab train --config src/srmlab/pretrained/srm-nano/train.toml
preset = "srm-nano"
data = "data/sotu"
out = "runs/pretrained"
[training]
"""


def main(run: Path) -> None:
    out = srmlab.pretrained.folder()
    saved, tokenizer = RunConfig.read(run), load_tokenizer(run)
    assert tokenizer is not None
    about = json.loads((run / "run.json").read_text())
    about["data"]["path"] = "data/sotu"
    recipe = srmlab.training.recipe("srm-nano").to_dict()
    changed = {name: value for name, value in about["training"].items() if value != recipe[name]}
    toml = TOML + "".join(f"{name} = {json.dumps(value)}\n" for name, value in changed.items())
    text = tokenizer.decode(open_tokens(saved.data).val.read(0, EXCERPT).tolist())
    with tempfile.TemporaryDirectory() as temporary, sealed_folder(out) as folder:
        export = srmlab.save(srmlab.load(run), Path(temporary) / "export", tokenizer)
        shutil.copytree(export, folder, ignore=shutil.ignore_patterns("SHA256SUMS"), dirs_exist_ok=True)
        early = f"checkpoints/step-{EARLY}"
        srmlab.save(srmlab.load(run / early), folder / early, tokenizer)
        shutil.copy(run / "metrics.jsonl", folder)
        shutil.copytree(run / "analysis", folder / "analysis")
        drawn = shutil.ignore_patterns("figures", "*.html", "SHA256SUMS")
        shutil.copytree(run / DICTIONARY, folder / DICTIONARY, ignore=drawn)
        ship_transcoders(run, folder / TRANSCODERS)
        (folder / "run.json").write_text(json.dumps(about, indent=2) + "\n")
        (folder / "validation.txt").write_text(text, encoding="utf-8")
        (folder / "train.toml").write_text(toml)
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    print(f"{out}: {size / 1e6:.1f} MB")


def ship_transcoders(run: Path, folder: Path) -> None:
    """Rounded to 16 bits, with what they are worth then; their features are described when they are used."""
    learned = run / TRANSCODERS
    save_transcoders(load_transcoders(learned), folder, half=True)
    text = open_text(run)
    quality = transcoder_quality(text.model, load_transcoders(folder), text.batches(1, 8192), each=False)
    nulls = [line for line in (learned / "summary.txt").read_text().splitlines() if "null" in line]
    lines = [quality.summary(), "  rounded to 16 bits; nulls before that:", *nulls]
    (folder / "summary.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
