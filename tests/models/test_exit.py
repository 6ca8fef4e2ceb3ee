"""Early exit: against a slow reference that copies keys and values into every layer, and what it refuses."""

from __future__ import annotations

import pytest
import torch
from small_models import CONTEXT, RECURRENT, SMALL, SRM_TINY, small, some_tokens

import srmlab
from srmlab.errors import UserError
from srmlab.models import Exit, LanguageModel, Pass, generate
from srmlab.models.attention import Rotary
from srmlab.models.cache import KeyValues

TOLERANCES = (0.0, 0.1, 0.3, 0.5, 1.0, 100.0)


class Reference:
    """One row, read in chunks: every level has keys and values of its own, those of a level that is not
    computed being copies of the last one's.
    """

    def __init__(self, model: LanguageModel, tolerance: float) -> None:
        self.model, self.tolerance = model, tolerance
        self.length = 0
        self.pre, self.post, *self.levels = (
            [KeyValues(CONTEXT) for _ in range(20)] for _ in range(2 + model.depth)
        )  # of more calls than there are

    def read(self, tokens: torch.Tensor) -> tuple[torch.Tensor, int]:
        """The logits [1, T, V] of a chunk, and the number of levels that were computed."""
        model, T = self.model, tokens.shape[1]
        here = Pass()
        if model.config.architecture not in ("srm", "hrm"):
            return self.read_looped(tokens)
        rotary: Rotary = model.rotary
        srm = model.config.architecture == "srm"
        x = model.input_function(tokens, here) if srm else model.embedding(tokens)
        if not srm and model.config.embedding_scale:
            x = x * model.config.dim**0.5
        here.rotary = rotary(self.length, T, like=x)
        here.slots = iter(self.pre)
        for step in model.pre if srm else ():
            x = step(x, None, here)
        single = not srm and model.config.single
        start = model.first_state(x) if srm else (model.low0.expand_as(x), model.high0.expand_as(x))
        z, y, used = start, x, 0
        for t in range(model.depth):
            here.slots, used = iter(self.levels[t]), t + 1
            before = z
            if srm:
                z, y = model.layer(z, x, model.evaluation_orders[t], here)
                change, norm = (z - before).square().sum(), z.square().sum()
            else:
                z = model.cycle(t, *z, x, here)
                parts = [0] if single else [0, 1]
                change = sum((z[i] - before[i]).square().sum() for i in parts)
                norm = sum(z[i].square().sum() for i in parts)
            if (change / norm).sqrt() < self.tolerance:
                break
        self.copy_down(T, used)
        here.slots = iter(self.post)
        if not srm:
            return (z[0] if single else z[1]) @ model.unembedding.T, used
        for step in model.post:
            z = step(z, y if model.config.post_input == "state+update" else None, here)
        return model.output_function(z) @ model.unembedding.T, used

    def read_looped(self, tokens: torch.Tensor) -> tuple[torch.Tensor, int]:
        """The same for a model that is nothing but its loops."""
        model, here = self.model, Pass()
        here.start = self.length
        h, used = model.embed(tokens, here), 0
        hyper, huginn = (model.config.architecture == name for name in ("hyper", "huginn"))
        if hyper:
            h = h.expand(len(model.streams), *h.shape)
        if huginn:
            here.slots = iter(self.pre)
            for block in model.prelude_blocks:
                h = block(h, here)
            e, h = h, model.first_state(h)
        for t in range(model.depth):
            here.slots, used, before = iter(self.levels[t]), t + 1, h
            h = model.step(t, h, e, here) if huginn else model.loop(t, h, here)
            if (h - before).norm() / h.norm() < self.tolerance:
                break
        self.copy_down(tokens.shape[1], used)
        if huginn:
            here.slots = iter(self.post)
            h = model.norm(model.through_coda(h, here))
        return (model.norm(h.sum(0)) if hyper else h) @ model.unembedding.T, used

    def copy_down(self, T: int, used: int) -> None:
        """Levels that were not computed get the keys and values of the last one that was."""
        self.length += T
        for deeper in self.levels[used:]:
            for mine, last in zip(deeper, self.levels[used - 1], strict=True):
                if last.keys is not None:
                    mine.append(
                        last.keys[:, :, self.length - T : self.length],
                        last.values[:, :, self.length - T : self.length],
                    )


