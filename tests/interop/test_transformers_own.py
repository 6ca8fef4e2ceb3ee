"""transformers' own common tests of a model, on ours: each passes, or is in LEFT_OUT with the reason.

Its `ModelTesterMixin` is in the source archive, not in the wheel: `make transformers` fetches that, names its
folder in TRANSFORMERS_SOURCE and runs this file.

Its tests of generation are not in the archive: `test_common_checks` and `test_huggingface` make those.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
import types
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from transformers.models.auto import modeling_auto

from srmlab.interop.huggingface import SRMForCausalLM, SRMHFConfig, SRMModel
from srmlab.models import GPT2Config, HRMConfig, ModelConfig
from subjects import SMALL

TESTS = Path(os.environ.get("TRANSFORMERS_SOURCE", "")) / "tests"
pytestmark = pytest.mark.filterwarnings("ignore")  # of their own code

LEFT_OUT = {  # what their names begin with, and why
    "test_eager_matches_sdpa_inference": 'there is one attention, torch\'s: "eager" is refused',
    "test_can_set_attention_dynamically": "the same",
    "test_sdpa_can_dispatch_non_composite_models": "the same",
    "test_retain_grad_hidden_states_attentions": "the same; the check is in test_common_checks",
    "test_generation_tester_mixin_inheritance": "their tests of generation are not in the archive",
    "test_gradient_checkpointing_enable_disable": "looks for their class of layers; ours has other units",
    "test_training_gradient_checkpointing": "the same; test_huggingface compares the gradients",
    "test_attention_outputs": 'asks for "eager"; and a layer attends once in every step',
    "test_model_get_set_embeddings": "puts in a table of another shape, which is refused",
    "test_model_weights_reload_no_missing_tied_weights": "loads a file without weights, which is refused",
    "test_resize_tokens_embeddings": "the vocabulary is part of the model's identity",
}


def their_tests() -> types.ModuleType:
    """Their file, without the mixins that it takes from files which are not in the archive."""
    if not TESTS.is_dir():
        pytest.skip("these need transformers' source archive: make transformers", allow_module_level=True)
    pytest.importorskip("parameterized", reason="parameterized, which their tests need, is not installed")
    for name, mixin in (
        ("exporters.test_export", "ExportTester"),
        ("generation.test_utils", "GenerationTester"),
    ):
        for module in ("their", f"their.{name.split('.')[0]}", f"their.{name}"):
            sys.modules.setdefault(module, types.ModuleType(module)).__path__ = [str(TESTS)]
        setattr(sys.modules[f"their.{name}"], f"{mixin}Mixin", type(f"{mixin}Mixin", (), {}))
    modeling_auto.MODEL_MAPPING_NAMES["srm"] = "SRMModel"  # by the class's name they know what it returns
    modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES["srm"] = "SRMForCausalLM"
    return importlib.import_module("their.test_modeling_common")


class Given:
    """What their tests ask for: a config and inputs, and what to expect of them."""

    batch_size, seq_length, is_training = 3, 7, True

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        for size in ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"):
            setattr(self, size, getattr(self.get_config(), size))

    def get_config(self) -> SRMHFConfig:
        return SRMHFConfig(srm=self.config.to_dict())

    def prepare_config_and_inputs_for_common(self) -> tuple[SRMHFConfig, dict[str, torch.Tensor]]:
        tokens = torch.randint(1, self.config.vocab_size, (self.batch_size, self.seq_length))
        return self.get_config(), {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


def failing(test: Callable[..., None], reason: str) -> Callable[..., None]:
    """The same test, expected to fail in one class alone."""

    @functools.wraps(test)
    def run(self: unittest.TestCase) -> None:
        test(self)

    strict = "test_training" not in test.__name__  # what fails there is a part, after which it passes
    return pytest.mark.xfail(reason=reason, strict=strict)(run)


class OnOurs(their_tests().ModelTesterMixin):
    all_model_classes = (SRMModel, SRMForCausalLM)
    config: ModelConfig
    left_out: ClassVar[dict[str, str]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name in dir(cls):
            for beginning, reason in (LEFT_OUT | cls.left_out).items():
                if name.startswith(beginning) and callable(getattr(cls, name)):
                    setattr(cls, name, failing(getattr(cls, name), reason))

    def setUp(self) -> None:
        self.model_tester = Given(self.config)


BUFFERS = {"test_init_weights_can_init_buffers": "buffers are in the file; one without them is refused"}
SIZES = {"vocab_size": 97, "context": 32, "dim": 16, "heads": 2, "mlp_dim": 24}


class TestSRM(OnOurs, unittest.TestCase):
    config = SMALL.replace(depth=2, gradient_depth=2)
    left_out = {"test_hidden_states_output": "its streams are wider than hidden_size"} | BUFFERS


class TestHRM(OnOurs, unittest.TestCase):
    config = HRMConfig(**SIZES, head_dim=8, low_blocks=1, high_blocks=1, low_cycles=1, high_cycles=2)
    left_out = BUFFERS


class TestGPT2(OnOurs, unittest.TestCase):
    config = GPT2Config(**SIZES, blocks=2)
