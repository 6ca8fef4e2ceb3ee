"""Our models behind Hugging Face's interface: the same weights, the same logits, the same text."""

from __future__ import annotations

import copy
import importlib
import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

import srmlab
from models.small_models import SMALL
from srmlab.errors import UserError
from srmlab.interop.huggingface import SRMCache, SRMForCausalLM, SRMHFConfig, SRMModel
from srmlab.models import GPT2Config, HRMConfig, LanguageModel, ModelConfig, SRMConfig

VOCAB, CONTEXT = 61, 48
SIZES = {"vocab_size": VOCAB, "context": CONTEXT}
SRM_SMALL = SRMConfig(
    **SIZES,
    embedding_dim=16,
    streams=3,
    stream_dim=16,
    mlp_dim=24,
    token_heads=2,
    stream_heads=2,
    head_dim=8,
    depth=3,
    gradient_depth=2,
    post_steps=1,
)
HRM_SMALL = HRMConfig(
    **SIZES, dim=16, heads=2, head_dim=8, mlp_dim=24, low_blocks=2, high_blocks=2, low_cycles=2, high_cycles=2
)
FAMILY = ("ouro", "hyper", "huginn", "mor", "mor by token")
CONFIGS: dict[str, ModelConfig] = {
    "srm": SRM_SMALL,
    "srm untied": SRM_SMALL.replace(tied=False, init_seed=1),
    "srm random": SRM_SMALL.replace(order="random:2", order_seed=5),
    "hrm": HRM_SMALL,
    "trm": HRM_SMALL.replace(shared_net=True, gradient="last-cycle"),
    "trm untied": HRM_SMALL.replace(shared_net=True, tied=False),
    "gpt2": GPT2Config(**SIZES, dim=16, blocks=2, heads=2, mlp_dim=24, dropout=0.1),
    "gpt2 untied": GPT2Config(**SIZES, dim=16, blocks=2, heads=2, mlp_dim=24, tied=False),
    **{name: SMALL[name].replace(**SIZES) for name in FAMILY},
}
ARCHITECTURES = ("srm", "hrm", "gpt2", "ouro", "hyper", "huginn", "mor")
every_model = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
each_architecture = pytest.mark.parametrize(
    "config", [CONFIGS[name] for name in ARCHITECTURES], ids=ARCHITECTURES
)
LENGTHS = (9, 4, 9, 6)  # of the rows of a ragged batch


@pytest.fixture
def ours(config: ModelConfig) -> LanguageModel:
    return srmlab.build(config).eval()


@pytest.fixture
def theirs(ours: LanguageModel) -> SRMForCausalLM:
    return SRMForCausalLM.wrap(ours).eval()


@pytest.fixture
def tokens() -> torch.Tensor:
    return torch.randint(1, VOCAB, (len(LENGTHS), max(LENGTHS)), generator=torch.Generator().manual_seed(0))