@torch.no_grad()
def by_reference(model, tokens, lengths, tolerance):
    reference = Reference(model, tolerance)
    read = [(reference.read(chunk), chunk.shape[1]) for chunk in tokens.split(lengths, dim=1)]
    used = sum(levels * length for (_, levels), length in read) / tokens.shape[1]
    return torch.cat([logits for (logits, _), _ in read], dim=1), used


@torch.no_grad()
def with_exit(model, tokens, lengths, tolerance, reuse=False):
    exit, cache = Exit(tolerance, by="change"), model.new_cache(reuse=reuse)
    pieces = [model(chunk, cache=cache, exit=exit) for chunk in tokens.split(lengths, dim=1)]
    return torch.cat(pieces, dim=1), exit, cache


@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize("name", RECURRENT)
def test_decoding_with_exit_is_the_reference_that_copies_keys_and_values(name, reuse):
    model, tokens = small(SMALL[name]), some_tokens(1, 12)
    lengths = [3, 1, 1, 1, 2, 1, 1, 1, 1]
    for tolerance in TOLERANCES:
        logits, exit, cache = with_exit(model, tokens, lengths, tolerance, reuse)
        expected, used = by_reference(model, tokens, lengths, tolerance)
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-10)
        assert exit.mean_levels == pytest.approx(used)
        assert cache.length == 12


def test_the_tolerances_of_the_reference_test_stop_tokens_at_different_depths():
    model, tokens = small(SRM_TINY.replace(depth=6)), some_tokens(1, CONTEXT)
    used = [with_exit(model, tokens, 1, tolerance)[1].mean_levels for tolerance in (0, 0.1, 0.2, 0.3, 100)]
    assert used[0] == 6
    assert used[-1] == 1
    assert used == sorted(used, reverse=True)
    assert any(level % 1 for level in used)


@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize("name", RECURRENT)
def test_every_row_stops_on_its_own_while_decoding(name, reuse):
    model, tokens = small(SMALL[name]), some_tokens(4, 8)
    for tolerance in TOLERANCES:
        together, exit, _ = with_exit(model, tokens, 1, tolerance, reuse)
        alone = [with_exit(model, row[None], 1, tolerance, reuse) for row in tokens]
        torch.testing.assert_close(
            together, torch.cat([logits for logits, _, _ in alone]), rtol=0, atol=1e-10
        )
        assert exit.levels == sum(one.levels for _, one, _ in alone)


@pytest.mark.parametrize("name", RECURRENT)
def test_a_tolerance_of_zero_is_the_full_model(name):
    model, tokens = small(SMALL[name]), some_tokens(2, 9)
    logits, exit, _ = with_exit(model, tokens, [4, 1, 1, 3], 0.0)
    torch.testing.assert_close(logits, model(tokens), rtol=0, atol=1e-10)
    assert exit.mean_levels == model.depth


@pytest.mark.parametrize("name", RECURRENT)
def test_a_pass_over_many_tokens_stops_at_a_depth_and_is_the_model_of_that_depth(name):
    model, tokens = small(SMALL[name]), some_tokens(2, 9)
    for tolerance in TOLERANCES:
        exit = Exit(tolerance, by="change")
        logits = model(tokens, exit=exit)
        shallow = model.at_depth(int(exit.mean_levels))
        torch.testing.assert_close(logits, shallow(tokens), rtol=0, atol=1e-12)


def test_documents_stay_apart_with_exit():
    model, tokens = small(SRM_TINY), some_tokens(2, 8)
    documents = torch.tensor([[0] * 3 + [1] * 5, [0] * 6 + [1] * 2])
    exit = Exit(0.3)
    logits = model(tokens, documents=documents, exit=exit)
    shallow = model.at_depth(int(exit.mean_levels))
    torch.testing.assert_close(logits, shallow(tokens, documents=documents), rtol=0, atol=1e-12)


def test_a_compiled_model_stops_where_the_plain_one_does():
    model, tokens = small(SRM_TINY, torch.float32), some_tokens(1, 6)
    plain, compiled = Exit(0.3), Exit(0.3)
    with torch.no_grad():
        expected = model(tokens, exit=plain)
        found = torch.compile(model, backend="eager")(tokens, exit=compiled)
    torch.testing.assert_close(found, expected)
    assert compiled.mean_levels == plain.mean_levels


# The cache


