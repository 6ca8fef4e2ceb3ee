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

SPEECH = "The President of the United States, my fellow citizens, and the people of the several States"
TEXTS = [SPEECH[start : start + size] for start, size in zip(range(16), (27, 1, 9, 4) * 4, strict=True)]
EDITED = {  # a site, and what of its last two axes becomes zero
    "srm-nano": ("layers.3.out", (2, slice(None))),  # stream 2
    "hrm-nano": ("cycles.1.low.2.out", (slice(None), slice(64))),
    "gpt2-nano": ("blocks.3.out", (slice(None), slice(64))),
    "ouro-nano": ("loops.1.out", (slice(None), slice(64))),
    "mor-nano": ("recursions.1.out", (slice(None), slice(None))),  # half would not change what it writes
}


class Written:
    """A model of a preset with an alphabet of bytes as nnsight opens it, and an edit of one site."""

    def __init__(self, name, folder):
        huggingface = pytest.importorskip("srmlab.interop.huggingface")
        self.site, self.place = EDITED[name]
        self.ours = build(preset(name).replace(vocab_size=257, init_seed=1)).eval()
        self.tokenizer = huggingface.export_tokenizer(byte_tokenizer(), folder, self.ours.config.context)
        self.theirs = huggingface.SRMForCausalLM.wrap(self.ours).eval()
        self.traced = nnsight.TransformersModel(self.theirs, task="text-generation", tokenizer=self.tokenizer)

    def ids(self, texts):
        return self.tokenizer(texts, padding=True, return_tensors="pt")

    def silence(self, value, hook):  # noqa: ARG002
        value = value.clone()
        value[..., *self.place] = 0
        return value

    def edited(self, texts):
        """The last logits of a trace in which the site is edited."""
        site, place = f"model.{self.site}", self.place
        with self.traced.trace(texts):
            changed = self.traced.get(site).output.clone()
            changed[..., *place] = 0
            self.traced.get(site).output = changed
            logits = self.traced.model.logits.output.save()
        return logits[:, -1]

    def continued(self, texts, steps):
        """The tokens that are written while the site is edited at every step."""
        site, place = f"model.{self.site}", self.place
        with self.traced.generate(texts, max_new_tokens=steps, do_sample=False) as tracer:
            for _ in tracer.iter[:steps]:
                changed = self.traced.get(site).output.clone()
                changed[..., *place] = 0
                self.traced.get(site).output = changed
            written = tracer.result.save()
        return written[:, -steps:]


@pytest.fixture(params=EDITED)
def written(request, tmp_path) -> Written:
    return Written(request.param, tmp_path)


def test_an_edit_in_a_padded_batch_reaches_every_row(written):
    with torch.no_grad():
        untouched = written.theirs(**written.ids(TEXTS)).logits[:, -1]
        with written.ours.hooks([(written.site, written.silence)]):
            alone = torch.cat([written.theirs(**written.ids([text])).logits[:, -1] for text in TEXTS])
    assert ((alone - untouched).abs().amax(-1) > 1e-3).all()
    for batch in (1, 2, 3, 7, 16):
        torch.testing.assert_close(written.edited(TEXTS[:batch]), alone[:batch], rtol=0, atol=1e-4)


def test_an_edit_reaches_every_row_at_every_step_of_writing(written):
    how = {"max_new_tokens": 4, "do_sample": False}
    with written.ours.hooks([(written.site, written.silence)]):
        alone = torch.cat([written.theirs.generate(**written.ids([text]), **how)[:, -4:] for text in TEXTS])
    for batch in (1, 3, 16):
        assert torch.equal(written.continued(TEXTS[:batch], 4), alone[:batch])
    assert not torch.equal(written.theirs.generate(**written.ids(TEXTS), **how)[:, -4:], alone)
