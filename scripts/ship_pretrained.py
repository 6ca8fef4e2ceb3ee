"""Make a folder of src/srmlab/pretrained from a finished run: srm-nano from one on text, sudoku from one on
puzzles.

    python scripts/ship_pretrained.py runs/pretrained
    python scripts/ship_pretrained.py runs/sudoku4

The second is made by

    srmlab prepare sudoku:4x4 --out data/sudoku4
    srmlab train srm-sudoku-nano --data data/sudoku4 --out runs/sudoku4

and the first by

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
from srmlab.puzzles import open_puzzles
from srmlab.storage import load_tokenizer
from srmlab.training.run import RunConfig
from srmlab.training.run_puzzles import BOARDS
from srmlab.training.run_text import open_text

EXCERPT = 16 * 256  # tokens of validation text
DICTIONARY = "dictionaries/every-256-4"
TRANSCODERS = "dictionaries/transcoders-mlp-128-4"
EARLY = 250  # the step of the checkpoint to compare with
PATHS = {"srm-nano": ("data/sotu", "runs/pretrained"), "sudoku": ("data/sudoku4", "runs/sudoku4")}


def main(run: Path) -> None:
    saved = RunConfig.read(run)
    name = "sudoku" if saved.puzzles else srmlab.pretrained.NAME
    out = srmlab.pretrained.folder(name)
    with sealed_folder(out) as folder:
        ship_run(run, saved, folder, name)
        if saved.puzzles:
            ship_boards(saved, folder)
        else:
            ship_text(run, saved, folder)
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    print(f"{out}: {size / 1e6:.1f} MB")


def ship_text(run: Path, saved: RunConfig, folder: Path) -> None:
    """An early checkpoint, the analyses, a dictionary, transcoders, a piece of the validation text."""
    tokenizer = load_tokenizer(run)
    assert tokenizer is not None
    early = f"checkpoints/step-{EARLY}"
    srmlab.save(srmlab.load(run / early), folder / early, tokenizer)
    shutil.copytree(run / "analysis", folder / "analysis")
    drawn = shutil.ignore_patterns("figures", "*.html", "SHA256SUMS")
    shutil.copytree(run / DICTIONARY, folder / DICTIONARY, ignore=drawn)
    ship_transcoders(run, folder / TRANSCODERS)
    text = tokenizer.decode(open_tokens(saved.data).val.read(0, EXCERPT).tolist())
    (folder / "validation.txt").write_text(text, encoding="utf-8")


def ship_boards(saved: RunConfig, folder: Path) -> None:
    """All its test puzzles; of the log every tenth step."""
    rows = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(row for row in rows if json.loads(row)["step"] % 10 == 0))
    puzzles = open_puzzles(saved.data)
    line, test = puzzles.kind.line, puzzles.test
    rows = zip(map(line, test.inputs), map(line, test.labels), test.ratings.tolist(), strict=True)
    lines = ["question,answer,rating", *(f"{board},{answer},{rating}" for board, answer, rating in rows)]
    (folder / BOARDS).write_text("\n".join(lines) + "\n")


def ship_run(run: Path, saved: RunConfig, folder: Path, name: str) -> None:
    """What all have: the weights, the log, the record without this machine's paths, and how to train it."""
    with tempfile.TemporaryDirectory() as temporary:
        tokenizer = None if saved.puzzles else load_tokenizer(run)
        export = srmlab.save(srmlab.load(run), Path(temporary) / "export", tokenizer)
        shutil.copytree(export, folder, ignore=shutil.ignore_patterns("SHA256SUMS"), dirs_exist_ok=True)
    shutil.copy(run / "metrics.jsonl", folder)
    about = json.loads((run / "run.json").read_text())
    about["data"]["path"], out = PATHS[name]
    (folder / "run.json").write_text(json.dumps(about, indent=2) + "\n")
    assert saved.preset is not None
    recipe = srmlab.training.recipe(saved.preset).to_dict()
    changed = {name: value for name, value in about["training"].items() if value != recipe[name]}
    toml = f"# srmlab train --config src/srmlab/pretrained/{name}/train.toml\n"
    toml += f'preset = "{saved.preset}"\ndata = "{about["data"]["path"]}"\nout = "{out}"\n[training]\n'
    toml += "".join(f"{name} = {json.dumps(value)}\n" for name, value in changed.items())
    (folder / "train.toml").write_text(toml)


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
