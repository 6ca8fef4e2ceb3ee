"""A trace tells the truth about one prompt, and survives being written down."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from explorer_subjects import PROMPT, tiny_model

import srmlab
import srmlab.analysis
from srmlab.analysis import state_means
from srmlab.data import byte_tokenizer
from srmlab.errors import UserError
from srmlab.explorer import Trace, TraceError, capture
from srmlab.explorer.trace import FIELDS, config_hash

TOKENIZER = byte_tokenizer()


@pytest.fixture(scope="module")
def model() -> srmlab.SRM:
    return tiny_model()


@pytest.fixture(scope="module")
def trace(model) -> Trace:
    return capture(model, TOKENIZER, PROMPT)


@pytest.fixture(scope="module")
def pass_(model, trace):
    tokens = torch.from_numpy(trace["tokens"]).long()[None]
    with torch.inference_mode():
        return model.run_with_cache(tokens)


def test_every_array_of_the_contract_is_there_with_its_axes(trace):
    of_a_dictionary = {"features", "feature_activation"}  # which this trace was made without
    of_a_puzzle = {"given", "cell_value", "cell_probability"}
    assert set(trace.arrays) == set(FIELDS) - of_a_dictionary - of_a_puzzle
    for name, spec in FIELDS.items():
        if name in of_a_dictionary | of_a_puzzle:
            continue
        assert trace[name].shape == tuple(trace.manifest["axes"][axis] for axis in spec.axes)


def test_routing_is_the_connections_pattern_to_a_255th(trace, pass_):
    _, cache = pass_
    for layer in range(3):
        pattern = cache[f"layers.{layer}.connection.pattern"][0].numpy()
        assert np.abs(trace.weights[layer] - pattern).max() <= 0.5 / 255 + 1e-6


def test_hub_scores_are_those_of_the_analysis_at_every_threshold(trace, model):
    tokens = torch.from_numpy(trace["tokens"]).long()[None]
    for level in (25, 51, 128):  # a weight is rounded to a 255th: one is above level if it exceeds level + ½
        found = srmlab.analysis.routing(model, [tokens], threshold=(level + 0.5) / 255)
        np.testing.assert_allclose(trace["hub_score"][level], found.hub_score, atol=1e-6)
        np.testing.assert_allclose(trace["incoming"][level], found.incoming, atol=1e-6)
        np.testing.assert_allclose(trace["self_routing"][level], found.self_routing, atol=1e-6)


def test_convergence_is_that_of_the_analysis(trace):
    for metric in ("cosine", "kl"):
        curves = trace[f"drift_{metric}"].astype(float).mean(2)  # [transition, group, stream]
        for (g, s), at in np.ndenumerate(trace[f"convergence_{metric}"]):
            np.testing.assert_equal(at, srmlab.analysis.convergence(curves[:, g, s]))


def test_a_trace_saved_without_the_measures_of_a_whole_prompt_gets_them(trace):
    derived = {"hub_score", "incoming", "self_routing", "convergence_cosine", "convergence_kl"}
    axes = {name: size for name, size in trace.manifest["axes"].items() if name != "level"}
    before = Trace(
        {name: array for name, array in trace.arrays.items() if name not in derived},
        {**trace.manifest, "axes": axes},
    )
    again = Trace.from_bytes(before.to_bytes())
    for name in derived:
        np.testing.assert_array_equal(again[name], trace[name])


def test_surprisal_is_minus_log2_of_the_models_probability(trace, pass_):
    logits, _ = pass_
    scores = torch.log_softmax(logits[0].float(), -1)
    assert np.isnan(trace["surprisal"][0])
    for t in range(1, len(trace["tokens"])):
        expected = -scores[t - 1, int(trace["tokens"][t])].item() / np.log(2)
        assert trace["surprisal"][t] == pytest.approx(expected, abs=0.02)


def test_the_last_row_of_the_lens_is_the_models_own_answer(trace, pass_):
    logits, _ = pass_
    best = logits[0].topk(5, -1)
    assert (trace["lens_ids"][-1] == best.indices.numpy()).all()
    scores = torch.log_softmax(logits[0].float(), -1)
    assert trace["lens_target"][-1] == pytest.approx(
        scores.gather(-1, torch.from_numpy(trace["target"]).long()[:, None]).squeeze(-1).numpy(), abs=0.01
    )


def test_attributions_add_up_to_the_targets_logit_less_the_mean(trace, pass_):
    logits, _ = pass_
    target = torch.from_numpy(trace["target"]).long()[:, None]
    expected = logits[0].gather(-1, target).squeeze(-1) - logits[0].mean(-1)
    assert trace["attribution"][-1].astype(float).sum(-1) == pytest.approx(expected.numpy(), abs=0.02)


def test_ablation_kl_is_what_a_forward_pass_with_the_mean_gives(model, trace, pass_):
    logits, cache = pass_
    full = torch.log_softmax(logits[0].float(), -1)
    tokens = torch.from_numpy(trace["tokens"]).long()[None]
    for stream in range(3):

        def at_mean(z, _, stream=stream):
            z = z.clone()
            z[:, :, stream] = cache["layers.2.out"][0].mean(0)[stream]
            return z

        with torch.inference_mode():
            ablated = torch.log_softmax(
                model.run_with_hooks(tokens, [("layers.2.out", at_mean)])[0].float(), -1
            )
        kl = (full.exp() * (full - ablated)).sum(-1) / np.log(2)
        assert trace["ablation_kl"][:, stream] == pytest.approx(kl.numpy(), rel=0.01, abs=1e-3)


def test_cosines_and_drift_are_those_of_the_cached_states(trace, pass_):
    _, cache = pass_
    cosine = torch.nn.functional.cosine_similarity
    c, x = cache["layers.1.connection.out"][0], cache["input.streams"][0]
    assert trace["connection_cosine"][1] == pytest.approx(cosine(c, x, dim=-1).numpy(), abs=2e-3)
    y, out = cache["layers.1.update"][0], cache["layers.1.steps.2.out"][0]
    assert trace["update_cosine"][5] == pytest.approx(cosine(y, out, dim=-1).numpy(), abs=2e-3)
    before = [cache[f"layers.{layer}.steps.0.out"][0] for layer in (1, 2)]
    after = [cache[f"layers.{layer}.steps.1.out"][0] for layer in (1, 2)]  # group B
    distance = 1 - cosine(after[1] - before[1], after[0] - before[0], dim=-1)
    assert trace["drift_cosine"][1, 1] == pytest.approx(distance.numpy(), abs=2e-3)


def test_the_stream_lens_decodes_one_stream_with_the_others_at_their_mean(model, trace, pass_):
    _, cache = pass_
    z = cache["layers.1.out"][0]
    mixed = z.mean(0, keepdim=True).repeat(len(z), 1, 1)
    mixed[:, 2] = z[:, 2]
    with torch.inference_mode():
        logits = model.output_function.from_streams(mixed.flatten(1)) @ model.unembedding.T
    assert (
        trace["stream_lens_id"][1, :, 2] == logits.argmax(-1).numpy()
    ).mean() > 0.9  # ties in float32 aside
    assert trace["stream_lens_logprob"][1, :, 2] == pytest.approx(
        torch.log_softmax(logits, -1).max(-1).values.numpy(), abs=0.01
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"post_steps": 1},
        {"pre_steps": 1, "z0": "input"},
        {"order": "ABCCBA"},
        {"order": "random:4"},
        {"depth": 1, "gradient_depth": 1},
        {"streams": 1},
        {"norm_affine": True, "tied": False},
    ],
)
def test_every_shape_of_srm_can_be_traced_and_read_back(changes):
    model = tiny_model(**changes)
    trace = capture(model, TOKENIZER, "to be")
    again = Trace.from_bytes(trace.to_bytes())
    with torch.inference_mode():
        logits = model(torch.from_numpy(trace["tokens"]).long()[None])
    assert (again["lens_ids"][-1, :, 0] == logits[0].argmax(-1).numpy()).all()


def test_a_trace_read_from_its_file_is_the_same(trace, tmp_path):
    again = Trace.load(trace.save(tmp_path / "deep" / "a.trace"))
    assert again.manifest == trace.manifest
    assert again.token_strings == list(PROMPT)
    for name, array in trace.arrays.items():
        np.testing.assert_array_equal(again[name], array)


def test_a_reference_from_other_text_changes_the_ablation_but_not_the_routing(model, trace):
    reference = state_means(
        model, [torch.randint(0, 256, (2, 20), generator=torch.Generator().manual_seed(1))]
    )
    other = capture(model, TOKENIZER, PROMPT, reference=reference)
    np.testing.assert_array_equal(other["routing"], trace["routing"])
    assert not np.array_equal(other["ablation_kl"], trace["ablation_kl"])
    assert (other.manifest["reference"], trace.manifest["reference"]) == ("evaluation tokens", "this prompt")


def test_tracing_leaves_the_model_as_it_was(model):
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    capture(model, TOKENIZER, "x")
    assert model.training
    assert not model.listening
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    model.eval()


def test_the_config_hash_changes_with_the_config(model):
    assert config_hash(model.config) == config_hash(model.config.replace())
    assert config_hash(model.config) != config_hash(model.config.replace(init_seed=1))


def test_a_token_beyond_the_tokenizers_table_shows_as_its_number():
    trace = capture(tiny_model(vocab_size=300), TOKENIZER, [1, 299])
    assert trace.token_strings[1] == "<299>"


@pytest.mark.parametrize(
    ("prompt", "complaint"),
    [("", "empty"), ("x" * 65, "65 tokens, the model reads 64")],
    ids=["empty", "too long"],
)
def test_a_prompt_the_model_cannot_read_is_refused_in_one_line(model, prompt, complaint):
    with pytest.raises(UserError, match=complaint):
        capture(model, TOKENIZER, prompt)


def test_damaged_bytes_are_no_trace(trace, tmp_path):
    data = trace.to_bytes()
    for bad in (
        b"",
        b"\x00" * 8,
        data[:100],
        data[:-1],
        b"\xff" * 64,
        (10**6).to_bytes(8, "little") + data[8:],
    ):
        with pytest.raises(TraceError):
            Trace.from_bytes(bad)
    with pytest.raises(TraceError, match="cannot read"):
        Trace.load(tmp_path / "nothing")


def test_arrays_that_do_not_fit_the_contract_are_refused(trace):
    with pytest.raises(TraceError, match="lacks 'surprisal'"):
        Trace({k: v for k, v in trace.arrays.items() if k != "surprisal"}, trace.manifest)
    with pytest.raises(TraceError, match="surprisal is float64"):
        Trace({**trace.arrays, "surprisal": trace["surprisal"].astype(float)}, trace.manifest)
    with pytest.raises(TraceError, match="no array called 'more'"):
        Trace({**trace.arrays, "more": trace["tokens"]}, trace.manifest)
    with pytest.raises(TraceError, match="format 99"):
        Trace(trace.arrays, {**trace.manifest, "format": 99})


def test_the_manifest_is_plain_json_and_names_every_id(trace):
    json.dumps(trace.manifest, allow_nan=False)
    for name in ("tokens", "target", "lens_ids", "stream_lens_id"):
        assert all(trace.string(i) for i in np.unique(trace[name]))
