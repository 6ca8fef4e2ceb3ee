"""Cross-entropy in chunks: the same loss and gradients as with all logits, without ever holding them."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from small_models import ONE_OF_EACH, SRM_TINY, gradients, small, some_tokens
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from srmlab.errors import UserError
from srmlab.models import build
from srmlab.models.loss import IGNORE, chunked_cross_entropy, shared_cross_entropy


def example(tokens: int, vocab: int, dtype: torch.dtype, seed: int = 0, ignored: float = 0.3):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(1, tokens, 5, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(vocab, 5, generator=generator).to(dtype).requires_grad_()
    targets = torch.randint(vocab, (1, tokens), generator=generator)
    targets[torch.rand(targets.shape, generator=generator) < ignored] = IGNORE
    targets[0, 0] = 0  # at least one counts
    return hidden, weight, targets


def with_all_logits(hidden, weight, targets):
    return F.cross_entropy((hidden @ weight.T).flatten(0, 1), targets.flatten())


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@given(
    tokens=st.integers(1, 40),
    vocab=st.integers(1, 30),
    chunk=st.integers(1, 50),
    seed=st.integers(0, 99),
    scale=st.floats(-3, 3),
)
def test_loss_and_gradients_are_those_of_all_logits(dtype, tolerance, tokens, vocab, chunk, seed, scale):
    hidden, weight, targets = example(tokens, vocab, dtype, seed)
    ours = chunked_cross_entropy(hidden, weight, targets, chunk)
    theirs = with_all_logits(hidden, weight, targets)
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    ours = torch.autograd.grad(ours * scale, (hidden, weight))
    theirs = torch.autograd.grad(theirs * scale, (hidden, weight))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=4 * tolerance, atol=4 * tolerance)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_models_loss_is_the_cross_entropy_of_its_logits(name):
    model = small(ONE_OF_EACH[name])
    tokens, targets = some_tokens(), some_tokens(seed=1)
    targets[0, 2] = IGNORE
    ours = model(tokens, targets)
    theirs = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    ours, theirs = gradients(model, ours), gradients(model, theirs)
    for parameter in theirs:
        torch.testing.assert_close(ours[parameter], theirs[parameter], rtol=1e-10, atol=1e-12)


def curvature(loss, inputs):
    """Half the gradient of the squared gradient: the Hessian times the gradient."""
    slopes = torch.autograd.grad(loss, inputs, create_graph=True)
    return torch.autograd.grad(sum(slope.square().sum() for slope in slopes) / 2, inputs)


def test_second_derivatives_are_those_of_all_logits():
    hidden, weight, targets = example(9, 7, torch.float64)
    for inputs in ((hidden, weight), (hidden,), (weight,)):
        parts = [p if any(p is one for one in inputs) else p.detach() for p in (hidden, weight)]
        ours = curvature(chunked_cross_entropy(*parts, targets, 4) * 3, inputs)
        theirs = curvature(with_all_logits(*parts, targets) * 3, inputs)
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b)


def test_second_derivatives_of_a_loss_in_shares_are_those_of_all_logits():
    hidden, weight, targets = example(9, 7, torch.float64)
    shares = torch.rand(targets.shape, dtype=torch.float64).requires_grad_()
    losses = F.cross_entropy((hidden @ weight.T).flatten(0, 1), targets.flatten(), reduction="none")
    theirs = (losses * shares.flatten()).sum() / (targets != IGNORE).sum()
    ours, _ = shared_cross_entropy(hidden, weight, targets, shares, 4)
    inputs = (hidden, weight, shares)
    for a, b in zip(curvature(ours, inputs), curvature(theirs, inputs), strict=True):
        torch.testing.assert_close(a, b)


def test_gradients_of_single_texts_by_torch_func_are_those_of_each_alone():
    model, tokens = small(SRM_TINY), some_tokens(batch=3)
    targets = some_tokens(batch=3, seed=1)
    targets[0, :4] = IGNORE
    weights = {name: weight.detach() for name, weight in model.named_parameters()}

    def loss(weights, tokens, targets):
        return torch.func.functional_call(model, weights, (tokens[None], targets[None]))

    with warnings.catch_warnings():  # torch: attention has no batching rule of its own
        warnings.simplefilter("ignore")
        found = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(weights, tokens, targets)
    for row in range(3):
        alone = gradients(model, model(tokens[row : row + 1], targets[row : row + 1]))
        torch.testing.assert_close({name: found[name][row] for name in alone}, alone)


def test_only_one_side_may_want_a_gradient():
    hidden, weight, targets = example(9, 7, torch.float64)
    for trained in (hidden, weight):
        parts = [p if p is trained else p.detach() for p in (hidden, weight)]
        (ours,) = torch.autograd.grad(chunked_cross_entropy(*parts, targets, 4), trained)
        (theirs,) = torch.autograd.grad(with_all_logits(*parts, targets), trained)
        torch.testing.assert_close(ours, theirs)


def test_a_batch_in_which_nothing_counts_has_no_loss_and_no_gradient():
    hidden, weight, targets = example(6, 7, torch.float64)
    loss = chunked_cross_entropy(hidden, weight, torch.full_like(targets, IGNORE), 4)
    assert loss == 0
    assert all(not g.any() for g in torch.autograd.grad(loss, (hidden, weight)))


@pytest.mark.parametrize("listening", [False, True])
@pytest.mark.parametrize("bad", [-1, 13])
def test_a_target_beyond_the_vocabulary_is_refused(bad, listening):
    model = small(SRM_TINY)
    tokens, targets = some_tokens(), some_tokens(seed=1)
    targets[0, :2] = torch.tensor([bad, IGNORE])
    hooks = [("logits", lambda value, hook: None)] if listening else []  # noqa: ARG005
    with model.hooks(hooks), pytest.raises(UserError, match="must be 0 to 12, or -100 where none counts"):
        model(tokens, targets)


def test_targets_and_tokens_are_whole_numbers():
    model, tokens = small(SRM_TINY), some_tokens()
    with pytest.raises(UserError, match="use targets"):
        model(tokens, tokens.float())
    with pytest.raises(UserError, match="use tokens"):
        model(tokens > 0)


def test_listening_to_the_logits_does_not_change_the_loss():
    model = small(SRM_TINY)
    tokens, targets = some_tokens(), some_tokens(seed=1)
    targets[0, 2] = IGNORE
    silent = model(tokens, targets)
    with model.hooks([("logits", lambda value, hook: None)]):  # noqa: ARG005
        torch.testing.assert_close(model(tokens, targets), silent, rtol=1e-12, atol=1e-12)
        assert model(tokens, torch.full_like(targets, IGNORE)) == 0


def test_a_hook_that_replaces_the_logits_changes_the_loss():
    model = small(SRM_TINY)
    tokens = some_tokens()
    with model.hooks([("logits", lambda value, hook: value * 0)]):  # noqa: ARG005
        assert model(tokens, tokens).item() == pytest.approx(torch.log(torch.tensor(13.0)).item())


class LargestTensor(TorchDispatchMode):
    """The largest tensor any operation returns."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return out


def test_all_logits_are_never_held_at_once():
    tokens, vocab, chunk = 64, 500, 8
    hidden, weight, targets = example(tokens, vocab, torch.float32)
    with LargestTensor() as ours:
        chunked_cross_entropy(hidden, weight, targets, chunk).backward()
    with LargestTensor() as theirs:
        with_all_logits(hidden, weight, targets).backward()
    assert theirs.elements == tokens * vocab
    assert ours.elements == chunk * vocab


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_evaluating_a_loss_costs_no_more_than_the_logits(name):
    model, tokens = build(ONE_OF_EACH[name]), some_tokens()

    def flops(*inputs) -> int:
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(*inputs)
        return counter.get_total_flops()

    assert flops(tokens, tokens) == flops(tokens)


@pytest.mark.parametrize("shape", [(1, 1), (7, 2), (2, 6), (14,)])
def test_targets_of_another_shape_are_refused(shape):
    with pytest.raises(ValueError, match=r"targets of shape .*: need the shape of tokens, \(2, 7\)"):
        build(SRM_TINY)(some_tokens(2, 7), torch.zeros(shape, dtype=torch.long))
