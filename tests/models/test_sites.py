"""Sites: cache, hooks and interventions at every named place of the computation."""

from __future__ import annotations

import copy
import pickle
import re

import pytest
import torch
from small_models import ONE_OF_EACH, SMALL, SRM_TINY, gradients, small, some_tokens

from srmlab.errors import UserError
from srmlab.models import PRESETS, Connection, Site, UnknownSite, build, gradient_everywhere, preset
from srmlab.models.connection import CONNECTIONS, connection
from srmlab.models.sites import SILENT

NANO = [name for name in PRESETS if name.endswith("nano")]


INSIDE = 7  # attention.q|k|v|weights|z and neurons.pre|post of every step or block


def expected_count(config) -> int:
    return text_count(config) + (not config.causal)  # the Q head of a puzzle model is one more


def text_count(config) -> int:
    if config.architecture == "srm":
        steps = config.pre_steps + config.post_steps + config.depth * config.calls_per_layer
        has_pattern = config.connection in ("attention", "gate", "translation")
        return 3 + (4 + INSIDE) * steps + (4 if has_pattern else 3) * config.depth
    if config.architecture == "hrm":
        nets = config.high_cycles * (config.low_cycles + (config.high_blocks > 0))
        blocks = config.high_cycles * (config.low_cycles * config.low_blocks + config.high_blocks)
        inside = INSIDE - 5 if config.token_mlp else INSIDE  # no queries, keys, values, weights and heads
        return 3 + 2 * nets + (3 + inside) * blocks
    if config.architecture == "ouro":
        return 3 + config.loops * (2 + (3 + INSIDE) * config.blocks)
    if config.architecture == "huginn":
        return 3 + 2 * config.steps + (3 + INSIDE) * config.sizes.layers
    if config.architecture == "mor":
        routers = config.recursions if config.choice == "expert" else 1
        return 3 + routers + 2 * config.recursions + (3 + INSIDE) * config.sizes.layers
    if config.architecture == "hyper":
        return 3 + max(config.loops, 1) * config.blocks * (3 + INSIDE + 2 * 4)
    return 3 + (3 + INSIDE) * config.blocks


def zero(value, hook):  # noqa: ARG001
    return torch.zeros_like(value)


def look(value, hook):  # noqa: ARG001
    return None


# Every site, once


@pytest.mark.parametrize("name", [*PRESETS, "srm-sweep-width-1", "srm-sweep-stream-64"])
def test_every_preset_lists_every_site_once_as_a_module(name):
    config = preset(name)
    model = build(config, device="meta")
    as_modules = [module_name for module_name, module in model.named_modules() if isinstance(module, Site)]
    assert sorted(as_modules) == sorted(model.site_names)
    assert len(set(model.site_names)) == len(model.site_names) == expected_count(config)


@pytest.mark.parametrize("name", NANO)
def test_a_forward_pass_of_a_nano_model_calls_every_site_exactly_once_and_in_order(name):
    model = build(preset(name))
    called = []
    with torch.no_grad(), model.hooks([(None, lambda value, hook: called.append(hook.name))]):  # noqa: ARG005
        model(some_tokens(1, 4))
    assert called == model.site_names


@pytest.mark.parametrize("name", SMALL)
def test_a_forward_pass_calls_every_site_exactly_once_and_in_order(name):
    model = small(SMALL[name])
    called = []
    with model.hooks([(None, lambda value, hook: called.append(hook.name))]):  # noqa: ARG005
        model(some_tokens())
    assert called == model.site_names
    assert len(called) == expected_count(SMALL[name])


@pytest.mark.parametrize("name", ["srm-large", "srm-base", "hrm", "gpt2"])
def test_the_large_presets_run_through_every_site_without_memory(name):
    model = build(preset(name), device="meta")
    called = []
    with torch.no_grad(), model.hooks([(None, lambda value, hook: called.append(hook.name))]):  # noqa: ARG005
        model(torch.zeros(1, 4, dtype=torch.long, device="meta"))
    assert called == model.site_names