def padded(tokens: torch.Tensor, side: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The batch with its rows cut to LENGTHS and filled up with token 0, and its mask."""
    filled, mask = torch.zeros_like(tokens), torch.zeros_like(tokens)
    for row, length in enumerate(LENGTHS):
        place = slice(tokens.shape[1] - length, None) if side == "left" else slice(length)
        filled[row, place], mask[row, place] = tokens[row, :length], 1
    return filled, mask


# Saving and loading


@every_model
def test_a_saved_model_comes_back_bitwise_through_the_auto_classes(ours, theirs, tokens, tmp_path):
    theirs.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(loaded) is SRMForCausalLM
    assert not loaded.training
    assert loaded.model.config == ours.config
    state = loaded.model.state_dict()
    assert state.keys() == ours.state_dict().keys()
    assert all(torch.equal(value, state[name]) for name, value in ours.state_dict().items())
    assert torch.equal(loaded(tokens).logits, ours(tokens))
    assert loaded.num_parameters() == ours.num_parameters()


@every_model
def test_the_file_holds_every_weight_once(ours, theirs, tmp_path):
    theirs.save_pretrained(tmp_path)
    stored = sum(weight.numel() for weight in load_file(tmp_path / "model.safetensors").values())
    assert stored == ours.num_parameters() + sum(buffer.numel() for buffer in ours.buffers())


@pytest.mark.parametrize("config", [SRM_SMALL])
def test_a_loaded_model_saves_the_stub_and_not_a_copy_of_our_code(theirs, tmp_path):
    theirs.save_pretrained(tmp_path / "first")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "first")
    SRMForCausalLM.register_for_auto_class("AutoModelForCausalLM")  # as `trust_remote_code` does
    loaded.save_pretrained(tmp_path / "second")
    names = {path.name for path in (tmp_path / "second").iterdir()}
    assert names == {"config.json", "generation_config.json", "model.safetensors", "modeling_srm.py"}


@pytest.mark.parametrize("config", [SRM_SMALL])
@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda weights: weights.pop("model.z0"), "1 missing weights such as model.z0: .* export it again"),
        (
            lambda weights: weights.update(extra=torch.zeros(1)),
            "1 unexpected weights such as extra: .* export it again",
        ),
    ],
    ids=["missing", "left over"],
)
def test_weights_that_do_not_fit_the_config_are_refused(theirs, tmp_path, change, complaint):
    theirs.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    change(weights)
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=complaint):
        AutoModelForCausalLM.from_pretrained(tmp_path)


@pytest.mark.parametrize("config", [SRM_SMALL])
def test_a_model_loads_in_bfloat16(ours, theirs, tokens, tmp_path):
    theirs.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert loaded.dtype == torch.bfloat16
    assert torch.equal(loaded(tokens).logits, ours.to(torch.bfloat16)(tokens))


@every_model
def test_a_model_made_from_its_config_alone_has_the_weights_of_our_build(config, ours, tokens):
    fresh = AutoModelForCausalLM.from_config(SRMHFConfig(srm=config.to_dict())).eval()
    assert torch.equal(fresh(tokens).logits, ours(tokens))


@every_model
def test_the_config_says_in_their_words_what_ours_says(config, theirs, tmp_path):
    theirs.save_pretrained(tmp_path)
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert loaded.ours == config
    assert (loaded.vocab_size, loaded.max_position_embeddings) == (VOCAB, CONTEXT)
    assert loaded.tie_word_embeddings == config.tied
    assert theirs.get_input_embeddings().weight.shape[0] == VOCAB
    assert (theirs.get_output_embeddings() is None) == config.tied


def test_a_config_of_ours_that_cannot_work_is_refused_by_theirs():
    with pytest.raises(UserError, match="streams = 0: must be at least 1"):
        SRMHFConfig(srm={"architecture": "srm", "streams": 0})


@pytest.mark.parametrize("config", [SRM_SMALL])
def test_wrapping_copies_nothing(ours, theirs):
    assert theirs.model is ours
    weight = next(ours.parameters())
    assert any(parameter is weight for parameter in theirs.parameters())


# Reading


@each_architecture
def test_the_loss_and_its_gradient_are_ours(ours, theirs, tokens):
    labels = tokens.clone()
    labels[0, 3:5] = -100
    theirs(tokens, labels=labels).loss.backward()
    gradients = {name: weight.grad for name, weight in ours.named_parameters()}
    ours.zero_grad()
    loss = ours(tokens[:, :-1], labels[:, 1:])
    loss.backward()
    torch.testing.assert_close(theirs(tokens, labels=labels).loss, loss)
    for name, weight in ours.named_parameters():
        torch.testing.assert_close(gradients[name], weight.grad, atol=1e-6, rtol=1e-4)


@each_architecture
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_padded_row_has_the_logits_it_has_alone(ours, theirs, tokens, side):
    filled, mask = padded(tokens, side)
    logits = theirs(filled, attention_mask=mask).logits
    for row, length in enumerate(LENGTHS):
        alone = ours(tokens[row : row + 1, :length])[0]
        torch.testing.assert_close(logits[row][mask[row] == 1], alone, atol=1e-5, rtol=1e-5)


@each_architecture
def test_right_padding_without_a_mask_is_harmless(ours, theirs, tokens):
    filled, _ = padded(tokens, "right")
    for row, length in enumerate(LENGTHS):
        alone = ours(tokens[row : row + 1, :length])[0]
        torch.testing.assert_close(theirs(filled).logits[row, :length], alone, atol=1e-5, rtol=1e-5)


@each_architecture
@pytest.mark.parametrize("keep", [1, 3, torch.tensor([0, 4])], ids=["1", "3", "0 and 4"])
def test_only_the_logits_asked_for_are_given(ours, theirs, tokens, keep):
    whole = ours(tokens)
    wanted = whole[:, -keep:] if isinstance(keep, int) else whole[:, keep]
    torch.testing.assert_close(theirs(tokens, logits_to_keep=keep).logits, wanted)
    with_loss = theirs(tokens, labels=tokens, logits_to_keep=keep)
    torch.testing.assert_close(with_loss.logits, wanted)
    torch.testing.assert_close(with_loss.loss, theirs(tokens, labels=tokens).loss)


@each_architecture
def test_text_read_in_parts_has_the_logits_of_the_whole(ours, theirs, tokens):
    first = theirs(tokens[:, :4], use_cache=True)
    second = theirs(tokens[:, 4:8], past_key_values=first.past_key_values)
    third = theirs(tokens[:, 8:], past_key_values=second.past_key_values)
    assert third.past_key_values.get_seq_length() == tokens.shape[1]
    logits = torch.cat([part.logits for part in (first, second, third)], dim=1)
    torch.testing.assert_close(logits, ours(tokens), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("config", [SRM_SMALL])
def test_a_misspelt_keyword_is_an_error(theirs, tokens):
    with pytest.raises(TypeError, match="atention_mask"):
        theirs(tokens, atention_mask=torch.ones_like(tokens))


@each_architecture
def test_the_positions_of_the_mask_may_be_given(theirs, tokens):
    filled, mask = padded(tokens, "left")
    positions = (mask.cumsum(-1) - 1).clamp_min(0)
    given = theirs(filled, attention_mask=mask, position_ids=positions).logits
    assert torch.equal(given, theirs(filled, attention_mask=mask).logits)


@each_architecture
@pytest.mark.parametrize("side", ["left", "right"])
def test_the_loss_of_a_padded_batch_counts_what_real_tokens_predict(ours, theirs, tokens, side):
    filled, mask = padded(tokens, side)
    labels = filled.masked_fill(mask == 0, -100)
    total = sum(
        ours(tokens[row : row + 1, : n - 1], tokens[row : row + 1, 1:n]) * (n - 1)
        for row, n in enumerate(LENGTHS)
    )
    loss = theirs(filled, attention_mask=mask, labels=labels).loss
    torch.testing.assert_close(loss, total / (sum(LENGTHS) - len(LENGTHS)))
    labelled = (labels[:, 1:] != -100).sum()  # as Trainer counts them
    handed = theirs(filled, attention_mask=mask, labels=labels, num_items_in_batch=labelled).loss
    torch.testing.assert_close(handed, loss)


@pytest.mark.parametrize("config", [SRM_SMALL])
def test_labels_that_are_shifted_already_are_used_as_they_are(ours, theirs, tokens):
    shifted = torch.cat((tokens[:, 1:], tokens[:, :1]), dim=1)  # the last has one too, as in a part of a text
    loss = theirs(tokens, labels=tokens, shift_labels=shifted).loss
    torch.testing.assert_close(loss, ours(tokens, shifted))
    assert theirs(tokens, shift_labels=shifted, logits_to_keep=1).loss == loss


@each_architecture
def test_a_padded_batch_is_one_pass(ours, theirs, tokens):
    filled, mask = padded(tokens, "left")
    called = []
    handles = [
        site.register_forward_hook(lambda *_, name=name: called.append(name))
        for name, site in ours.sites.items()
    ]
    theirs(filled, attention_mask=mask)
    assert called == ours.site_names
    called.clear()
    theirs.generate(filled, attention_mask=mask, max_new_tokens=3, do_sample=False)
    assert called == 3 * ours.site_names
    for handle in handles:
        handle.remove()


@each_architecture
def test_embeddings_in_place_of_tokens_give_the_same_logits_and_text(theirs, tokens):
    filled, mask = padded(tokens, "left")
    embeddings = theirs.get_input_embeddings()(filled)
    assert embeddings.shape[-1] == theirs.config.hidden_size
    given = theirs(inputs_embeds=embeddings, attention_mask=mask).logits
    assert torch.equal(given, theirs(filled, attention_mask=mask).logits)
    options = {"attention_mask": mask, "max_new_tokens": 5, "do_sample": False}
    written = theirs.generate(inputs_embeds=embeddings, **options)
    assert torch.equal(written, theirs.generate(filled, **options)[:, -5:])


@each_architecture
def test_hidden_states_are_the_input_and_the_state_at_every_point(ours, theirs, tokens):
    states = theirs(tokens, output_hidden_states=True).hidden_states
    assert len(states) == theirs.config.num_hidden_layers + 1 == len(ours.points) + 1
    _, cache = ours.run_with_cache(tokens)
    assert torch.equal(states[0], cache[ours.site_names[0]].flatten(2))
    for state, point in zip(states[1:], ours.points, strict=True):
        torch.testing.assert_close(state, ours.state_at(point, cache).flatten(2), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        ours.read_out(states[-1].unflatten(-1, (len(ours.streams), -1))) @ ours.unembedding.T, ours(tokens)
    )


@each_architecture
def test_attentions_are_the_pattern_of_every_call_and_leave_padding_out(ours, theirs, tokens):
    filled, mask = padded(tokens, "left")
    patterns = theirs(filled, attention_mask=mask, output_attentions=True).attentions
    assert len(patterns) == ours.attention_calls
    real = mask[:, None, :, None] * mask[:, None, None, :]
    for pattern in patterns:
        assert pattern.shape == (len(filled), theirs.config.num_attention_heads, *filled.shape[1:] * 2)
        assert (pattern.triu(1) == 0).all()
        assert (pattern * mask[:, None, :, None] * (1 - real) == 0).all()
        torch.testing.assert_close(pattern.sum(-1), torch.ones_like(pattern[..., 0]))


@every_model
def test_another_table_of_embeddings_is_used_and_stays_tied(config, theirs, tokens):
    old, new = theirs.get_input_embeddings(), torch.nn.Embedding(VOCAB, theirs.config.hidden_size)
    theirs.set_input_embeddings(new)
    assert theirs.get_input_embeddings() is new
    assert all(parameter is not old.weight for parameter in theirs.parameters())
    theirs(tokens, labels=tokens).loss.backward()
    assert (theirs.model.unembedding is new.weight) == config.tied
    assert new.weight.grad is not None


@pytest.mark.parametrize(
    "config", [SRM_SMALL, HRM_SMALL, CONFIGS["gpt2"].replace(dropout=0.0), CONFIGS["mor by token"]]
)
def test_gradient_checkpointing_computes_again_and_gets_the_same_gradient(ours, theirs, tokens, monkeypatch):
    filled, mask = padded(tokens, "left")
    calls = []
    for unit in ours.units:
        forward = unit.forward
        monkeypatch.setattr(unit, "forward", lambda *a, f=forward: (calls.append(1), f(*a))[1])

    def gradients():
        calls.clear()
        theirs.zero_grad()
        theirs(filled, attention_mask=mask, labels=filled).loss.backward()
        return len(calls), [parameter.grad.clone() for parameter in ours.parameters()]

    theirs.train()
    once, plain = gradients()
    theirs.gradient_checkpointing_enable()
    assert theirs.is_gradient_checkpointing
    with pytest.raises(UserError, match="pass use_cache=False"):
        theirs(tokens, use_cache=True)
    twice, again = gradients()
    assert twice > once
    for expected, gradient in zip(plain, again, strict=True):
        torch.testing.assert_close(gradient, expected)
    theirs.gradient_checkpointing_disable()
    assert gradients()[0] == once


def test_the_base_model_is_ours():
    ours = srmlab.build(SRM_SMALL)
    assert SRMForCausalLM.wrap(ours).base_model is ours


@pytest.mark.parametrize("config", [SRM_SMALL])
def test_a_plain_pass_keeps_no_cache(theirs, tokens):
    assert theirs(tokens).past_key_values is None


# Writing


@every_model
@pytest.mark.parametrize("use_cache", [True, False])
def test_greedy_text_is_ours(ours, theirs, tokens, use_cache):
    written = theirs.generate(tokens, max_new_tokens=12, do_sample=False, use_cache=use_cache)
    assert torch.equal(written, srmlab.generate(ours, tokens, 12, temperature=0))


@each_architecture
def test_after_the_prompt_only_the_new_token_is_read(ours, theirs, tokens, monkeypatch):
    read = []
    hidden = ours.hidden
    monkeypatch.setattr(ours, "hidden", lambda t, here: (read.append(t.shape[1]), hidden(t, here))[1])
    theirs.generate(tokens, max_new_tokens=4, do_sample=False)
    assert read == [tokens.shape[1], 1, 1, 1]


@each_architecture
@pytest.mark.parametrize("use_cache", [True, False])
def test_a_left_padded_row_is_continued_as_it_is_alone(ours, theirs, tokens, use_cache):
    filled, mask = padded(tokens, "left")
    written = theirs.generate(
        filled, attention_mask=mask, max_new_tokens=10, do_sample=False, use_cache=use_cache
    )
    for row, length in enumerate(LENGTHS):
        alone = srmlab.generate(ours, tokens[row : row + 1, :length], 10, temperature=0)
        assert torch.equal(written[row, -10:], alone[0, length:])


@each_architecture
def test_a_prompt_read_in_chunks_is_continued_as_in_one(theirs, tokens):
    filled, mask = padded(tokens, "left")
    options = {"attention_mask": mask, "max_new_tokens": 4, "do_sample": False}
    chunk = filled.shape[1] - 1
    assert bool(mask[:, :chunk].any(-1).all())
    chunked = theirs.generate(filled, prefill_chunk_size=chunk, **options)
    assert torch.equal(chunked, theirs.generate(filled, **options))


@each_architecture
def test_beam_search_is_the_same_with_and_without_the_cache(theirs, tokens):
    filled, mask = padded(tokens, "left")
    options = {"attention_mask": mask, "max_new_tokens": 10, "num_beams": 4, "do_sample": False}
    cached = theirs.generate(filled, **options)
    assert torch.equal(cached, theirs.generate(filled, use_cache=False, **options))
    greedy = theirs.generate(filled, **{**options, "num_beams": 1})
    assert not torch.equal(cached, greedy)  # else the beams were never reordered


@pytest.mark.parametrize("config", [CONFIGS[name] for name in ("srm", "hrm", "gpt2")])
def test_text_ends_at_the_end_token_as_ours_does(ours, theirs, tokens):
    plain = srmlab.generate(ours, tokens, 12, temperature=0)
    end = int(plain[0, tokens.shape[1] + 3])
    written = theirs.generate(tokens, max_new_tokens=12, do_sample=False, eos_token_id=end, pad_token_id=end)
    expected = srmlab.generate(ours, tokens, 12, temperature=0, stop_token=end)
    assert torch.equal(written, expected)
    assert not torch.equal(written, plain)


@each_architecture
def test_a_cache_of_the_users_own_serves_two_calls(ours, theirs, tokens):
    cache = SRMCache(ours)
    first = theirs.generate(tokens, max_new_tokens=5, do_sample=False, past_key_values=cache)
    second = theirs.generate(first, max_new_tokens=5, do_sample=False, past_key_values=cache)
    assert torch.equal(second, srmlab.generate(ours, tokens, 10, temperature=0))


def test_text_goes_on_from_the_cache_that_generate_returns():
    theirs = SRMForCausalLM.wrap(srmlab.build(SRM_SMALL).eval())
    tokens, how = torch.randint(0, VOCAB, (2, 5)), {"max_new_tokens": 4, "do_sample": False}
    first = theirs.generate(tokens, return_dict_in_generate=True, **how)
    second = theirs.generate(first.sequences, past_key_values=first.past_key_values, **how)
    assert torch.equal(second, theirs.generate(tokens, max_new_tokens=8, do_sample=False))


@every_model
@torch.no_grad()
def test_rows_of_a_cache_are_chosen_and_repeated(theirs, tokens):
    filled, mask = padded(tokens, "left")
    first = theirs(filled[:, :-1], attention_mask=mask[:, :-1], use_cache=True).past_key_values
    whole = theirs(filled, attention_mask=mask).logits[:, -1]
    chosen, several = torch.tensor([2, 0, 0, 3, 1]), copy.deepcopy(first)
    first.batch_select_indices(chosen)
    several.batch_repeat_interleave(2)
    for cache, rows in ((first, chosen), (several, torch.arange(4).repeat_interleave(2))):
        assert cache.batch_size == len(rows)
        logits = theirs(filled[rows, -1:], past_key_values=cache).logits[:, -1]
        torch.testing.assert_close(logits, whole[rows], atol=1e-5, rtol=1e-5)


# What cannot work


@pytest.mark.parametrize("config", [SRM_SMALL])
@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda m, t: m(t, attention_mask=torch.tensor([[1, 0, 1, 1]])), "one unbroken run of tokens"),
        (lambda m, t: m(t, attention_mask=torch.tensor([[0, 0, 0, 0]])), "one unbroken run of tokens"),
        (lambda m, t: m(t, attention_mask=torch.ones(1, 3)), r"shape \[1, 3\]: need \[1, 4\]"),
        (
            lambda m, t: m(t, attention_mask=torch.tensor([[1, 1, 0, 0]]), use_cache=True),
            'set tokenizer.padding_side = "left"',
        ),
        (lambda m, t: m(t, past_key_values=DynamicCache()), "is a DynamicCache: .* leave it out"),
        (
            lambda m, t: m(t, position_ids=torch.tensor([[1, 2, 3, 4]])),
            "positions count from each row's first",
        ),
        (lambda m, t: m(t, inputs_embeds=m.get_input_embeddings()(t)), "one of the two"),
        (lambda m, _: m(), "one of the two"),
        (lambda m, _: m(inputs_embeds=torch.zeros(1, 4, 7)), r"shape \[1, 4, 7\]: need \[batch, token, 16\]"),
        (lambda m, _: m.set_attn_implementation("eager"), "'eager': attention is always torch's"),
        (lambda m, _: SRMForCausalLM._from_config(m.config, attn_implementation="eager"), "leave it out"),
        (
            lambda m, _: m.set_input_embeddings(torch.nn.Embedding(3, 16)),
            r"\[3, 16\]: this model's are \[61, 16\]",
        ),
        (
            lambda m, t: m(
                t,
                attention_mask=torch.tensor([[0, 1, 1, 1, 1, 1, 1, 1]]),
                past_key_values=m(t, use_cache=True).past_key_values,
            ),
            "not the padding that the cached tokens were read with",
        ),
        (lambda m, t: m.generate(t, max_new_tokens=CONTEXT), "lower max_new_tokens"),
        (
            lambda m, t: m.generate(t, max_new_tokens=9, prompt_lookup_num_tokens=2),
            "without .* prompt lookup",
        ),
        (
            lambda m, t: m.generate(
                t, attention_mask=torch.tensor([[0, 0, 1, 1]]), max_new_tokens=2, prefill_chunk_size=2
            ),
            "prefill_chunk_size = 2: the first chunk of a padded row would be padding alone",
        ),
        (lambda m, _: m.resize_token_embeddings(99), "build a model with another vocab_size"),
    ],
)
def test_what_cannot_work_is_refused_with_the_fix(theirs, call, complaint):
    with pytest.raises(UserError, match=complaint) as refusal:
        call(theirs, torch.tensor([[5, 6, 5, 6]]))
    assert "\n" not in str(refusal.value)


def test_without_transformers_the_error_names_the_extra(monkeypatch):
    monkeypatch.delitem(sys.modules, "srmlab.interop.huggingface")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UserError, match=r'pip install "srmlab\[hf\]"'):
        importlib.import_module("srmlab.interop.huggingface")


def test_the_stub_in_a_folder_names_what_the_config_says_it_holds(tmp_path: Path):
    SRMForCausalLM.wrap(srmlab.build(SRM_SMALL)).save_pretrained(tmp_path)
    names = json.loads((tmp_path / "config.json").read_text())["auto_map"].values()
    stub: dict[str, object] = {}
    exec((tmp_path / "modeling_srm.py").read_text(), stub)
    assert [stub[name.removeprefix("modeling_srm.")] for name in names] == [
        SRMHFConfig,
        SRMModel,
        SRMForCausalLM,
    ]
