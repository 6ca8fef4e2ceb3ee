"""Collapse of tokens, likeness of streams, number of sources: against slow code, and where the answer is
known."""

import math

import numpy as np
import pytest
import torch
from constructed import SMALL, force_pattern

import srmlab
from srmlab.analysis import effective_sources, stream_similarity, survey, token_similarity
from srmlab.errors import UserError
from srmlab.figures import figures_of

MODELS = ("hrm-nano", "transformer-nano", "gpt2-nano")


def cosine(a, b) -> float:
    return float(torch.dot(a, b) / (a.norm() * b.norm()))


def states(model, tokens) -> list[torch.Tensor]:
    """[B, T, S, D] at every point."""
    _, cache = model.run_with_cache(tokens)
    found = []
    for point in model.points:
        parts = [cache[site] for site in point.sites]
        found.append(torch.cat([p if p.ndim == 4 else p[:, :, None] for p in parts], 2))
    return found


def subject(name, model):
    return model if name == "srm" else srmlab.build(srmlab.preset(name).replace(vocab_size=SMALL.vocab_size))


@pytest.mark.parametrize("name", ["srm", *MODELS])
def test_similarity_of_tokens_is_the_mean_over_pairs(name, model, batches):
    one = subject(name, model)
    tokens = batches[0][:2, :6]
    found = token_similarity(one, [tokens])
    for p, z in enumerate(states(one, tokens)):
        for s in range(z.shape[2]):
            pairs = [
                cosine(z[b, i, s], z[b, j, s])
                for b in range(2) for i in range(6) for j in range(6) if i != j
            ]  # fmt: skip
            assert found.cosine[p, s] == pytest.approx(np.mean(pairs), abs=1e-5)


@pytest.mark.parametrize("name", ["srm", "hrm-nano"])
def test_similarity_of_streams_is_the_mean_over_tokens(name, model, batches):
    one = subject(name, model)
    tokens = batches[0][:2, :5]
    found = stream_similarity(one, [tokens])
    for p, z in enumerate(states(one, tokens)):
        for s in range(z.shape[2]):
            for r in range(z.shape[2]):
                values = [cosine(z[b, t, s], z[b, t, r]) for b in range(2) for t in range(5)]
                assert found.cosine[p, s, r] == pytest.approx(np.mean(values), abs=1e-5)
    others = found.cosine[-1][~np.eye(len(found.streams), dtype=bool)]
    assert found.last == pytest.approx(others.mean())
    assert found.most_alike[-1] == pytest.approx(others.max())


def test_a_model_that_sees_no_token_has_collapsed(model, batches):
    with torch.no_grad():
        model.embedding.weight.copy_(model.embedding.weight[:1].expand_as(model.embedding.weight))
    found = token_similarity(model, [batches[0][:, :1].expand(3, 16)])
    assert found.last == pytest.approx(1.0, abs=1e-4)
    assert found.headline().endswith("1.00 at the end")


def test_one_token_has_no_other(model, batches):
    with np.errstate(invalid="ignore"):
        assert math.isnan(token_similarity(model, [batches[0][:, :1]]).last)


def test_the_number_of_sources_is_known_for_known_patterns(model, batches):
    S = SMALL.streams
    force_pattern(model, torch.full((S, S), 1 / S))
    found = effective_sources(model, batches)
    assert found.number == pytest.approx(S, abs=1e-4)
    force_pattern(model, torch.eye(S))
    assert effective_sources(model, batches).number == pytest.approx(1, abs=1e-4)


def test_the_number_of_sources_is_the_exponential_of_the_entropy(model, batches):
    found = effective_sources(model, batches)
    _, cache = model.run_with_cache(batches[0])
    numbers = []
    for batch in batches:
        _, cache = model.run_with_cache(batch)
        pattern = cache["layers.2.connection.pattern"].double()
        numbers.append((-(pattern * pattern.log()).sum(-1)).exp().mean((0, 1)))
    assert found.number[2] == pytest.approx(torch.stack(numbers).mean(0).numpy(), abs=1e-5)
    assert bool((found.of_mean_pattern >= found.number - 1e-6).all())  # entropy is concave
    assert found.mean_number == pytest.approx(found.by_depth.mean())


def test_what_is_not_defined_is_refused():
    gpt2 = srmlab.build(srmlab.preset("gpt2-nano"))
    with pytest.raises(UserError, match="compares streams"):
        stream_similarity(gpt2, [torch.arange(8)[None]])
    with pytest.raises(UserError, match="needs streams"):
        effective_sources(gpt2, [torch.arange(8)[None]])


def test_ablation_after_every_layer_is_that_of_the_function(model, batches):
    found = survey(model, batches, only=["ablation", "ablation_everywhere"])
    slow = srmlab.analysis.ablation(model, batches, layers="every")
    assert found["ablation_everywhere"].kl == pytest.approx(slow.kl, abs=1e-6)  # pyright: ignore
    assert found["ablation"].kl != pytest.approx(slow.kl, abs=1e-6)  # pyright: ignore


@pytest.mark.parametrize("measure", [token_similarity, stream_similarity, effective_sources])
def test_results_are_kept_and_drawn_with_errors_and_twins(measure, model, batches, tmp_path):
    found = measure(model, batches)
    again = srmlab.analysis.load(found.save(tmp_path / found.kind))
    assert again.summary() == found.summary()
    assert np.isfinite(found.standard_error("by_depth")).all()
    (draw,) = figures_of(found.kind).values()
    assert len(draw(found).axes[0].collections) < len(draw(found, twins=[again, again]).axes[0].collections)