def test_a_connection_that_is_written_anew_brings_its_own_sites(monkeypatch):
    monkeypatch.setitem(CONNECTIONS, "mine", Connection)  # and nothing of that name is left behind

    @connection("mine")
    class Without(Connection):
        def forward(self, z, here):
            return here.streams("out", z)

    build(SRM_TINY.replace(connection="mine"))

    @connection("mine")
    class With(Connection):
        def forward(self, z, here):
            pattern = torch.eye(len(z)).expand(*z.shape[1:3], 1, -1, -1)
            return here.streams("out", z * here("pattern", pattern).sum())

    _, cache = build(SRM_TINY.replace(connection="mine")).run_with_cache(some_tokens())
    assert cache["layers.2.connection.pattern"].shape == (2, 7, 1, 3, 3)


def test_the_names_are_those_of_the_design():
    names = set(small(SRM_TINY.replace(pre_steps=1, post_steps=1)).site_names)
    assert {
        "input.streams",
        "pre.0.out",
        "layers.0.connection.pattern",
        "layers.0.connection.out",
        "layers.0.update",
        "layers.2.steps.1.in",
        "layers.2.steps.1.attn",
        "layers.2.steps.1.mlp",
        "layers.2.steps.1.out",
        "layers.2.out",
        "post.0.out",
        "output.embedding",
        "logits",
    } <= names


def test_sites_are_found_by_walking_the_model():
    model = small(SRM_TINY)
    assert model.layers[2].steps[1].out is model.sites["layers.2.steps.1.out"]
    assert model.layers[-1].out is model.sites["layers.2.out"]
    assert len(list(model.layers)) == SRM_TINY.depth
    assert model.get_submodule("layers.0.connection.pattern") is model.sites["layers.0.connection.pattern"]


def test_values_have_the_papers_axes():
    B, T, S, D, H = 2, 7, 3, 8, 2
    _, cache = small(SRM_TINY).run_with_cache(some_tokens(B, T))
    shapes = {name: tuple(value.shape) for name, value in cache.items()}
    assert shapes.pop("output.embedding") == (B, T, SRM_TINY.embedding_dim)
    assert shapes.pop("logits") == (B, T, SRM_TINY.vocab_size)
    inside = {
        "attention.weights": (B, S, SRM_TINY.token_heads, T, T),
        **{f"attention.{x}": (B, T, S, SRM_TINY.token_heads, SRM_TINY.head_dim) for x in "qkvz"},
        **{f"neurons.{x}": (B, T, S, SRM_TINY.mlp_dim) for x in ("pre", "post")},
    }
    for name, shape in shapes.items():
        if (part := ".".join(name.split(".")[-2:])) in inside:
            assert shape == inside[part], name
            continue
        assert shape == ((B, T, H, S, S) if name.endswith("pattern") else (B, T, S, D)), name


# Looking


@pytest.mark.parametrize("name", SMALL)
def test_looking_changes_nothing(name):
    model = small(SMALL[name])
    tokens = some_tokens()
    logits, cache = model.run_with_cache(tokens)
    torch.testing.assert_close(logits, model(tokens), rtol=0, atol=1e-12)
    assert torch.equal(cache["logits"], logits)


@pytest.mark.parametrize("name", ONE_OF_EACH)
@pytest.mark.parametrize(
    ("wanted", "kept"),
    [
        ("logits", {"logits"}),
        (["logits", "output.embedding"], {"logits", "output.embedding"}),
        ("output.*", {"output.embedding"}),
        (lambda site: site.startswith("log"), {"logits"}),
        ([], set()),
    ],
)
def test_a_filtered_cache_keeps_only_what_was_asked(name, wanted, kept):
    _, cache = small(ONE_OF_EACH[name]).run_with_cache(some_tokens(), names_filter=wanted)
    assert set(cache) == kept


def test_a_star_is_one_part_of_a_name_and_two_are_any_number():
    model = small(SRM_TINY)
    layers = [f"layers.{l}.out" for l in range(SRM_TINY.depth)]
    assert model.select_sites("layers.*.out") == layers
    outs = model.select_sites("layers.**.out")
    assert set(outs) == {name for name in model.site_names if re.fullmatch(r"layers\..*\.out", name)}
    assert len(outs) > len(layers)
    assert model.select_sites("layers.[01].out") == layers[:2]
    assert model.select_sites("**") == model.site_names
    assert model.select_sites(re.compile(r"^layers\.0\.(update|out)$")) == ["layers.0.update", "layers.0.out"]
    with pytest.raises(UnknownSite, match=re.escape("* is one part of a name, ** any number")):
        model.select_sites("*.out")
    with pytest.raises(UserError, match="a filter of sites is a name"):
        model.select_sites(some_tokens())


