"""nnsight, unmodified, traces our models and sees the values that our own cache sees."""

from __future__ import annotations

import pytest
import torch
from small_models import some_tokens

from srmlab.data import byte_tokenizer
from srmlab.models import build, preset

nnsight = pytest.importorskip("nnsight")

# `input` and `output` are nnsight's own words: it shows our `input.streams` as `E_input.streams`, and says so
pytestmark = pytest.mark.filterwarnings("ignore:Module 'model(.model)?' has a submodule named:UserWarning")


@pytest.fixture
def model():
    return build(preset("srm-nano")).eval()


TOKENS = some_tokens(2, 6, vocab=512)


def test_nnsight_reads_the_values_of_the_cache(model):
    expected_logits, cache = model.run_with_cache(TOKENS)
    traced = nnsight.NNsight(model)
    with traced.trace(TOKENS):
        update = traced.layers[3].update.output.save()
        step = traced.layers[3].steps[1].out.output.save()
        pattern = traced.layers[5].connection.pattern.output.save()
        state = traced.layers[7].out.output.save()
        logits = traced.logits.output.save()
    for site, value in {
        "layers.3.update": update,
        "layers.3.steps.1.out": step,
        "layers.5.connection.pattern": pattern,
        "layers.7.out": state,
        "logits": logits,
    }.items():
        torch.testing.assert_close(value, cache[site], rtol=0, atol=1e-5)
    torch.testing.assert_close(logits, expected_logits, rtol=0, atol=1e-5)


def test_nnsight_finds_sites_by_their_path(model):
    _, cache = model.run_with_cache(TOKENS)
    traced = nnsight.NNsight(model)
    with traced.trace(TOKENS):
        value = traced.get("layers.3.steps.1.out").output.save()
    torch.testing.assert_close(value, cache["layers.3.steps.1.out"], rtol=0, atol=1e-5)


def test_nnsight_renames_the_sites_called_input_and_output(model):
    _, cache = model.run_with_cache(TOKENS)
    traced = nnsight.NNsight(model)
    with traced.trace(TOKENS):
        x = traced.E_input.streams.output.save()
        embedding = traced.E_output.embedding.output.save()
    torch.testing.assert_close(x, cache["input.streams"], rtol=0, atol=1e-5)
    torch.testing.assert_close(embedding, cache["output.embedding"], rtol=0, atol=1e-5)


def test_an_intervention_of_nnsight_is_a_hook_of_ours(model):
    def silence(value, hook):  # noqa: ARG001
        value = value.clone()
        value[:, :, 5] = 0
        return value

    expected = model.run_with_hooks(TOKENS, [("layers.3.out", silence)])
    traced = nnsight.NNsight(model)
    with traced.trace(TOKENS):
        changed = traced.layers[3].out.output.clone()
        changed[:, :, 5] = 0
        traced.layers[3].out.output = changed
        logits = traced.logits.output.save()
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)
    assert not torch.allclose(logits, model(TOKENS), atol=1e-3)
    plain = build(preset("srm-nano")).eval()(TOKENS)
    torch.testing.assert_close(model(TOKENS), plain, rtol=0, atol=1e-5)  # gone after the trace


BASELINES = {"hrm-nano": "cycles.1.low.2.out", "trm-nano": "cycles.0.high.out", "gpt2-nano": "blocks.3.out"}


@pytest.mark.parametrize(("name", "site"), BASELINES.items())
def test_the_baselines_are_traced_too(name, site):
    model = build(preset(name)).eval()
    _, cache = model.run_with_cache(TOKENS, names_filter=site)
    traced = nnsight.NNsight(model)
    with traced.trace(TOKENS):
        value = traced.get(site).output.save()
    torch.testing.assert_close(value, cache[site], rtol=0, atol=1e-5)


# Hugging Face's wrapper and a tokenizer: texts of unequal length in one trace

TEXTS = ["The President of the United", "The", "My fellow citizens,"]
STREAMED = {"srm-nano": "model.layers.3.out", "gpt2-nano": "model.blocks.3.out"}


@pytest.fixture
def written_by(tmp_path):
    """A model of a preset with an alphabet of bytes, as nnsight opens it."""
    huggingface = pytest.importorskip("srmlab.interop.huggingface")

    def wrap(name):
        model = build(preset(name).replace(vocab_size=257)).eval()
        tokenizer = huggingface.export_tokenizer(byte_tokenizer(), tmp_path, model.config.context)
        theirs = huggingface.SRMForCausalLM.wrap(model).eval()
        traced = nnsight.TransformersModel(theirs, task="text-generation", tokenizer=tokenizer)
        return theirs, tokenizer, traced

    return wrap


@pytest.mark.parametrize(("name", "site"), STREAMED.items())
def test_an_edit_in_a_padded_batch_reaches_every_row(written_by, name, site):
    theirs, tokenizer, traced = written_by(name)

    def edited(texts):
        with traced.trace(texts):
            changed = traced.get(site).output.clone()
            if changed.ndim == 4:
                changed[:, :, 2] = 0  # stream 2
            else:
                changed[..., :64] = 0  # one stream: half of it
            traced.get(site).output = changed
            logits = traced.model.logits.output.save()
        return logits[:, -1]

    together = edited(TEXTS)
    alone = torch.cat([edited([text]) for text in TEXTS])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-5)
    ids = tokenizer(TEXTS, padding=True, return_tensors="pt")
    untouched = theirs(**ids).logits[:, -1]
    assert ((together - untouched).abs().amax(-1) > 1e-3).all()
