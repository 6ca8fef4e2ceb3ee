"""Make the golden checkpoints of the current format: run once for a format, then committed and never changed.

python make_golden.py                                     golden/format-1/whole, and expected.json
torchrun --nproc-per-node 2 make_golden.py                golden/format-1/sharded
"""

import json
from pathlib import Path

import torch

from srmlab.data import byte_tokenizer
from srmlab.models import SRMConfig, build
from srmlab.storage.weights import FORMAT
from srmlab.training import AdamAtan2, TrainConfig
from srmlab.training.checkpoint import save_checkpoint
from srmlab.training.distributed import distribute, open_world

HERE = Path(__file__).parent
MODEL = SRMConfig(
    vocab_size=257, context=8, embedding_dim=4, streams=2, stream_dim=4, mlp_dim=8, token_heads=1, head_dim=2,
    stream_heads=1, depth=2, gradient_depth=1, order="random:3",
)  # fmt: skip
TRAINING = TrainConfig(steps=10, batch_size=2, lr=1e-2, warmup=0)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.arange(18).view(2, 9) * 7 % 257
    return tokens[:, :-1], tokens[:, 1:]


def take_steps(model, optimizer, count: int) -> list[float]:
    losses = []
    for _ in range(count):
        optimizer.zero_grad()
        loss = model(*batch())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    folder = HERE / f"format-{FORMAT}"
    with open_world(TRAINING.device, "fsdp") as world:
        model = build(MODEL).train()
        call = distribute(model, world)
        optimizer = AdamAtan2(model.parameters(), lr=1e-2)
        take_steps(call, optimizer, 4)
        name = "sharded" if world.size > 1 else "whole"
        byte_tokenizer().save(folder / "tokenizer")
        about = {
            "step": 4,
            "data_offset": 0,
            "training": TRAINING.to_dict(),
            "data": {"fingerprint": "golden"},
        }
        save_checkpoint(
            folder / name / "step-4",
            model,
            optimizer,
            config=MODEL.to_dict(),
            training=about,
            world=world,
            tokenizer=folder / "tokenizer",
        )
        if world.size == 1:
            (folder / "expected.json").write_text(
                json.dumps({"losses": take_steps(model, optimizer, 4)}) + "\n"
            )


if __name__ == "__main__":
    main()