def test_a_filtered_value_is_the_one_of_the_full_cache():
    model, tokens = small(SRM_TINY), some_tokens()
    everything = model.run_with_cache(tokens)[1]
    for name in model.site_names:
        alone = model.run_with_cache(tokens, names_filter=name)[1]
        torch.testing.assert_close(alone[name], everything[name], rtol=0, atol=1e-12)


def test_a_cache_is_detached_unless_asked():
    model, tokens = small(SRM_TINY), some_tokens()
    _, cache = model.run_with_cache(tokens, names_filter="layers.2.out")
    assert not cache["layers.2.out"].requires_grad


@pytest.mark.parametrize("name", SMALL)
def test_the_gradient_reaches_every_cached_value_on_its_way(name):
    """What gradient-based attribution needs: d logits / d value, here against a finite difference."""
    config = SMALL[name]
    if config.architecture in ("srm", "huginn"):
        config = config.at_depth(3, 3)
    elif config.architecture == "hrm":
        config = config.replace(high_cycles=1, gradient="last-cycle")
    model, tokens = small(config), some_tokens()
    logits, cache = model.run_with_cache(tokens, detach=False)
    for site in model.exit_sites:  # a gate decides nothing in a full pass
        del cache[site]
    found = torch.autograd.grad(logits.square().sum(), list(cache.values()))
    for site, gradient in zip(cache, found, strict=True):
        direction = torch.randn(
            gradient.shape, dtype=gradient.dtype, generator=torch.Generator().manual_seed(0)
        )

        def nudged(amount, site=site, direction=direction):
            hook = (site, lambda value, hook: value + amount * direction)  # noqa: ARG005
            with torch.no_grad():
                return model.run_with_hooks(tokens, [hook]).square().sum()

        difference = (nudged(1e-5) - nudged(-1e-5)) / 2e-5
        torch.testing.assert_close((gradient * direction).sum(), difference, rtol=1e-5, atol=1e-6)


def test_a_pattern_is_computed_only_while_someone_listens_to_it():
    model = small(SRM_TINY)
    with model.hooks([("layers.1.connection.pattern", look)]):
        tap = model.tap()
        assert tap.at("layers.1").at("connection").wants("pattern")
        assert not tap.at("layers.0").at("connection").wants("pattern")
    assert model.tap() is SILENT


def test_the_rows_of_a_pattern_sum_to_one_and_differ_between_streams():
    _, cache = small(SRM_TINY).run_with_cache(some_tokens(), names_filter="**.pattern")
    assert len(cache) == SRM_TINY.depth
    for pattern in cache.values():
        assert (pattern > 0).all()
        torch.testing.assert_close(pattern.sum(-1), torch.ones_like(pattern[..., 0]))
        assert not torch.allclose(pattern[..., 0, :], pattern[..., 1, :])


def test_the_first_layers_connection_is_the_same_for_every_token():
    _, cache = small(SRM_TINY).run_with_cache(some_tokens())
    first, second = cache["layers.0.connection.out"], cache["layers.1.connection.out"]
    torch.testing.assert_close(first, first[:1, :1].expand_as(first), rtol=0, atol=1e-12)
    assert not torch.allclose(second, second[:1, :1].expand_as(second))


# Intervening


@pytest.mark.parametrize("name", SMALL)
def test_replacing_a_value_changes_what_comes_after_and_nothing_before(name):
    model = small(SMALL[name])
    tokens = some_tokens()
    before = model.run_with_cache(tokens)[1]
    names = model.site_names
    idle = [gate.removesuffix("gate") for gate in model.route_sites if (before[gate] != 0).sum(1).max() < 2]
    for index, site in enumerate(names):
        value = before[site]
        noise = torch.rand(value.shape, dtype=value.dtype, generator=torch.Generator().manual_seed(0))

        def replace(old, hook, noise=noise):  # noqa: ARG001
            return old + noise

        with model.hooks([(site, replace)]):
            after = model.run_with_cache(tokens)[1]
        assert torch.equal(after[site], value + noise)
        for earlier in names[:index]:
            if not (site.endswith(".mlp") and earlier == site.removesuffix("mlp") + "attn"):
                assert torch.equal(after[earlier], before[earlier]), (site, earlier)
        alone = SMALL[name].architecture == "srm" and SMALL[name].streams == 1 and site.endswith("pattern")
        if any(site.startswith(level) and site not in model.route_sites for level in idle):
            continue  # a level in which no token has another to look at
        if site in model.exit_sites:
            assert torch.equal(after["logits"], before["logits"])
        elif not alone:
            assert not torch.allclose(after["logits"], before["logits"]), site


