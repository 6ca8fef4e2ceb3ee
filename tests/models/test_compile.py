"""Compiled models: equal to eager ones, in one graph, and open to hooks added afterwards."""

from __future__ import annotations

import pytest
import torch
from small_models import (
    GPT2_TINY,
    HRM_TINY,
    HUGINN_TINY,
    HYPER_TINY,
    MOR_TINY,
    OURO_TINY,
    SRM_TINY,
    TRM_TINY,
    gradients,
    some_tokens,
)
from torch._dynamo.exc import Unsupported

from srmlab.models import build

pytestmark = [
    pytest.mark.slow,
    # what the compiler itself does
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*autograd.function.Function.* should not be:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),
]

SRM_SHORT = SRM_TINY.replace(depth=2, gradient_depth=1, step_functions=1, order="A", streams=2)
SHORT = {
    "srm": SRM_SHORT,
    "srm with pre- and post-steps": SRM_SHORT.replace(pre_steps=1, post_steps=1, post_input="state+update"),
    "srm in random order": SRM_SHORT.replace(step_functions=2, order="random:2", norm_affine=True),
    "hrm": HRM_TINY.replace(low_blocks=1, high_cycles=1),
    "trm": TRM_TINY.replace(low_blocks=1, high_blocks=1),
    "gpt2": GPT2_TINY.replace(blocks=1),
    "ouro": OURO_TINY.replace(blocks=1, loops=2),
    "hyper": HYPER_TINY.replace(blocks=1, loops=2),
    "huginn": HUGINN_TINY.replace(core=1, steps=2),
    "mor": MOR_TINY.replace(core=1, recursions=2),
}


def recording():
    """A backend that runs each graph as it is, and the list of the graphs it was given."""
    graphs = []

    def backend(graph, _inputs):
        graphs.append(graph)
        return graph.forward

    return graphs, backend


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def assert_equal_to_eager(compiled, eager) -> None:
    tokens, targets = some_tokens(), some_tokens(seed=1)
    logits = compiled(tokens)
    torch.testing.assert_close(logits, eager(tokens), rtol=0, atol=1e-5)
    ours = gradients(compiled, logits.square().mean())
    theirs = gradients(eager, eager(tokens).square().mean())
    for (name, gradient), expected in zip(ours.items(), theirs.values(), strict=True):
        torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")
    torch.testing.assert_close(compiled(tokens, targets), eager(tokens, targets), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        pytest.param("srm", "inductor", marks=pytest.mark.soak),
        ("srm", "aot_eager"),
        ("hrm", "aot_eager"),
    ],
)
def test_the_whole_model_compiles_to_one_graph_and_equals_eager(name, backend):
    compiled = torch.compile(build(SHORT[name]), fullgraph=True, backend=backend)
    assert_equal_to_eager(compiled, build(SHORT[name]))


@pytest.mark.parametrize("name", SHORT)
def test_every_kind_of_model_is_captured_whole_and_once(name):
    """Full graph, without the compiler's back end: quick enough for every kind."""
    model = build(SHORT[name]).eval()
    graphs, backend = recording()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    tokens = some_tokens()
    for _ in range(3):
        torch.testing.assert_close(compiled(tokens), model(tokens), rtol=0, atol=1e-6)
    assert len(graphs) == 1
    torch.testing.assert_close(compiled(tokens, tokens), model(tokens, tokens), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("srm", "inductor"),
        ("hrm", "aot_eager"),
        ("gpt2", "aot_eager"),
        ("ouro", "aot_eager"),
        ("hyper", "aot_eager"),
    ],
)
def test_compiling_the_parts_equals_eager(name, backend):
    model = build(SHORT[name])
    model.compile(backend=backend)
    assert_equal_to_eager(model, build(SHORT[name]))


@pytest.mark.parametrize("name", ["srm", "hrm", "gpt2", "ouro", "hyper"])
def test_the_parts_are_what_is_compiled(name):
    """Each part is handed to the compiler once, whatever the number of its calls."""
    graphs, backend = recording()
    model, eager = build(SHORT[name]).eval(), build(SHORT[name]).eval()
    model.compile(backend=backend, fullgraph=True)
    tokens = some_tokens()
    torch.testing.assert_close(model(tokens), eager(tokens), rtol=0, atol=1e-6)
    assert graphs
    first = len(graphs)
    model(tokens)
    assert len(graphs) == first


def zero(value, hook):  # noqa: ARG001
    return value * 0


def test_hooks_added_after_compiling_the_parts_take_effect():
    model, eager = build(SRM_SHORT), build(SRM_SHORT)
    model.compile(backend="eager")
    tokens = some_tokens()
    plain = model(tokens)
    for _ in range(2):
        for site in ("layers.1.steps.0.out", "layers.0.connection.pattern", "layers.1.update"):
            ours, theirs = (m.run_with_hooks(tokens, [(site, zero)]) for m in (model, eager))
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
            assert not torch.allclose(ours, plain)
        assert torch.equal(model(tokens), plain)
    _, cache = model.run_with_cache(tokens)
    assert list(cache) == model.site_names


def test_hooks_added_after_compiling_the_whole_take_effect():
    model, eager = build(SRM_SHORT), build(SRM_SHORT)
    compiled = torch.compile(model, backend="eager")
    tokens = some_tokens()
    plain = compiled(tokens)
    for factor in (0.0, 2.0, 0.0):  # another hook at the same site is another hook
        hook = ("layers.1.out", lambda value, hook, factor=factor: value * factor)  # noqa: ARG005
        with model.hooks([hook]):
            ours = compiled(tokens)
        torch.testing.assert_close(ours, eager.run_with_hooks(tokens, [hook]), rtol=0, atol=1e-6)
        torch.testing.assert_close(compiled(tokens), plain, rtol=0, atol=1e-6)


def test_training_with_hooks_or_at_another_depth_is_not_taken_for_a_loss_alone():
    model, tokens = build(SHORT["ouro"]), some_tokens()
    compiled = torch.compile(model, backend="eager")
    with model.hooks([("loops.0.out", zero)]):
        ours, theirs = (m(tokens, tokens, progress=0.5) for m in (compiled, model))
    assert ours == theirs
    ours, theirs = (m(tokens, tokens, progress=0.5, depth=1) for m in (compiled, model))
    assert ours == theirs


def test_hooks_and_a_full_graph_are_refused_with_the_reason():
    model = build(SRM_SHORT)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    tokens = some_tokens()
    plain = compiled(tokens)
    for _ in range(2):
        with (
            model.hooks([("layers.1.out", zero)]),
            pytest.raises(Unsupported, match=r"somebody listens at a site(.|\n)*Use model.compile\(\)"),
        ):
            compiled(tokens)
        torch.testing.assert_close(compiled(tokens), plain, rtol=0, atol=1e-6)


def test_a_cache_of_a_compiled_model_is_the_cache_of_the_model():
    model = build(SRM_SHORT).eval()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    tokens = some_tokens()
    compiled(tokens)
    _, ours = compiled.run_with_cache(tokens)
    _, theirs = model.run_with_cache(tokens)
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_silent_graph_has_no_trace_of_the_sites():
    graphs, backend = recording()
    torch.compile(build(SRM_SHORT), fullgraph=True, backend=backend)(some_tokens())
    (graph,) = graphs
    assert not any("site" in str(node.target).lower() for node in graph.graph.nodes)
    assert not [node for node in graph.graph.nodes if node.op == "call_module"]
