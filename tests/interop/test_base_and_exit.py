"""`AutoModel`, early exit in `generate`, caches that are not ours, and LoRA."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from transformers import AutoModel, AutoModelForCausalLM, StaticCache

import srmlab
from srmlab.errors import UserError
from srmlab.interop.huggingface import SRMForCausalLM, SRMModel, export, lora_targets, quietly
from srmlab.models import Exit, GPT2Config, HRMConfig, MoRConfig
from subjects import SMALL

TOKENS = torch.randint(97, (2, 9), generator=torch.Generator().manual_seed(0))
CONFIGS = {
    "srm": SMALL,
    "hrm": HRMConfig(
        vocab_size=97, context=32, dim=16, heads=2, head_dim=8, mlp_dim=24, low_blocks=1, high_blocks=1
    ),
    "gpt2": GPT2Config(vocab_size=97, context=32, dim=16, blocks=2, heads=2, mlp_dim=24, tied=False),
}

MOR = MoRConfig(
    vocab_size=97, context=32, dim=16, heads=2, kv_heads=0, head_dim=8, mlp_dim=24, core=2, recursions=3,
    choice="token", keys="shared",
)  # fmt: skip


@pytest.fixture(scope="module")
def wrapped() -> SRMForCausalLM:
    return SRMForCausalLM.wrap(srmlab.build(SMALL)).eval()


@pytest.mark.parametrize("name", CONFIGS)
def test_the_model_without_its_head_reads_an_export_and_gives_what_the_logits_are_of(name, tmp_path):
    ours = srmlab.build(CONFIGS[name]).eval()
    with quietly():
        export(ours, tmp_path)
        base, whole = (kind.from_pretrained(tmp_path).eval() for kind in (AutoModel, AutoModelForCausalLM))
    assert type(base) is SRMModel
    with torch.no_grad():
        found, expected = base(TOKENS, output_hidden_states=True), whole(TOKENS, output_hidden_states=True)
    assert found.last_hidden_state.shape == (2, 9, base.config.hidden_size)
    torch.testing.assert_close(found.last_hidden_state @ base.model.unembedding.T, expected.logits)
    assert all(map(torch.equal, found.hidden_states, expected.hidden_states))
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1, 1]] * 2)
    with torch.no_grad():
        padded, alone = base(TOKENS, attention_mask=mask), base(TOKENS[:, 2:], use_cache=True)
    torch.testing.assert_close(padded.last_hidden_state[:, 2:], alone.last_hidden_state, rtol=0, atol=1e-4)
    assert alone.past_key_values.get_seq_length() == 7
    assert getattr(whole, whole.base_model_prefix) is whole.base_model


def test_an_export_opens_by_itself_as_a_base_model(tmp_path):
    with quietly():
        export(srmlab.build(SMALL), tmp_path)
    code = (
        "import sys; from transformers import AutoModel; "
        "print(type(AutoModel.from_pretrained(sys.argv[1], trust_remote_code=True)).__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "SRMModel"


@pytest.mark.parametrize("tolerance", [0.0, 0.5])
def test_generate_exits_where_ours_does(wrapped, tolerance):
    theirs, ours = Exit(tolerance), Exit(tolerance)
    written = wrapped.generate(TOKENS, max_new_tokens=8, do_sample=False, exit=theirs)
    expected = srmlab.generate(wrapped.model, TOKENS, 8, temperature=0, exit=ours)
    assert written.equal(expected)
    assert theirs.mean_levels == ours.mean_levels
    assert (ours.mean_levels < wrapped.model.depth) == (tolerance > 0)
    by_number = wrapped.generate(TOKENS, max_new_tokens=8, do_sample=False, exit=tolerance)
    assert by_number.equal(expected)


def test_exit_is_refused_where_it_is_not_defined(wrapped):
    with pytest.raises(UserError, match="greedy search or sampling"):
        wrapped.generate(TOKENS, max_new_tokens=4, num_beams=2, exit=0.1)
    with pytest.raises(UserError, match="and with the cache"):
        wrapped.generate(TOKENS, max_new_tokens=4, use_cache=False, exit=0.1)
    with pytest.raises(UserError, match="must be 0"):
        wrapped.generate(TOKENS, max_new_tokens=4, exit=-1.0)
    gpt2 = SRMForCausalLM.wrap(srmlab.build(CONFIGS["gpt2"])).eval()
    with pytest.raises(UserError, match="gpt2 has no early exit"):
        gpt2.generate(TOKENS, max_new_tokens=4, exit=0.1)


def test_other_caches_are_refused_in_one_line(wrapped):
    with pytest.raises(UserError, match="brings its own cache"):
        wrapped.generate(TOKENS, max_new_tokens=4, cache_implementation="static")
    cache = StaticCache(config=wrapped.config, max_cache_len=16)
    for call in (wrapped, lambda tokens, **how: wrapped.generate(tokens, max_new_tokens=2, **how)):
        with pytest.raises(
            UserError, match="is a StaticCache: this model needs a slot for every attention call"
        ):
            call(TOKENS, past_key_values=cache)


@pytest.mark.parametrize("name", CONFIGS)
def test_lora_reaches_every_matrix_comes_back_from_its_file_and_merges(name, tmp_path):
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)  # the adapters' weights: merging rounds, and large ones make HRM amplify it
    model = SRMForCausalLM.wrap(srmlab.build(CONFIGS[name])).eval()
    targets = lora_targets(model)
    matrices = {n for n, p in model.model.named_parameters() if p.ndim > 1 and "embedding" not in n}
    matrices -= {"positions.weight", "head.weight"}
    assert len(matrices) == sum(map(len, targets.values()))
    with torch.no_grad():
        before = model(TOKENS).logits
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, init_lora_weights=False, **targets))
    with torch.no_grad():
        after = adapted(TOKENS).logits
    assert not torch.allclose(before, after, atol=1e-2)
    adapted(TOKENS, labels=TOKENS).loss.backward()
    trained = {n: p for n, p in adapted.named_parameters() if p.requires_grad}
    assert all("lora_" in n and p.grad is not None for n, p in trained.items())
    adapted.save_pretrained(tmp_path)
    fresh = SRMForCausalLM.wrap(srmlab.build(CONFIGS[name])).eval()
    again = peft.PeftModel.from_pretrained(fresh, tmp_path)
    merged = adapted.merge_and_unload()
    with torch.no_grad():
        assert torch.equal(again(TOKENS).logits, after)
        torch.testing.assert_close(merged(TOKENS).logits, after, rtol=0, atol=2e-3)


def test_all_linear_of_peft_is_refused_where_it_does_not_see_the_streams_matrices():
    peft = pytest.importorskip("peft")
    model = SRMForCausalLM.wrap(srmlab.build(SMALL))
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules="all-linear"))
    with pytest.raises(UserError, match=r"leaves out \d+ of \d+ matrices.*lora_targets\(model\)"):
        adapted(TOKENS)
    with pytest.raises(UserError, match="leaves out"):
        adapted.generate(input_ids=TOKENS, max_new_tokens=2)
    adapted.unload()(TOKENS)
    named = peft.LoraConfig(r=2, target_modules=["to_streams", "from_streams"])
    peft.get_peft_model(SRMForCausalLM.wrap(srmlab.build(SMALL)), named)(TOKENS)


def test_all_linear_of_peft_is_used_where_it_is_all():
    peft = pytest.importorskip("peft")
    model = SRMForCausalLM.wrap(srmlab.build(MOR))
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules="all-linear"))
    adapted(TOKENS, labels=TOKENS).loss.backward()
    reached = {n.split(".lora_")[0].removeprefix("base_model.model.") for n, p in adapted.named_parameters()}
    assert reached >= set(lora_targets(SRMForCausalLM.wrap(srmlab.build(MOR)))["target_modules"])


def test_an_adapter_is_used_where_keys_are_shared():
    peft = pytest.importorskip("peft")
    model = SRMForCausalLM.wrap(srmlab.build(MOR)).eval()
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, init_lora_weights=False, **lora_targets(model)))
    with torch.no_grad():
        after = adapted(TOKENS).logits
        torch.testing.assert_close(adapted.merge_and_unload()(TOKENS).logits, after, rtol=0, atol=1e-4)


def test_an_adapter_that_would_not_be_read_is_refused():
    peft = pytest.importorskip("peft")
    model = SRMForCausalLM.wrap(srmlab.build(SMALL.replace(tied=False)))
    config = peft.LoraConfig(r=2, target_modules=["to_streams", "unembedding"])
    adapted = peft.get_peft_model(model, config)
    with pytest.raises(UserError, match=r"an adapter on .*unembedding would not be read: leave it out"):
        adapted(TOKENS)