@pytest.mark.parametrize("name", SMALL)
def test_giving_back_the_same_value_changes_nothing(name):
    model, tokens = small(SMALL[name]), some_tokens()
    plain = model(tokens)
    copied = model.run_with_hooks(tokens, fwd_hooks=[(None, lambda value, hook: value.clone())])  # noqa: ARG005
    torch.testing.assert_close(copied, plain, rtol=0, atol=1e-12)


@pytest.mark.parametrize("stream", range(3))
@pytest.mark.parametrize("layer", range(3))
def test_patching_one_stream_of_a_layer_from_another_run(layer, stream):
    model = small(SRM_TINY)
    here, there = some_tokens(seed=0), some_tokens(seed=1)
    site = f"layers.{layer}.out"
    clean, corrupt = (model.run_with_cache(tokens)[1] for tokens in (here, there))

    def patch(value, hook):
        value = value.clone()
        value[:, :, stream] = corrupt[hook.name][:, :, stream]
        return value

    with model.hooks([(site, patch)]):
        patched = model.run_with_cache(here)[1]
    for s in range(3):
        source = corrupt if s == stream else clean
        assert torch.equal(patched[site][:, :, s], source[site][:, :, s])
    assert not torch.allclose(patched["logits"], clean["logits"])
    if layer == SRM_TINY.depth - 1:  # the output function is linear in the streams: one stream's share moves
        D = SRM_TINY.stream_dim
        weight = model.output_function.from_streams.weight[:, stream * D : (stream + 1) * D]
        moved = (corrupt[site] - clean[site])[:, :, stream] @ weight.T
        torch.testing.assert_close(patched["output.embedding"] - clean["output.embedding"], moved)


def test_patching_every_stream_carries_the_whole_run_over():
    """After the last layer nothing but the streams matters."""
    model = small(SRM_TINY)
    there = model.run_with_cache(some_tokens(seed=1))[1]
    logits = model.run_with_hooks(some_tokens(seed=0), [("layers.2.out", lambda v, hook: there[hook.name])])  # noqa: ARG005
    torch.testing.assert_close(logits, there["logits"])


def test_a_replaced_pattern_is_the_one_that_is_used():
    """With a pattern that looks only at itself, streams no longer meet."""
    model, tokens = small(SRM_TINY), some_tokens()

    def only_self(pattern, hook):  # noqa: ARG001
        return torch.eye(pattern.shape[-1], dtype=pattern.dtype).expand_as(pattern)

    def states():
        with model.hooks([("**.pattern", only_self)]):
            return model.run_with_cache(tokens, names_filter="layers.2.out")[1]["layers.2.out"]

    before = states()
    with torch.no_grad():
        model.z0[1] += 1
    after = states()
    changed = [not torch.allclose(after[:, :, s], before[:, :, s]) for s in range(3)]
    assert changed == [False, True, False]


def test_an_intervention_is_differentiable():
    model, tokens = small(SRM_TINY), some_tokens()
    scale = torch.ones((), dtype=torch.float64, requires_grad=True)
    logits = model.run_with_hooks(tokens, [("layers.2.update", lambda v, hook: v * scale)])  # noqa: ARG005
    (gradient,) = torch.autograd.grad(logits.square().sum(), scale)
    assert gradient != 0


def test_changing_a_value_in_place_takes_effect():
    model, tokens = small(SRM_TINY), some_tokens()

    def in_place(value, hook):  # noqa: ARG001
        value[:, :, 1] = 0

    def replaced(value, hook):  # noqa: ARG001
        value = value.clone()
        value[:, :, 1] = 0
        return value

    with torch.no_grad():
        one, two = (model.run_with_hooks(tokens, [("layers.1.out", f)]) for f in (in_place, replaced))
    torch.testing.assert_close(one, two)
    assert not torch.allclose(one, model(tokens))


