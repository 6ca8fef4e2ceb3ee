"""A pass without data: the shapes are those of the meta device, found sooner."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from small_models import SMALL

from srmlab.models import PRESETS, outline, preset
from srmlab.models.shapes import without_data
from srmlab.models.sites import Tap


class Shown(Tap):
    """Notes what is handed over, and asks for everything."""

    def __init__(self, shapes: list, prefix: str = "") -> None:
        self.shapes, self.prefix = shapes, prefix

    def __call__(self, name, value):
        self.shapes.append((self.prefix + name, value.shape, value.stride(), value.dtype, value.device))
        return value

    streams = __call__

    def wants(self, *names):  # noqa: ARG002
        return True

    def at(self, prefix):
        return Shown(self.shapes, f"{self.prefix}{prefix}.")


def handed_over(config, device) -> list:
    model = outline(config)
    shapes: list = []
    model.tap = lambda: Shown(shapes)
    tokens = torch.zeros(2, config.context - config.puzzle_positions, dtype=torch.long, device="meta")
    with torch.no_grad(), device:
        model(tokens)
    return shapes


CONFIGS = SMALL | {name: preset(name) for name in PRESETS if name.endswith("nano")}


@pytest.mark.parametrize("name", CONFIGS)
def test_every_value_has_the_shape_it_has_on_the_meta_device(name):
    found = handed_over(CONFIGS[name], without_data())
    assert len(found) > 10
    assert found == handed_over(CONFIGS[name], torch.device("meta"))


def test_what_changes_in_place_or_has_data_is_left_to_torch():
    with without_data():
        x = torch.zeros(2, 3)
        assert x.unsqueeze_(0) is x
        assert x.shape == (1, 2, 3)
        assert torch.arange(3, device="cpu").mul(2).tolist() == [0, 2, 4]
        with pytest.raises(RuntimeError, match="reduction dim"):
            torch.zeros(2, 3) @ torch.zeros(2, 3)
        with pytest.raises(RuntimeError, match="meta"):
            torch.zeros(2).sum().item()


def test_nothing_is_drawn_at_random():
    before = torch.get_rng_state()
    with without_data():
        torch.nn.functional.dropout(torch.ones(3, 3), 0.5)
        torch.nn.Linear(3, 3)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_small_model_is_built_and_run_without_importing_the_compiler():
    code = (
        "import sys, torch, srmlab\n"
        "srmlab.build(srmlab.preset('srm-nano'))(torch.zeros(1, 2, dtype=torch.long))\n"
        "assert 'torch._dynamo' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
