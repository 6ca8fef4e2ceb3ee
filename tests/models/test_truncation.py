"""Gradient through the last l layers only: what it leaves out, and what it saves."""

from __future__ import annotations

import pytest
import torch
from small_models import HRM_TINY, ONE_OF_EACH, SMALL, SRM_TINY, gradients, small, some_tokens
from torch.autograd.graph import saved_tensors_hooks

from srmlab.errors import UserError
from srmlab.models import ModelConfig, gradient_everywhere

SRMS = {
    "plain": SRM_TINY,
    "pre- and post-steps": SMALL["srm with pre- and post-steps"],
    "from x": SMALL["srm from x"],
}


def loss_of(model, tokens):
    return model(tokens, tokens.roll(-1, 1))


@pytest.mark.parametrize("name", SRMS)
@pytest.mark.parametrize("l", [1, 2, 3, 4])
def test_gradients_are_those_of_a_detach_after_layer_n_minus_l(name, l):
    n = 4
    truncated = small(SRMS[name].replace(depth=n, gradient_depth=l))
    full = small(SRMS[name].replace(depth=n, gradient_depth=n))
    full.load_state_dict(truncated.state_dict())
    tokens = some_tokens()
    ours = gradients(truncated, loss_of(truncated, tokens))

    def cut(value, hook):  # noqa: ARG001
        return value.detach()

    if l == n:
        detached = gradients(full, loss_of(full, tokens))
    else:  # what leaves layer n − l − 1, and for post-steps its update, is a constant
        with full.hooks([(f"layers.{n - l - 1}.out", cut)]):
            detached = gradients(full, loss_of(full, tokens))
    for parameter in ours:
        torch.testing.assert_close(ours[parameter], detached[parameter], rtol=1e-10, atol=1e-12)


def test_a_shorter_gradient_is_a_different_gradient():
    tokens = some_tokens()
    by_l = []
    for l in (1, 2, 3):
        model = small(SRM_TINY.replace(gradient_depth=l))
        by_l.append(gradients(model, loss_of(model, tokens))["layer.connection.qkv.weight"])
    assert not torch.allclose(by_l[0], by_l[1])
    assert not torch.allclose(by_l[1], by_l[2])


SR2_TINY = HRM_TINY.replace(high_blocks=0, gradient="all")


@pytest.mark.parametrize("name", [*SMALL, "sr2"])
@pytest.mark.parametrize("l", [1, 2, 3, 4])
def test_a_gradient_depth_is_that_of_the_model_or_refused(name, l):
    """Never ignored: whatever the architecture."""
    n, config = 3, (SMALL | {"sr2": SR2_TINY})[name]
    try:
        model = small(config.at_depth(n, l))
    except UserError:
        assert config.architecture not in ("srm", "huginn") or l > n
        return
    _, cache = model.run_with_cache(some_tokens(), detach=False)
    levels = model.points[: model.depth]
    assert [cache[level.sites[-1]].requires_grad for level in levels] == [t >= n - l for t in range(n)]


@pytest.mark.parametrize(
    ("name", "has", "others"),
    [("ouro", 3, (1, 2)), ("hyper in a loop", 3, (1, 2)), ("sr2", 3, (1, 2)), ("hrm", 1, (2, 3))],
)
def test_what_cannot_be_cut_says_where_its_gradient_is(name, has, others):
    config = (SMALL | {"sr2": SR2_TINY})[name]
    assert config.at_depth(3, has) == config.at_depth(3)
    for l in others:
        wrong = (
            rf"gradient_depth = {l}: .* through {has} of 3 levels and cannot be cut.*; leave gradient_depth"
        )
        with pytest.raises(UserError, match=wrong):
            config.at_depth(3, l)
        with pytest.raises(UserError, match=wrong):
            small(config).at_depth(3, l)
        with pytest.raises(UserError, match=wrong):
            small(config)(some_tokens(), depth=3, gradient_depth=l)


@pytest.mark.parametrize("how", [{}, {"progress": 0.5}])
def test_a_pass_with_another_gradient_at_the_models_own_depth(how):
    def slopes(model, **pass_):
        loss = model(some_tokens(), some_tokens(seed=1), **pass_, **how)
        return gradients(model, loss["loss"] if how else loss)

    model = small(SRM_TINY)
    ours, theirs, usual = slopes(model, gradient_depth=1), slopes(model.at_depth(3, 1)), slopes(model)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert any(not torch.equal(ours[name], usual[name]) for name in usual)
    with pytest.raises(UserError, match="gradient_depth = 1: the gradient of ouro goes through 3 of 3"):
        slopes(small(SMALL["ouro"]), gradient_depth=1)


