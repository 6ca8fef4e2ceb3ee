"""The arithmetic written by hand: the numbers of the plain formulas, to rounding, and their gradients."""

from __future__ import annotations

import pytest
import torch
from small_models import HRM_TINY, SRM_TINY, gradients, some_tokens
from torch import Tensor
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.utils.checkpoint import checkpoint

from srmlab.models import build, kernels
from srmlab.models.attention import Rotary
from srmlab.models.streams import RMSNorm

LENGTHS = [1, 2, 63, 64, 65, 200]  # around the blocks of 64 queries
HEADS = [(1, 32), (2, 64), (3, 6)]  # heads, head dim
LONG = {  # long enough for the tokens' attention to be by hand
    "srm": SRM_TINY.replace(context=100),
    "srm with many streams": SRM_TINY.replace(context=100, streams=17, norm_affine=True),
    "hrm": HRM_TINY.replace(context=100),
}


def some(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def positions(length: int, head_dim: int, like: Tensor) -> tuple[Tensor, Tensor]:
    return Rotary(head_dim, length, 10_000.0)(0, length, like)


def relative(a: Tensor, b: Tensor) -> float:
    return ((a.double() - b.double()).norm() / b.double().norm()).item()


def assert_close_to_float64(ours, plain, x: Tensor) -> None:
    """Value and gradient in float32 against the plain formula in float64; and the value without gradient."""
    exact = x.detach().double().requires_grad_()
    value, expected = ours(x), plain(exact)
    weight = some(*value.shape, seed=1).detach()
    (gradient,) = torch.autograd.grad(value, x, weight)
    (expected_gradient,) = torch.autograd.grad(expected, exact, weight.double())
    assert value.dtype == gradient.dtype == torch.float32
    assert relative(value, expected) < 1e-5
    if expected_gradient.norm() > 0:
        assert relative(gradient, expected_gradient) < 1e-5
    with torch.no_grad():
        assert torch.equal(ours(x), value)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(("heads", "head_dim"), HEADS)
def test_causal_attention_is_that_of_the_formula(length, heads, head_dim):
    assert_close_to_float64(
        lambda x: kernels.causal_attention(x, heads, positions(length, head_dim, x)),
        lambda x: kernels.plain_causal_attention(x, heads, positions(length, head_dim, x)),
        some(3, length, 3 * heads * head_dim),
    )


@pytest.mark.parametrize("streams", [1, 2, 8, 15, 16, 33])
@pytest.mark.parametrize(("heads", "head_dim"), HEADS)
def test_stream_attention_is_that_of_the_formula(streams, heads, head_dim):
    assert_close_to_float64(
        lambda x: kernels.stream_attention(x, heads),
        lambda x: kernels.plain_stream_attention(x, heads),
        some(streams, 7, 3 * heads * head_dim),
    )


@pytest.mark.parametrize("dim", [1, 32, 129])
def test_the_norm_has_the_bits_of_the_formula(dim):
    x, eps = some(3, 5, dim), 1e-6
    assert torch.equal(kernels.rms_norm(x, eps), x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps))
    if dim > 1:  # of one number only the sign is left, and the gradient is rounding
        exact = RMSNorm(eps)  # in float64 the module takes the plain formula
        assert_close_to_float64(lambda x: kernels.rms_norm(x, eps), exact, x)


@pytest.mark.parametrize("streams", [3, 16])
def test_scores_beyond_the_range_of_exp_do_no_harm(streams):
    """Scores of ten thousand: exp of them is infinite, and float32 knows them to a thousandth only."""
    x = (some(streams, 70, 3 * 8) * 100).detach().requires_grad_()
    turn = positions(70, 4, x)
    for ours, plain in (
        (kernels.stream_attention(x, 2), kernels.plain_stream_attention(x, 2)),
        (kernels.causal_attention(x, 2, turn), kernels.plain_causal_attention(x, 2, turn)),
    ):
        assert relative(ours, plain) < 1e-2
        (gradient,) = torch.autograd.grad(ours.square().sum(), x)
        assert gradient.isfinite().all()


FUNCTIONS = {
    "causal": (lambda x: kernels.causal_attention(x, 2, positions(x.shape[1], 4, x)), (2, 5, 24)),
    "causal in blocks": (lambda x: kernels.causal_attention(x, 1, positions(x.shape[1], 2, x)), (1, 66, 6)),
    "few streams": (lambda x: kernels.stream_attention(x, 2), (3, 4, 24)),
    "many streams": (lambda x: kernels.stream_attention(x, 1), (17, 2, 6)),
    "norm": (lambda x: kernels.rms_norm(x, 1e-6), (2, 3, 5)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_first_derivative_is_that_of_finite_differences(name):
    function, shape = FUNCTIONS[name]
    assert gradcheck(function, some(*shape, dtype=torch.float64))


@pytest.mark.parametrize("name", ["causal", "few streams", "norm"])
def test_so_is_the_second(name):
    function, shape = FUNCTIONS[name]
    assert gradgradcheck(function, some(*shape, dtype=torch.float64))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_recomputed_activation_has_the_same_gradient(name):
    function, shape = FUNCTIONS[name]
    x = some(*shape)
    (kept,) = torch.autograd.grad(function(x).square().sum(), x)
    (recomputed,) = torch.autograd.grad(checkpoint(function, x, use_reentrant=False).square().sum(), x)
    assert torch.equal(kept, recomputed)


@pytest.mark.parametrize("name", LONG)
def test_a_model_in_float32_has_the_loss_and_gradients_of_float64(name):
    tokens, targets = some_tokens(2, 100), some_tokens(2, 100, seed=1)
    ours, exact = build(LONG[name]), build(LONG[name], dtype=torch.float64)
    exact.load_state_dict(ours.state_dict())
    loss, expected = ours(tokens, targets), exact(tokens, targets)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    theirs = gradients(exact, expected)
    for parameter, gradient in gradients(ours, loss).items():
        assert relative(gradient, theirs[parameter]) < 1e-4, parameter


def test_what_is_not_float32_on_a_cpu_in_eager_mode_is_left_to_torch():
    x = some(2, 64, 24)
    assert kernels.by_hand(x)
    assert not kernels.by_hand(x.double())
    assert not kernels.by_hand(x.bfloat16())
    assert not kernels.by_hand(x.to("meta"))
    with torch.autocast("cpu", torch.bfloat16):
        assert not kernels.by_hand(x)
    with forward_ad.dual_level():
        assert not kernels.by_hand(x)
    seen = []
    torch.func.vmap(lambda row: seen.append(kernels.by_hand(row)) or row)(x)
    assert seen == [False]


def test_short_long_and_unturned_sequences_are_left_to_torch():
    turn = positions(64, 4, some(1))
    assert kernels.tokens_by_hand(some(1, 64, 24), turn)
    assert not kernels.tokens_by_hand(some(1, 64, 24), None)
    assert not kernels.tokens_by_hand(some(1, 31, 24), turn)
    assert not kernels.tokens_by_hand(some(1, 1025, 24), turn)


@pytest.mark.parametrize("name", LONG)
def test_functional_transforms_go_through_a_model(name):
    """Reverse mode by torch.func agrees with the gradients written by hand."""
    model = build(LONG[name])
    tokens = some_tokens(1, 40)
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def total(values: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(model, values, (tokens,)).square().mean()

    expected = gradients(model, model(tokens).square().mean())
    got = torch.func.grad(total)(parameters)
    for parameter, gradient in expected.items():
        assert relative(got[parameter], gradient) < 1e-4, parameter