@pytest.mark.parametrize("name", SMALL)
def test_values_may_be_changed_in_place_at_every_site_with_and_without_gradient(name):
    model, tokens = small(SMALL[name]), some_tokens()
    ways = lambda value, _: value.mul_(0.9), lambda value, _: value * 0.9
    with gradient_everywhere():
        losses = [model.run_with_hooks(tokens, [("**", way)], targets=tokens) for way in ways]
    in_place, replaced = (gradients(model, loss) for loss in losses)
    torch.testing.assert_close(*losses)
    torch.testing.assert_close(in_place, replaced)
    with torch.no_grad():
        one, two = (model.run_with_hooks(tokens, [("**", way)]) for way in ways)
    torch.testing.assert_close(one, two)


def test_a_hook_may_return_another_precision():
    model, tokens = small(SRM_TINY), some_tokens()
    logits = model.run_with_hooks(tokens, [("layers.1.out", lambda value, hook: value.float())])  # noqa: ARG005
    assert logits.dtype == torch.float64
    torch.testing.assert_close(logits, model(tokens), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("site", ["layers.1.out", "layers.1.connection.pattern", "logits"])
def test_a_replacement_of_the_wrong_shape_is_refused_by_name(site):
    model = small(SRM_TINY)
    with pytest.raises(ValueError, match=rf"a hook at {re.escape(site)} returned shape .* value has shape"):
        model.run_with_hooks(some_tokens(), [(site, lambda value, hook: value[:1])])  # noqa: ARG005
    assert not model.listening


# Names


@pytest.mark.parametrize(
    ("misspelt", "nearest"),
    [
        ("layers.1.ouut", "layers.1.out"),
        ("layer.2.update", "layers.2.update"),
        ("layers.0.step.1.out", "layers.0.steps.1.out"),
        ("Logits", "logits"),
        ("layers.7.connection.pattern", "layers.2.connection.pattern"),
    ],
)
def test_a_misspelt_name_gets_the_nearest_name(misspelt, nearest):
    model = small(SRM_TINY)
    message = rf"no site is called '{re.escape(misspelt)}'; did you mean '{re.escape(nearest)}'\?"
    for attempt in (
        lambda: model.run_with_cache(some_tokens(), names_filter=misspelt),
        lambda: model.run_with_hooks(some_tokens(), [(misspelt, look)]),
        lambda: model.run_with_cache(some_tokens(), names_filter=["logits", misspelt]),
    ):
        with pytest.raises(UnknownSite, match=message):
            attempt()
    assert not model.listening


def test_a_name_like_no_other_is_told_where_to_look():
    with pytest.raises(UnknownSite, match=r"no site is called 'qqqq'; model.site_names lists them all"):
        small(SRM_TINY).run_with_cache(some_tokens(), names_filter="qqqq")


# Coming and going


def test_hooks_are_gone_after_the_block():
    model, tokens = small(SRM_TINY), some_tokens()
    plain = model(tokens)
    with model.hooks([("layers.0.out", zero)]) as hooked:
        assert hooked is model
        assert model.listening
        assert not torch.allclose(model(tokens), plain)
    assert not model.listening
    assert torch.equal(model(tokens), plain)


def fail(value, hook):  # noqa: ARG001
    raise RuntimeError("on purpose")


def test_hooks_are_gone_even_after_an_exception_in_one():
    model = small(SRM_TINY)
    with pytest.raises(RuntimeError, match="on purpose"):
        model.run_with_hooks(some_tokens(), [(None, look), ("layers.1.out", fail)])
    assert not model.listening
    assert not any(site._forward_hooks for site in model.sites.values())


def test_hooks_are_gone_even_after_an_exception_in_the_block():
    model = small(SRM_TINY)
    with pytest.raises(RuntimeError, match="on purpose"), model.hooks([(None, look)]):
        fail(None, None)
    assert not model.listening


def test_hooks_nest_and_a_cache_holds_the_value_that_was_used():
    model, tokens = small(SRM_TINY), some_tokens()
    order = []

    def add(amount):
        def hook_function(value, hook):  # noqa: ARG001
            order.append(amount)
            return value + amount

        return hook_function

    plain = model.run_with_cache(tokens)[1]["layers.0.out"]
    with model.hooks([("layers.0.out", add(1))]):
        with model.hooks([("layers.0.out", add(10))]):
            _, cache = model.run_with_cache(tokens)
        torch.testing.assert_close(cache["layers.0.out"], plain + 11)
        assert order == [1, 10]
        _, cache = model.run_with_cache(tokens)
        torch.testing.assert_close(cache["layers.0.out"], plain + 1)
        torch.testing.assert_close(
            cache["layers.1.steps.0.in"], cache["layers.0.out"] + cache["layers.1.update"]
        )


def test_several_hooks_at_once():
    model, seen = small(SRM_TINY), []
    model.run_with_hooks(
        some_tokens(),
        [
            ("layers.*.update", lambda value, hook: seen.append(hook.name)),  # noqa: ARG005
            (["logits", "input.streams"], lambda value, hook: seen.append(hook.name)),  # noqa: ARG005
        ],
    )
    assert seen == ["input.streams", *(f"layers.{t}.update" for t in range(3)), "logits"]


def test_ordinary_torch_hooks_on_a_site_work_too():
    model, tokens = small(SRM_TINY), some_tokens()
    site = model.get_submodule("layers.1.out")
    seen, incoming, outgoing = [], [], []
    handles = [
        site.register_forward_hook(lambda _m, _i, out: seen.append(out.shape)),
        site.register_forward_pre_hook(lambda _m, args: incoming.append(args[0].shape)),
        site.register_full_backward_hook(lambda _m, _i, grad: outgoing.append(grad[0].shape)),
    ]
    model(tokens).sum().backward()
    assert seen == incoming == outgoing == [(2, 7, 3, 8)]
    for handle in handles:
        handle.remove()
    assert not model.listening


def test_a_backward_hook_alone_is_heard():
    model = small(SRM_TINY)
    heard = []
    model.get_submodule("layers.2.out").register_full_backward_hook(
        lambda _m, _i, grad: heard.append(grad[0])
    )
    model(some_tokens()).sum().backward()
    assert heard[0].shape == (2, 7, 3, 8)


def test_sites_hold_no_weights():
    names = small(SRM_TINY).state_dict()
    assert not any(name.startswith(("layers.", "input.", "output.")) for name in names)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_sites_are_seen_while_decoding_too(name):
    model = small(ONE_OF_EACH[name])
    tokens = some_tokens()
    whole = model(tokens)
    cache, seen = model.new_cache(), []
    with torch.no_grad(), model.hooks([("logits", lambda value, hook: seen.append(value))]):  # noqa: ARG005
        model.next_token_logits(tokens[:, :4], cache)
        model.next_token_logits(tokens[:, 4:], cache)
    assert [value.shape[1] for value in seen] == [4, 3]
    torch.testing.assert_close(torch.cat(seen, 1), whole, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("name", "earlier", "later"),
    [
        ("srm", "layers.1.steps.2.out", "layers.1.out"),
        ("srm with pre- and post-steps", "input.streams", "pre.0.in"),
        ("hrm", "cycles.1.high.blocks.0.out", "cycles.1.high.out"),
        ("hrm", "cycles.1.high.blocks.0.out", "output.embedding"),
        ("ouro", "loops.2.out", "output.embedding"),
    ],
)
def test_a_hook_that_changes_in_place_does_not_reach_back_to_an_earlier_sites_value(name, earlier, later):
    model, tokens = small(SMALL[name]), some_tokens()
    plain, expected = model.run_with_cache(tokens, [earlier])
    with torch.no_grad(), model.hooks([(later, lambda value, _: value.mul_(3))]):
        changed, cache = model.run_with_cache(tokens)
    torch.testing.assert_close(cache[earlier], expected[earlier])
    torch.testing.assert_close(cache[later], 3 * expected[earlier])
    assert not torch.equal(changed, plain)


@pytest.mark.parametrize("shape", [(1, 0), (0, 3)])
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_empty_input_is_refused(name, shape):
    with pytest.raises(UserError, match="at least one token"):
        small(SMALL[name])(torch.empty(shape, dtype=torch.long))


def test_hooks_that_are_no_pairs_are_refused_in_one_line():
    model = small(SRM_TINY)
    for wrong in (("layers.0.out", zero), [("layers.0.out", "zero")], [("layers.0.out",)]):
        with pytest.raises(UserError, match=r"hooks are a list of \(name, function\) pairs"):
            model.run_with_hooks(some_tokens(), fwd_hooks=wrong)


@pytest.mark.parametrize("nothing", [lambda name: "hook_" in name, re.compile("resid")])
def test_a_function_or_expression_that_selects_no_site_is_refused(nothing):
    model = small(SRM_TINY)
    with pytest.raises(UnknownSite, match="the filter selects no site"):
        model.run_with_hooks(some_tokens(), fwd_hooks=[(nothing, zero)])


@pytest.mark.parametrize("filter", [3, True, [3], ["logits", None]])
def test_what_is_no_filter_of_sites_is_refused_in_one_line(filter):
    with pytest.raises(UserError, match="a filter of sites is a name, a glob"):
        small(SRM_TINY).run_with_cache(some_tokens(), filter)


def test_names_may_come_from_a_generator():
    names = [f"layers.{layer}.out" for layer in (2, 0)]
    assert small(SRM_TINY).select_sites(name for name in names) == names[::-1]


def test_a_hook_that_is_no_function_is_refused_when_it_is_added():
    model = small(SRM_TINY)
    with pytest.raises(UserError, match="pairs, not of"):
        model.add_hook("logits", None)
    with pytest.raises(UserError, match="pairs, not of"):
        model.add_hook(zero, "logits")
    assert not model.listening


def test_a_reset_also_removes_the_hooks_of_open_blocks_and_of_copies():
    model, tokens = small(SRM_TINY), some_tokens()
    plain = model(tokens)
    with model.hooks([("layers.1.out", zero)]):
        taken_along = copy.deepcopy(model)
        assert not torch.equal(model(tokens), plain)
        model.reset_hooks()
        assert torch.equal(model(tokens), plain)
    assert not torch.equal(taken_along(tokens), plain)
    taken_along.reset_hooks()
    assert torch.equal(taken_along(tokens), plain)


def test_a_reset_leaves_torchs_own_hooks():
    model, calls = small(SRM_TINY), []
    model.sites["logits"].register_forward_hook(lambda *_: calls.append(1))
    model.reset_hooks()
    model(some_tokens())
    assert calls == [1]


def test_a_model_with_a_hook_is_pickled_with_it():
    model, tokens = small(SRM_TINY), some_tokens()
    plain = model(tokens)
    model.add_hook("layers.1.out", zero)
    again = pickle.loads(pickle.dumps(model))
    assert torch.equal(again(tokens), model(tokens))
    again.reset_hooks()
    assert torch.equal(again(tokens), plain)


def test_a_cache_shows_dots_only_for_names_it_leaves_out():
    model, tokens = small(SRM_TINY), some_tokens()
    _, few = model.run_with_cache(tokens, ["layers.0.out", "layers.1.out"])
    assert repr(few) == "ActivationCache of 2 values: layers.0.out, layers.1.out"
    assert len(repr(model).splitlines()) < 60
    assert "(layers): SiteGroup of " in repr(model)
    assert repr(model.run_with_cache(tokens)[1]).endswith(" …")


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_ids_that_the_model_does_not_have_are_refused_with_its_range(name):
    model = small(ONE_OF_EACH[name])
    beyond = torch.tensor([[0, model.config.vocab_size]])
    with pytest.raises(UserError, match=f"token ids of 0 to {model.config.vocab_size}: this model's range"):
        model(beyond)
    with pytest.raises(UserError, match=r"tokens of torch\.float32: ids are whole numbers"):
        model(torch.zeros(1, 2))


def test_an_index_error_of_a_hook_is_not_taken_for_one_of_the_ids():
    def wrong(value, hook):  # noqa: ARG001
        raise IndexError("mine")

    with pytest.raises(IndexError, match="mine"):
        small(SRM_TINY).run_with_hooks(some_tokens(), fwd_hooks=[("layers.0.out", wrong)])
