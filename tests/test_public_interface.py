"""The names of the public interface are there after `import srmlab` alone."""

import importlib
import inspect
import subprocess
import sys
import typing

import numpy as np
import pytest
import torch

import srmlab
from srmlab.errors import UserError


def test_the_rooms_are_reached_through_the_package():
    names = ("analysis.routing", "data.prepare", "figures")
    code = f"import srmlab; print({', '.join(f'srmlab.{name}.__name__' for name in names)})"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["routing", "prepare", "srmlab.figures"]


def test_all_rooms_are_there_by_themselves_and_listed():
    code = "import srmlab as s; print(*(getattr(s, room).__name__ for room in s.ROOMS if room in dir(s)))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.split() == [f"srmlab.{room}" for room in srmlab.ROOMS]
    assert all(f"`{room}`" in (srmlab.__doc__ or "") for room in srmlab.ROOMS)


@pytest.mark.parametrize("room", ["", *srmlab.ROOMS])
def test_every_public_name_says_in_its_own_words_what_it_is(room):
    module = importlib.import_module(f"srmlab.{room}".rstrip("."))
    silent = []
    for name in getattr(module, "__all__", ()):
        value = getattr(module, name)
        written = vars(value).get("__doc__") if isinstance(value, type) else inspect.getdoc(value)
        if not callable(value) or typing.get_origin(value):
            continue
        if not written or written.startswith(f"{name}("):  # which dataclasses write by themselves
            silent.append(name)
    assert not silent


def test_what_comes_in_by_the_front_door_is_checked():
    with pytest.raises(
        UserError, match=r"build takes a config, such as preset\('srm-nano'\), not 'srm-nano'"
    ):
        srmlab.build("srm-nano")
    model = srmlab.build(srmlab.preset("srm-nano"))
    for tokens, kind in (([1, 2], "list"), (np.zeros((1, 2), int), "ndarray")):
        with pytest.raises(UserError, match=rf"a tensor \[batch, token\] of ids, not {kind}"):
            model(tokens)
    with pytest.raises(UserError, match="this model has no tokenizer"):
        model("hi")


def test_every_name_is_ours_even_after_nnsight():
    """nnsight gives every object a method `save`; a name found late would be hidden by it."""
    code = "import nnsight, srmlab; print(*(getattr(srmlab, name).__module__ for name in srmlab.__all__))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {module.split(".")[0] for module in told.stdout.split()} == {"srmlab"}


def test_the_shipped_model_and_its_tokenizer_are_opened_by_name(tmp_path, monkeypatch):
    model, tokenizer = srmlab.load("srm-nano"), srmlab.load_tokenizer("srm-nano")
    assert tokenizer.vocab_size == model.config.vocab_size
    monkeypatch.chdir(tmp_path)
    srmlab.save(srmlab.build(srmlab.preset("srm-nano").replace(init_seed=5)), "srm-nano")
    assert srmlab.load("srm-nano").config.init_seed == 5  # a folder of that name comes first


def test_texts_of_unequal_length_become_one_batch_with_its_mask():
    model, tokenizer = srmlab.load("srm-nano"), srmlab.load_tokenizer("srm-nano")
    texts = ["My fellow citizens", "The"]
    tokens, mask = tokenizer(texts)
    logits = model(tokens, attention_mask=mask)
    assert torch.equal(model(tokenizer(texts)), logits)
    cached = model.run_with_cache(tokenizer(texts), "logits")[1]["logits"]
    torch.testing.assert_close(cached, logits.detach(), rtol=0, atol=1e-4)
    written = srmlab.generate(model, tokenizer(texts), 8, temperature=0)
    for row, text in enumerate(texts):
        alone = tokenizer(text)
        assert torch.equal(written[row, -8:], srmlab.generate(model, alone.tokens, 8, temperature=0)[0, -8:])
        assert alone.attention_mask.all()
        assert tokens[row, mask[row] == 1].tolist() == alone.tokens[0].tolist() == tokenizer.encode(text)
        torch.testing.assert_close(logits[row, -1], model(alone.tokens)[0, -1], rtol=0, atol=1e-4)
    with pytest.raises(UserError, match="a text is empty"):
        tokenizer(["a", ""])


@pytest.mark.parametrize("prompt", ["My fellow", [1, 2], [[1, 2]]])
def test_generate_says_in_one_line_what_it_takes(prompt):
    with pytest.raises(UserError, match=r"ids, not (str|list): use tokenizer\(texts\)") as refusal:
        srmlab.generate(srmlab.load("srm-nano"), prompt)
    assert "\n" not in str(refusal.value)


def test_a_misspelt_shipped_model_is_answered_with_its_name():
    with pytest.raises(UserError, match=r"srm-nan does not exist: .*; did you mean 'srm-nano'"):
        srmlab.load("srm-nan")


def test_completion_offers_what_the_package_offers_and_no_import_of_its_own():
    assert {"load", "generate", "analysis", "__version__"} <= set(dir(srmlab))
    assert not {"importlib", "TYPE_CHECKING", "ROOMS"} & set(dir(srmlab))
