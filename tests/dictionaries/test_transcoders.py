"""Transcoders: what they read and write, one for all depths, across layers, in place of the steps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from counting import text

import srmlab
import srmlab.analysis
import srmlab.dictionaries
from srmlab.data import as_batch
from srmlab.dictionaries import Transcoder, TranscoderConfig, Transcoders
from srmlab.dictionaries.learning import values_at
from srmlab.dictionaries.transcoder import Calls
from srmlab.dictionaries.transcoder_quality import transcoder_qualities
from srmlab.dictionaries.transcoding import places, splice
from srmlab.errors import UserError
from srmlab.interop import saelens

QUICK = {"steps": 25, "features": 48, "k": 4}


@pytest.fixture(scope="module")
def transcoders(small) -> Transcoders:
    return srmlab.dictionaries.learn(small, text, of="mlp", **QUICK)


@pytest.fixture(scope="module")
def crossing(small) -> Transcoders:
    return srmlab.dictionaries.learn(small, text, of="mlp", **QUICK, reach=3)


def by_hand(member: Transcoder, given: list[torch.Tensor], call: int, s: int) -> torch.Tensor:
    """What a transcoder writes in a stream at a call [B, T, D], feature by feature."""
    config = member.config
    total = member.target[s].expand(*given[0].shape[:2], -1).clone()
    for i in range(call + 1):
        distance = config.levels[call] - config.levels[i]
        if i != call and (config.reach == 1 or distance >= config.reach):
            continue
        before = (given[i][:, :, s] - member.centre[s]) @ member.encoder[s] + member.bias[s]
        kept = before.relu().topk(config.k)
        for place in range(config.k):
            direction = member.written()[distance][s][kept.indices[..., place]]
            total += kept.values[..., place, None] * direction
    return total


@pytest.mark.parametrize("which", ["transcoders", "crossing"])
def test_what_is_written_is_the_sum_of_the_features_of_this_and_earlier_levels(small, which, request):
    found = request.getfixturevalue(which)
    member = found["B"]
    assert member.config.levels == (0, 1, 2)
    _, cache = small.run_with_cache(text(0), list(member.config.points))
    given = [cache[site] for site in member.config.points]
    with torch.no_grad():
        codes = [member.encode(value) for value in given]
        for call in range(3):
            written = member.write(codes[: call + 1], given[call])
            for s in range(4):
                torch.testing.assert_close(written[:, :, s], by_hand(member, given, call, s))
        states = torch.cat([g.flatten(0, 1) for g in given]).transpose(0, 1)  # [S, calls · N, D]
        rebuilt = member.rebuild(member._encode(states), states)
    torch.testing.assert_close(rebuilt[:, -64:], written.flatten(0, 1).transpose(0, 1))


def test_a_call_alone_writes_its_skip_too_and_is_refused_where_earlier_calls_write(small, crossing):
    states = torch.randn(5, 4, 16, generator=torch.Generator().manual_seed(0))
    member = srmlab.dictionaries.learn(small, text, of="mlp", steps=2, features=16, k=2, skip=True)["A"]
    torch.testing.assert_close(member(states), member.write([member.encode(states)], states))
    with pytest.raises(UserError, match="needs what it reads too"):
        member.decode(member.encode(states))
    one = crossing["A"]
    with pytest.raises(UserError, match="writes across layers"):
        one(states)
    with pytest.raises(UserError, match="needs the codes of earlier calls too"):
        one.decode(one.encode(states))
    plain = srmlab.dictionaries.learn(small, text, of="mlp", steps=2, features=16, k=2)["A"]
    torch.testing.assert_close(plain(states), plain.decode(plain.encode(states)))


def test_a_call_of_a_model_in_half_precision_writes_its_skip_too(small):
    (first, *_) = srmlab.dictionaries.learn(small, text, of="mlp", steps=2, features=24, k=3, skip=True)
    given = torch.randn(2, 3, 4, 16, generator=torch.Generator().manual_seed(0)).bfloat16()
    assert torch.equal(first(given), first(given.float()))


def test_a_transcoder_is_not_taken_for_a_dictionary_of_states(small, transcoders, unseen, tmp_path):
    for one in (transcoders["A"], transcoders):
        for wrong in (
            lambda one=one: srmlab.dictionaries.quality(small, one, unseen),
            lambda one=one: srmlab.dictionaries.translations(small, unseen, one),
            lambda one=one: srmlab.dictionaries.save(one, tmp_path / "saved"),
            lambda one=one: saelens.save(one, tmp_path / "saved"),
            lambda one=one: srmlab.dictionaries.hold_features(one, [(0, 1, 0.0)]),
        ):
            with pytest.raises(UserError, match="a dictionary of states"):
                wrong()
    assert not (tmp_path / "saved").exists()


def test_all_calls_of_a_step_function_share_one_and_sites_come_from_the_model(small, transcoders):
    names = [member.config.name for member in transcoders]
    assert names == list(small.call_groups)
    calls = [call for call in small.calls if call.group == "C"]
    assert transcoders["C"].config.points == tuple(call.given for call in calls)
    assert transcoders["C"].config.writes == tuple(dict(call.parts)["mlp"] for call in calls)
    values = values_at(small, as_batch(text(0)).to(small.device), transcoders["C"].writes)
    _, cache = small.run_with_cache(text(0), transcoders["C"].config.writes[1])
    expected = cache[transcoders["C"].config.writes[1]].flatten(0, 1).transpose(0, 1)
    torch.testing.assert_close(values[transcoders["C"].config.writes[1]], expected)


def test_an_order_that_calls_a_step_twice_has_both_calls_at_their_level():
    model = srmlab.build(srmlab.preset("srm-nano").replace(order="ABBC", depth=2, gradient_depth=1))
    place = next(p for p in places(model, "mlp", False) if p["name"] == "B")
    assert place["levels"] == (0, 0, 1, 1)


@pytest.mark.parametrize("options", [{}, {"reach": 2}, {"skip": True, "activation": "jumprelu"}])
def test_the_same_seed_gives_the_same_to_the_bit_and_it_is_read_back(small, options, tmp_path):
    one, other = (
        srmlab.dictionaries.learn(small, text, of="mlp", steps=4, features=16, k=2, patience=64, **options)
        for _ in range(2)
    )
    folder = srmlab.dictionaries.save_transcoders(one, tmp_path / "t")
    again = srmlab.dictionaries.load_transcoders(folder)
    for a, b, c in zip(one, other, again, strict=True):
        assert a.config == b.config == c.config
        for name, value in a.state_dict().items():
            assert torch.equal(value, b.state_dict()[name]), name
            assert torch.equal(value, c.state_dict()[name]), name


def test_they_explain_what_is_written_and_shuffled_features_do_not(small, transcoders, unseen):
    found = srmlab.dictionaries.transcoder_quality(small, transcoders, unseen)
    assert found.mean_explained > 0.3
    assert 0 < found.all_recovered <= 1
    assert found.replaced[:2] == ("A S0", "A S1")
    assert found.recovered.shape == (12,)
    _, cache = small.run_with_cache(torch.cat(unseen), list(transcoders["A"].config.points))
    _, wrote = small.run_with_cache(torch.cat(unseen), list(transcoders["A"].config.writes))
    given, value = cache[transcoders["A"].config.points[1]], wrote[transcoders["A"].config.writes[1]]
    with torch.no_grad():
        left = (value - transcoders["A"](given)).square().sum((0, 1, 3))
    spread = (value - value.mean((0, 1))).square().sum((0, 1, 3))
    row = found.calls.index(transcoders["A"].config.writes[1])
    np.testing.assert_allclose(found.explained[row], (1 - left / spread).numpy(), atol=1e-5)
    for name in ("explained", "spliced", "all_recovered", "mean_active"):
        assert np.isfinite(found.standard_error(name)).all(), name
    for how in ("shuffled", "random"):
        null = srmlab.dictionaries.transcoder_quality(small, transcoders.changed(how), unseen, each=False)
        assert null.mean_explained < found.mean_explained - 0.2
        assert null.recovered.shape == (0,)
        np.testing.assert_allclose(null.active, found.active)


def test_those_that_are_measured_together_are_worth_what_each_is_alone(small, crossing, unseen):
    several = [crossing, crossing.changed("shuffled")]
    together = transcoder_qualities(small, several, unseen, each=True)
    assert [len(one.spliced) for one in together] == [3 * 4, 0]  # each alone, of the first
    for one, found in zip(several, together, strict=True):
        alone = srmlab.dictionaries.transcoder_quality(small, one, unseen, each=one is crossing)
        assert found.summary() == alone.summary()
        np.testing.assert_array_equal(found.explained, alone.explained)


@pytest.mark.parametrize(("which", "kept"), [("transcoders", 0), ("crossing", 2)])
def test_codes_are_kept_only_as_long_as_they_are_written(small, which, kept, request):
    member = request.getfixturevalue(which)["A"]
    _, cache = small.run_with_cache(text(0), list(member.config.points))
    calls = Calls(member)
    for site in member.config.points[:2]:
        calls.write(cache[site])
    assert len([codes for codes in calls.codes if codes is not None]) == kept


def test_replacing_all_is_running_on_what_they_write(small, transcoders, unseen):
    tokens = unseen[0]
    hooks = splice(transcoders)
    seen: dict[str, torch.Tensor] = {}
    member = transcoders["A"]
    watch = [
        ((member.config.points[2], member.config.writes[2]), lambda v, hook: seen.update({hook.name: v}))
    ]
    with torch.no_grad(), small.hooks([*hooks, *watch]):
        changed = small(tokens)
    given, written = (seen[site] for site in (member.config.points[2], member.config.writes[2]))
    with torch.no_grad():
        torch.testing.assert_close(written, member(given))
    found = srmlab.dictionaries.transcoder_quality(small, transcoders, [tokens], each=False)
    loss = torch.nn.functional.cross_entropy(changed[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    assert float(found.all_spliced) == pytest.approx(loss.item(), abs=1e-5)


def test_a_perfect_transcoder_recovers_everything(small, unseen):
    """Of the identity: a step's input is its own output, by a skip connection."""
    call = small.calls[0]
    config = TranscoderConfig(
        4, 16, 8, 1, (call.given,), name="A", writes=(call.given,), levels=(0,), skip=True
    )
    member = Transcoder(config)
    member.encoder.data.zero_()
    assert member.skip is not None
    member.skip.data.copy_(torch.eye(16))
    with torch.no_grad(), small.hooks(splice(Transcoders((member,)))):
        changed = small(unseen[0])
    torch.testing.assert_close(changed, small(unseen[0]))


