"""The checks that transformers makes of every causal language model of its own, made of ours.

Its test classes (`ModelTesterMixin`, `GenerationTesterMixin`) are not in its wheel, so the checks stand here
under sentences of our own; `test_huggingface` has those of saving, padding, embeddings, hidden states and
checkpointing. `docs/huggingface.md` lists the ones that have no meaning here, with the reason.
"""

from __future__ import annotations

import copy
import inspect

import pytest
import torch
from test_huggingface import CONFIGS, VOCAB
from transformers import AutoModelForCausalLM

import srmlab
from srmlab.errors import UserError
from srmlab.interop.huggingface import SRMForCausalLM, SRMHFConfig

NAMES = ("srm", "srm untied", "hrm", "trm", "gpt2")
TOKENS = torch.randint(1, VOCAB, (2, 7), generator=torch.Generator().manual_seed(3))


@pytest.fixture(params=NAMES)
def model(request) -> SRMForCausalLM:
    return SRMForCausalLM.wrap(srmlab.build(CONFIGS[request.param])).eval()


def test_the_first_argument_is_input_ids(model):
    assert next(iter(inspect.signature(model.forward).parameters)) == "input_ids" == model.main_input_name


def test_two_passes_are_equal(model):
    assert torch.equal(model(TOKENS).logits, model(TOKENS).logits)


def test_a_tuple_holds_what_the_output_holds(model):
    options = {"labels": TOKENS, "output_hidden_states": True, "output_attentions": True}
    named, plain = model(TOKENS, **options), model(TOKENS, **options, return_dict=False)
    assert torch.equal(plain[0], named.loss)
    assert torch.equal(plain[1], named.logits)
    for ours, theirs in zip(plain[2], named.hidden_states, strict=True):
        assert torch.equal(ours, theirs)
    for ours, theirs in zip(plain[3], named.attentions, strict=True):
        assert torch.equal(ours, theirs)


def test_what_is_handed_out_may_be_asked_for_in_the_config(model):
    model.config.output_hidden_states = True
    output = model(TOKENS)
    assert len(output.hidden_states) == model.config.num_hidden_layers + 1
    assert model(TOKENS, output_hidden_states=False).hidden_states is None


def test_the_last_hidden_state_and_attention_keep_their_gradient(model):
    output = model(TOKENS, output_hidden_states=True, output_attentions=True)
    state, weights = output.hidden_states[-1], output.attentions[-1]
    state.retain_grad()
    weights.retain_grad()
    output.logits[0].sum().backward()
    assert weights.grad is not None
    if len(model.model.points[-1].sites) == 1:  # two nets' states side by side are put together afterwards
        assert state.grad is not None


def test_a_copy_is_a_model_of_its_own(model):
    other = copy.deepcopy(model)
    assert torch.equal(other(TOKENS).logits, model(TOKENS).logits)
    with torch.no_grad():
        other.get_input_embeddings().weight.zero_()
    assert model.get_input_embeddings().weight.any()


def test_a_state_dict_goes_round(model):
    other = SRMForCausalLM(SRMHFConfig(srm=model.config.ours.replace(init_seed=9).to_dict())).eval()
    assert not torch.equal(other(TOKENS).logits, model(TOKENS).logits)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(TOKENS).logits, model(TOKENS).logits)


def test_a_config_goes_round(model, tmp_path):
    model.config.save_pretrained(tmp_path)
    assert SRMHFConfig.from_pretrained(tmp_path).to_dict() == model.config.to_dict()


def test_a_device_map_places_the_model(model, tmp_path):
    model.save_pretrained(tmp_path)
    placed = AutoModelForCausalLM.from_pretrained(tmp_path, device_map="cpu")
    assert torch.equal(placed(TOKENS).logits, model(TOKENS).logits)


def test_every_weight_is_trained_or_said_not_to_be(model):
    model.train()
    model(TOKENS, labels=TOKENS).loss.backward()
    untrained = [name for name, weight in model.named_parameters() if weight.grad is None]
    assert untrained == []
    assert all(weight.grad.isfinite().all() for weight in model.parameters())


def test_bfloat16_reads_trains_and_writes(model):
    model.to(torch.bfloat16).train()
    model(TOKENS, labels=TOKENS).loss.backward()
    model.eval()
    assert model.generate(TOKENS, max_new_tokens=3, do_sample=False).shape == (2, 10)


@pytest.mark.parametrize(
    "options",
    [
        {"do_sample": False},
        {"do_sample": True, "top_k": 5, "top_p": 0.9},
        {"do_sample": True, "num_return_sequences": 2},
        {"do_sample": False, "num_beams": 3, "num_return_sequences": 2},
        {"do_sample": True, "num_beams": 2},
        {"do_sample": False, "repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
    ],
    ids=["greedy", "sampling", "several samples", "beams", "sampled beams", "penalties"],
)
def test_every_way_of_writing_writes(model, options):
    torch.manual_seed(0)
    written = model.generate(TOKENS, max_new_tokens=4, **options)
    assert written.shape == (2 * options.get("num_return_sequences", 1), 11)
    assert (written[:, 7:] < VOCAB).all()
    torch.manual_seed(0)
    assert torch.equal(written, model.generate(TOKENS, max_new_tokens=4, use_cache=False, **options))


def test_what_was_seen_while_writing_is_handed_out(model):
    written = model.generate(
        TOKENS, max_new_tokens=3, do_sample=False, return_dict_in_generate=True, output_scores=True,
        output_logits=True, output_hidden_states=True, output_attentions=True,
    )  # fmt: skip
    whole = model(written.sequences[:, :-1], output_hidden_states=True, output_attentions=True)
    for step in range(3):
        torch.testing.assert_close(written.logits[step], whole.logits[:, 6 + step], atol=1e-5, rtol=1e-4)
        last = written.hidden_states[step][-1][:, -1]
        torch.testing.assert_close(last, whole.hidden_states[-1][:, 6 + step], atol=1e-5, rtol=1e-4)
        weights = written.attentions[step][-1][:, :, -1]
        expected = whole.attentions[-1][:, :, 6 + step, : 7 + step]
        torch.testing.assert_close(weights, expected, atol=1e-5, rtol=1e-4)


def test_one_token_may_be_the_whole_prompt(model):
    assert model.generate(TOKENS[:, :1], max_new_tokens=3, do_sample=False).shape == (2, 4)


def test_the_vocabulary_is_not_resized(model):
    with pytest.raises(UserError, match="build a model with another vocab_size"):
        model.resize_token_embeddings(VOCAB + 1)
