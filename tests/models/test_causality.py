"""What may depend on what: no token on a later one, no stream on another but through the connection,
no document on another."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import GPT2_TINY, ONE_OF_EACH, SMALL, SRM_TINY, VOCAB, small, some_tokens

from srmlab.models import Pass, build

T = 8


@pytest.mark.parametrize("name", SMALL)
@settings(max_examples=8)
@given(changed=st.integers(0, T - 1), seed=st.integers(0, 99))
def test_changing_a_token_changes_no_logit_before_it(name, changed, seed):
    model = small(SMALL[name])
    tokens = some_tokens(1, T, seed)
    other = tokens.clone()
    other[:, changed] = (tokens[:, changed] + 1) % VOCAB
    with torch.no_grad():
        before, after = model(tokens), model(other)
    torch.testing.assert_close(after[:, :changed], before[:, :changed], rtol=0, atol=1e-12)
    assert not torch.allclose(after[:, changed:], before[:, changed:])


@pytest.mark.parametrize("name", SMALL)
def test_a_logit_depends_on_every_token_up_to_its_own_and_on_none_after(name):
    """By gradient: exact zeros after it, something everywhere before."""
    config = SMALL[name]
    if (
        config.architecture == "srm"
    ):  # z_0 = x or a later layer's gradient would otherwise stop at layer n − l
        config = config.replace(gradient_depth=config.depth)
    model = small(config)
    embedding = model.get_submodule(
        "input_function.embedding" if config.architecture == "srm" else "embedding"
    )
    taken = []
    embedding.register_forward_hook(lambda _m, _i, out: taken.append(out) or out.retain_grad())
    model(some_tokens(1, T))[0, 4].sum().backward()
    reach = taken[0].grad[0].abs().sum(-1)
    assert torch.equal(reach[5:], torch.zeros_like(reach[5:]))
    assert (reach[:5] > 0).all()


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_rows_of_a_batch_do_not_meet(name):
    model = small(ONE_OF_EACH[name])
    tokens = some_tokens(3)
    with torch.no_grad():
        together = model(tokens)
        alone = torch.cat([model(row[None]) for row in tokens])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-12)


def states_of(model, tokens):
    names = [f"layers.{t}.out" for t in range(model.config.depth)]
    return model.run_with_cache(tokens, names_filter=names)[1]


def changed_streams(before, after, streams):
    """Per layer, the streams whose state changed."""
    return [
        {s for s in range(streams) if not torch.equal(before[name][:, :, s], after[name][:, :, s])}
        for name in before
    ]


CUT = SRM_TINY.replace(streams=4, pre_steps=1, order="ABCA")


def perturb_input_weights(model, stream):
    D = model.config.stream_dim
    model.input_function.to_streams.weight[stream * D : (stream + 1) * D] += 0.5


def perturb_first_state(model, stream):
    model.z0[stream] += 0.5


def perturb_step_weights(model, stream):
    for parameter in model.layer.steps[1].parameters():
        parameter[stream] += 0.5


@pytest.mark.parametrize("perturb", [perturb_input_weights, perturb_first_state, perturb_step_weights])
def test_with_the_connection_cut_a_stream_changes_only_itself(perturb):
    model = small(CUT)
    tokens = some_tokens()
    with torch.no_grad():
        model.layer.connection.out.weight.zero_()
        before = states_of(model, tokens)
        perturb(model, 2)
        after = states_of(model, tokens)
    assert changed_streams(before, after, 4) == [{2}] * CUT.depth


@pytest.mark.parametrize("perturb", [perturb_input_weights, perturb_first_state, perturb_step_weights])
def test_with_the_connection_a_stream_reaches_all_others(perturb):
    model = small(CUT)
    tokens = some_tokens()
    with torch.no_grad():
        before = states_of(model, tokens)
        perturb(model, 2)
        after = states_of(model, tokens)
    assert changed_streams(before, after, 4)[-1] == {0, 1, 2, 3}


def test_a_step_carries_nothing_between_streams():
    model = small(CUT)
    x = torch.randn(4, 2, T, CUT.stream_dim, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    other = x.clone()
    other[1] += 1
    here = Pass()
    here.rotary = model.rotary(0, T, like=x)
    with torch.no_grad():
        before, after = (model.layer.steps[0](v, None, here) for v in (x, other))
    assert [torch.equal(a, b) for a, b in zip(after, before, strict=True)] == [True, False, True, True]


def test_the_connection_carries_nothing_between_tokens():
    model = small(CUT)
    z = torch.randn(4, 2, T, CUT.stream_dim, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    other = z.clone()
    other[:, 0, 3] += 1
    with torch.no_grad():
        before, after = model.layer.connection(z, Pass()), model.layer.connection(other, Pass())
    changed = [[not torch.allclose(after[:, b, t], before[:, b, t]) for t in range(T)] for b in range(2)]
    assert changed == [[t == 3 for t in range(T)], [False] * T]


def test_in_the_connection_every_stream_reads_every_stream():
    model = small(CUT)
    z = torch.randn(4, 1, 1, CUT.stream_dim, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    reach = (
        torch.autograd.functional.jacobian(lambda z: model.layer.connection(z, Pass()), z)
        .abs()
        .sum((1, 2, 3, 5, 6, 7))
    )
    assert (reach > 0).all()


# Documents

DOCUMENTS = torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2], [5, 5, 5, 5, 5, 5, 5, 7]])


@pytest.mark.parametrize("name", [name for name in SMALL if name != "gpt2"])
def test_packed_documents_give_what_each_gives_alone(name):
    """RoPE is relative: where in the window a document starts makes no difference."""
    model = small(SMALL[name])
    tokens = some_tokens(2, T)
    with torch.no_grad():
        packed = model(tokens, documents=DOCUMENTS)
        for row, ids in enumerate(DOCUMENTS):
            for document in ids.unique():
                place = ids == document
                alone = model(tokens[row : row + 1, place])
                torch.testing.assert_close(packed[row, place], alone[0], rtol=0, atol=1e-10)


def test_packed_documents_of_gpt2_keep_their_positions():
    model = small(GPT2_TINY)
    shifted = small(GPT2_TINY)
    tokens = some_tokens(1, T)
    documents = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1]])
    with torch.no_grad():
        packed = model(tokens, documents=documents)
        shifted.positions.weight[:5] = model.positions.weight[3:8]
        torch.testing.assert_close(packed[:, :3], model(tokens[:, :3]), rtol=0, atol=1e-12)
        torch.testing.assert_close(packed[:, 3:], shifted(tokens[:, 3:]), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_nothing_leaks_from_one_document_into_the_next(name):
    model = small(ONE_OF_EACH[name])
    tokens = some_tokens(2, T)
    other = tokens.clone()
    other[0, :3] = (other[0, :3] + 1) % VOCAB  # the first document of the first row
    with torch.no_grad():
        before, after = model(tokens, documents=DOCUMENTS), model(other, documents=DOCUMENTS)
        assert not torch.allclose(model(tokens)[0, 3:], model(other)[0, 3:])  # without documents it does leak
    torch.testing.assert_close(after[0, 3:], before[0, 3:], rtol=0, atol=1e-12)
    torch.testing.assert_close(after[1], before[1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_single_document_is_no_document_mask(name):
    model = small(ONE_OF_EACH[name])
    tokens = some_tokens(2, T)
    with torch.no_grad():
        masked = model(tokens, documents=torch.zeros_like(tokens))
        torch.testing.assert_close(masked, model(tokens), rtol=0, atol=1e-12)


def test_documents_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"documents of shape \(2, 3\): need the shape of tokens, \(2, 8\)"):
        build(SRM_TINY)(some_tokens(2, T), documents=torch.zeros(2, 3))


def test_documents_and_a_cache_are_refused_together():
    model = build(SRM_TINY)
    with pytest.raises(ValueError, match="documents and a cache cannot be combined"):
        model(some_tokens(2, T), documents=DOCUMENTS, cache=model.new_cache())