def test_one_for_each_depth_is_learned_to_compare(small, unseen):
    apart = srmlab.dictionaries.learn(small, text, of="mlp", **QUICK, per_depth=True)
    assert [member.config.name for member in apart][:4] == ["A-0", "B-1", "C-2", "A-3"]
    found = srmlab.dictionaries.transcoder_quality(small, apart, unseen, each=False)
    assert found.explained.shape == (9, 4)
    assert found.mean_explained > 0.3


@pytest.mark.parametrize("of", ["attention", "step"])
def test_other_parts_of_a_step_are_learned_too(small, unseen, of):
    learned = srmlab.dictionaries.learn(small, text, of=of, steps=10, features=32, k=4)
    found = srmlab.dictionaries.transcoder_quality(small, learned, unseen, each=False)
    assert found.of == of
    assert np.isfinite(found.mean_explained)


def test_quality_is_saved_told_and_drawn(small, crossing, unseen, tmp_path):
    found = srmlab.dictionaries.transcoder_quality(small, crossing, unseen, each=False)
    again = srmlab.analysis.load(found.save(tmp_path / "quality"))
    assert again.summary() == found.summary()
    assert "writing 3 levels ahead" in found.summary()
    assert found.figure().axes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"of": "norm"}, "of = 'norm': must be one of states, mlp, attention, step"),
        ({"reach": 9}, "reach = 9: give 1 to 3 levels"),
        ({"reach": 2, "per_depth": True}, "and 1 with one for each depth"),
        ({"steps": 0}, "steps = 0"),
    ],
)
def test_what_cannot_be_learned_is_refused(small, options, message):
    with pytest.raises(UserError, match=message):
        srmlab.dictionaries.learn(small, text, **({"of": "mlp", "steps": 1} | options))


def test_transcoders_of_another_model_and_damaged_files_are_refused(small, transcoders, unseen, tmp_path):
    other = srmlab.build(small.config.replace(init_seed=3))
    with pytest.raises(UserError, match="learned on other weights"):
        srmlab.dictionaries.transcoder_quality(other, transcoders, unseen)
    with pytest.raises(UserError, match="`srmlab transcoder RUN` learns them"):
        srmlab.dictionaries.load_transcoders(tmp_path)
    folder = srmlab.dictionaries.save_transcoders(transcoders, tmp_path / "t")
    (folder / "transcoders.safetensors").write_bytes(b"no")
    with pytest.raises(UserError, match="damaged transcoders"):
        srmlab.dictionaries.load_transcoders(folder)