@pytest.mark.parametrize("name", ["srm", "trm", "ouro"])
def test_weights_that_are_frozen_stay_frozen_at_another_depth(name):
    """The weights are shared: what another depth makes of them, the model itself has."""
    model = small(SMALL[name])
    model.requires_grad_(False)
    model.embedding.requires_grad_(True)
    trained = [name for name, weight in model.named_parameters() if weight.requires_grad]
    for one in (model.at_depth(4), model):
        assert [name for name, weight in one.named_parameters() if weight.requires_grad] == trained


def test_logits_do_not_depend_on_the_gradient_depth():
    tokens = some_tokens()
    logits = [small(SRM_TINY.replace(gradient_depth=l))(tokens) for l in (1, 2, 3)]
    assert torch.equal(logits[0], logits[1])
    assert torch.equal(logits[1], logits[2])


def test_hrm_differentiates_the_last_call_of_each_net_and_trm_the_last_cycle():
    tokens = some_tokens()

    def reached(config: ModelConfig) -> set[str]:
        model = small(config)
        _, cache = model.run_with_cache(tokens, names_filter="cycles.**.out", detach=False)
        nets = {name for name in cache if ".blocks." not in name}
        return {name.removesuffix(".out") for name in nets if cache[name].requires_grad}

    assert reached(HRM_TINY) == {"cycles.1.low.1", "cycles.1.high"}
    assert reached(HRM_TINY.replace(gradient="last-cycle")) == {
        "cycles.1.low.0",
        "cycles.1.low.1",
        "cycles.1.high",
    }


def saved_bytes(config: ModelConfig) -> int:
    """Bytes kept for the backward pass, each storage counted once, parameters and tables not."""
    model = small(config, torch.float32)
    tokens = some_tokens(2, 16)
    model(tokens)  # fill the RoPE table
    own = {p.untyped_storage().data_ptr() for p in (*model.parameters(), *model.buffers())}
    own |= {table.untyped_storage().data_ptr() for table in model.rotary.ready.values()}
    kept: dict[int, int] = {}
    held = []

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
            held.append(tensor)  # alive, so that no other tensor gets the same address
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(tokens)
    del loss
    return sum(kept.values())


def test_memory_for_the_backward_pass_depends_on_l_and_not_on_n():
    def at(n: int, l: int) -> int:
        return saved_bytes(SRM_TINY.replace(depth=n, gradient_depth=l))

    assert at(4, 2) == at(8, 2) == at(16, 2)
    per_layer = at(8, 3) - at(8, 2)
    assert per_layer > 0
    assert at(8, 6) == at(8, 2) + 4 * per_layer


def test_hrms_memory_for_the_backward_pass_does_not_depend_on_its_cycles():
    assert saved_bytes(HRM_TINY) == saved_bytes(HRM_TINY.replace(high_cycles=5, low_cycles=4))


def test_without_gradient_nothing_is_saved():
    with torch.no_grad():
        assert saved_bytes(SRM_TINY) == 0


def slope(model, site, put_in):
    """The gradient of the loss to a vector that a hook adds at a site."""
    tokens = some_tokens()
    shape = model.run_with_cache(tokens, site)[1][site].shape
    added = torch.zeros(shape, requires_grad=True)
    loss = model.run_with_hooks(tokens, fwd_hooks=[(site, put_in(added))], return_type="loss")
    return torch.autograd.grad(loss, added)[0]


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(
    ("name", "site"),
    [
        ("srm", "layers.0.out"),
        ("srm", "layers.0.connection.pattern"),
        ("srm", "layers.1.steps.0.neurons.post"),
        ("hrm", "cycles.0.high.out"),
        ("huginn", "steps.0.out"),
    ],
)
def test_what_a_hook_puts_in_before_the_last_layers_has_its_whole_gradient(name, site, in_place):
    model = small(ONE_OF_EACH[name])

    def put_in(added):
        def hook_function(value, hook):  # noqa: ARG001
            if not in_place:
                return value + added
            value += added
            return None

        return hook_function

    found = slope(model, site, put_in)
    with gradient_everywhere():
        expected = slope(model, site, put_in)
    assert expected.any()
    torch.testing.assert_close(found, expected)
    assert torch.is_grad_enabled()


def test_a_hook_that_only_looks_leaves_the_gradient_where_it_is():
    model, tokens = small(SRM_TINY), some_tokens()
    expected = gradients(model, loss_of(model, tokens))
    with model.hooks([("**", lambda value, hook: value * 1)]):  # noqa: ARG005
        found = gradients(model, loss_of(model, tokens))
    torch.testing.assert_close(found, expected)