def test_with_reuse_keys_and_values_of_layers_that_were_not_computed_take_no_memory():
    model, tokens = small(SRM_TINY.replace(depth=6)), some_tokens(1, CONTEXT)
    _, exit, cache = with_exit(model, tokens, 1, 0.2, reuse=True)
    full = model.new_cache()
    model(tokens, cache=full)
    of_a_layer = full.nbytes / CONTEXT / 6
    addresses = 6 * 4 * CONTEXT  # one int32 a layer and token
    assert cache.nbytes == of_a_layer * exit.levels + addresses
    assert cache.nbytes < full.nbytes
    assert with_exit(model, tokens, 1, 0.2)[2].nbytes == full.nbytes  # without it there are copies


def test_the_bytes_of_a_cache_are_those_of_its_keys_and_values():
    model = small(SRM_TINY)
    cache = model.new_cache()
    assert cache.nbytes == 0
    model(some_tokens(2, 5), cache=cache)
    assert cache.nbytes == 2 * 5 * model.recording.cached_values * 8  # rows × tokens × values × float64


# Generation


def test_generation_with_exit_counts_its_layers_and_is_repeatable():
    model, prompt = small(SRM_TINY.replace(depth=6)), some_tokens(2, 3)
    exit = Exit(0.2)
    text = generate(model, prompt, 9, seed=1, exit=exit)
    assert torch.equal(text, generate(model, prompt, 9, seed=1, exit=0.2))
    assert torch.equal(text, generate(model, prompt, 9, seed=1, exit=0.2, reuse_cache=True))
    assert exit.tokens == 2 * (3 + 8)
    assert 1 <= exit.mean_levels < 6


def test_generation_with_exit_slides_past_the_context():
    model = small(SRM_TINY)
    assert generate(model, some_tokens(1, 10), 20, seed=0, exit=0.3, overflow="slide").shape == (1, 30)


def test_without_exit_nothing_has_changed():
    model, tokens = small(SRM_TINY), some_tokens()
    assert torch.equal(model(tokens), model(tokens, exit=None))


# What it refuses


@pytest.mark.parametrize("name", ["gpt2", "transformer", "hyper"])
def test_a_model_without_recursion_refuses_exit(name):
    with pytest.raises(UserError, match=f"{name}.* has no early exit; leave exit out"):
        small(SMALL[name])(some_tokens(), exit=0.1)


def test_a_rule_that_a_model_does_not_have_is_refused():
    with pytest.raises(UserError, match=r"exit by 'gate': srm stops by change"):
        small(SRM_TINY)(some_tokens(), exit=Exit(0.9, by="gate"))


def test_random_orders_refuse_exit():
    with pytest.raises(UserError, match=r"exit with order = 'random:4': .*; use a model with a fixed order"):
        small(SMALL["srm in random order"])(some_tokens(), exit=0.1)


def test_hooks_and_exit_are_refused_together():
    model = small(SRM_TINY)
    with model.hooks([("layers.0.out", lambda z, hook: None)]):  # noqa: ARG005
        with pytest.raises(UserError, match="early exit skips layers, and hooks need every site"):
            model(some_tokens(), exit=0.1)
        with pytest.raises(UserError, match="early exit skips layers"):
            generate(model, some_tokens(), 2, exit=0.1)


def test_training_with_exit_is_refused():
    with pytest.raises(UserError, match=r"early exit needs model.eval\(\)"):
        small(SRM_TINY).train()(some_tokens(), exit=0.1)


@pytest.mark.parametrize("first", [None, 0.1])
def test_a_cache_is_not_read_half_with_exit(first):
    model = small(SRM_TINY)
    cache = model.new_cache()
    model(some_tokens(), cache=cache, exit=first)
    with pytest.raises(UserError, match=r"exit has changed .*; create another: model.new_cache\(\)"):
        model(some_tokens(), cache=cache, exit=None if first else 0.1)


@pytest.mark.parametrize("tolerance", [-0.1, float("nan"), float("inf")])
def test_a_tolerance_that_is_none_is_refused(tolerance):
    with pytest.raises(UserError, match=r"exit = .*: must be 0 \(never\) or more"):
        small(SRM_TINY)(some_tokens(), exit=tolerance)


def test_exit_without_the_cache_is_refused():
    with pytest.raises(UserError, match="exit needs the cache"):
        srmlab.generate(small(SRM_TINY), some_tokens(), 2, exit=0.1, use_cache=False)
