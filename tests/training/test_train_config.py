"""A training config that exists can work; what cannot is refused with the field, its value and the fix."""

import json
import platform
import re

import pytest

import srmlab
from srmlab.errors import UserError
from srmlab.models import PRESETS, SWEEP_PRESETS
from srmlab.storage.run_directory import RunDirectory
from srmlab.training import TrainConfig, recipe
from srmlab.training.config import changes_between, computation, execution, identity
from srmlab.training.run import RunConfig, machine


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"steps": 0}, "steps = 0: must be at least 1"),
        ({"steps": 1.5}, "steps = 1.5: must be a whole number"),
        ({"lr": "fast"}, "lr = 'fast': must be a number"),
        ({"lr": 0.0}, "lr = 0.0: must be positive"),
        ({"lr": float("nan")}, "lr = nan: must be a number"),
        ({"lr": float("inf")}, "lr = inf: must be a number"),
        ({"seed": -1}, "seed = -1: must be from 0 to 2^63 − 1"),
        ({"seed": 2**63}, f"seed = {2**63}: must be from 0 to 2^63 − 1"),
        (
            {"warmup": 20, "steps": 10},
            "warmup = 20: must be between 0 and steps = 10; set --warmup lower, or --steps higher",
        ),
        ({"schedule": "linear"}, "schedule = 'linear': must be 'constant' or 'cosine'"),
        ({"betas": [0.9]}, "betas = (0.9,): must be 2 values, each a number"),
        ({"betas": [0.9, 1.0]}, r"betas = (0.9, 1.0): both must be in [0, 1)"),
        ({"clip": -1.0}, "clip = -1.0: must be positive; leave it out for no clipping"),
        ({"accumulate": 3, "batch_size": 8}, "accumulate = 3: must divide batch_size = 8"),
        ({"compile": 1}, "compile = 1: must be true or false"),
        ({"wandb": True}, "wandb = True: must be text or left out"),
        ({"optimiser": "adamw"}, "optimiser: not a field of TrainConfig; did you mean 'optimizer'?"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(fields, message):
    with pytest.raises(UserError) as refused:
        TrainConfig.from_dict(fields)
    assert str(refused.value) == message


def test_a_config_survives_its_dictionary():
    config = TrainConfig(lr=3e-4, betas=(0.8, 0.9), clip=1.0, wandb="project")
    assert TrainConfig.from_dict(config.to_dict()) == config


def test_a_config_is_what_decides_the_result_and_how_it_is_executed_and_nothing_else():
    config = TrainConfig(lr=3e-4, device="cpu", keep_checkpoints=7)
    computed, executed = identity(config), vars(execution(config))
    assert computed | executed == config.to_dict()
    assert not set(computed) & set(executed)
    assert (computed["lr"], executed["keep_checkpoints"]) == (3e-4, 7)


def test_arc_has_the_decay_and_the_rate_of_embeddings_of_its_own():
    arc, maze = recipe("trm-arc"), recipe("trm-maze")
    assert (arc.weight_decay, arc.puzzle_lr, arc.halting, arc.ema) == (0.1, 1e-2, "trm", 0.999)
    assert (maze.weight_decay, maze.puzzle_lr) == (1.0, 1e-4)
    assert recipe("hrm-arc").halting == recipe("hrm-maze").halting == "hrm"


def test_a_run_says_what_it_was_made_on_and_names_no_host(tmp_path):
    RunConfig(srmlab.preset("srm-nano"), TrainConfig(), tmp_path, "f", puzzles="maze:9").create(
        RunDirectory(tmp_path / "run")
    )
    made_on = json.loads((tmp_path / "run" / "run.json").read_text())["machine"]
    assert made_on == machine()
    assert re.fullmatch(r".+, \d+ cores?, (.+, )?torch \d.*", made_on)
    assert platform.node() not in made_on.split()


def test_a_config_saved_by_an_earlier_version_keeps_its_identity():
    """The shipped run's; a run in a sweep is named by a hash of it."""
    saved = json.loads((srmlab.pretrained.folder() / "run.json").read_text())["training"]
    names = "steps batch_size context seed document_mask optimizer lr warmup schedule lr_end weight_decay"
    expected = {name: saved[name] for name in (*names.split(), "betas", "clip", "dtype")}
    assert identity(TrainConfig.from_dict(saved)) == expected


def test_changes_are_named_with_both_values():
    old, new = computation(TrainConfig()), computation(TrainConfig(lr=2e-3, seed=1, depth_schedule="grow:2"))
    assert changes_between(old, new) == [
        "seed 0 → 1",
        "lr 0.001 → 0.002",
        "depth_schedule 'constant' → 'grow:2'",
    ]


@pytest.mark.parametrize(
    ("preset", "lr", "warmup"),
    [
        ("srm-base", 1e-3, 100),
        ("srm-med", 1e-3, 200),
        ("srm-large", 1e-3, 1000),
        ("gpt2", 1e-3, 0),
        ("hrm", 1e-4, 1000),
        ("hrm-single", 1e-4, 1000),
    ],
)
def test_the_papers_recipes(preset, lr, warmup):
    config = recipe(preset)
    assert (config.lr, config.warmup, config.weight_decay) == (lr, warmup, 0.1)
    assert config.steps * config.tokens_per_step(1024) == 10_000 * 512 * 1024
    assert (config.optimizer, config.schedule, config.clip) == ("adam-atan2", "constant", None)


def test_every_preset_has_a_recipe():
    for preset in [*PRESETS, *SWEEP_PRESETS, "srm-sweep"]:
        assert recipe(preset).steps > 0
    assert recipe("srm-sweep-width-8").steps == 1000


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("srm-lrge", "did you mean 'srm-large'?"),
        ("hrm-nan", "did you mean 'hrm-nano'?"),
        ("srm-sweep-width-3", "did you mean 'srm-sweep-width-32'?"),
        ("elephant", "`srmlab presets` lists the models that have one"),
        ("elephant-nano", ""),
    ],
)
def test_a_name_that_is_no_preset_has_no_recipe(name, hint):
    with pytest.raises(UserError, match=re.escape(f"no recipe is called {name!r}; {hint}")):
        recipe(name)
