from __future__ import annotations

import copy
import json

import pytest
import torch
from counting import text
from hypothesis import given
from hypothesis import strategies as st

import srmlab
import srmlab.dictionaries
from srmlab.data import as_batch
from srmlab.dictionaries import Dictionary, DictionaryConfig
from srmlab.dictionaries.dictionary import largest
from srmlab.dictionaries.learning import Learner, learn_all, new_dictionary, replace, values_at
from srmlab.dictionaries.transcoding import new_transcoders
from srmlab.errors import UserError


@given(k=st.integers(1, 8), seed=st.integers(0, 99))
def test_at_most_k_features_are_in_use_and_they_are_the_largest(k, seed):
    dictionary = Dictionary(DictionaryConfig(streams=3, dim=6, features=8, k=k), seed)
    states = torch.randn(10, 3, 6, generator=torch.Generator().manual_seed(seed))
    activations, codes = dictionary.activations(states), dictionary.encode(states)
    assert int((codes > 0).sum(-1).max()) <= k
    for s in range(3):
        for n in range(10):
            kept = sorted(codes[n, s][codes[n, s] > 0].tolist(), reverse=True)
            expected = sorted(activations[n, s][activations[n, s] > 0].tolist(), reverse=True)[:k]
            assert kept == expected


def test_a_code_is_decoded_as_the_sum_of_its_directions():
    dictionary = Dictionary(DictionaryConfig(streams=2, dim=6, features=8, k=3))
    dictionary.centre.data.normal_()
    codes = torch.zeros(2, 8)
    codes[1, 2], codes[1, 5] = 2.0, 0.5
    expected = dictionary.centre[1] + 2 * dictionary.directions[1, 2] + 0.5 * dictionary.directions[1, 5]
    torch.testing.assert_close(dictionary.decode(codes)[1], expected)


def test_a_sites_value_is_encoded_and_decoded_as_it_comes(small, dictionary):
    """Also with as many tokens as streams, where the axes could be mistaken for one another."""
    for tokens in (text(0), text(0)[:, :4]):
        _, cache = small.run_with_cache(tokens, "layers.2.out")
        states = cache["layers.2.out"]  # [B, T, S, D]
        codes = dictionary.encode(states)
        for s in range(4):
            centred = states[:, :, s] - dictionary.centre[s]
            activations = (centred @ dictionary.encoder[s] + dictionary.bias[s]).relu()
            torch.testing.assert_close(dictionary.activations(states)[:, :, s], activations)
            torch.testing.assert_close(codes[:, :, s], largest(activations, 4))
        rebuilt = dictionary.centre + torch.einsum("btsf,sfd->btsd", codes, dictionary.directions)
        torch.testing.assert_close(dictionary(states), rebuilt)
        one = dictionary.encode(states[0, 0])  # one token: [S, D]
        torch.testing.assert_close(one, codes[0, 0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_states_and_dictionaries_of_any_precision_go_together(dictionary, dtype):
    states = torch.randn(3, 5, 4, 16, generator=torch.Generator().manual_seed(0))
    same = dictionary.encode(states.to(dtype).float())
    assert torch.equal(dictionary.encode(states.to(dtype)), same)
    assert torch.equal(dictionary.decode(same.double()), dictionary.decode(same))
    other = copy.deepcopy(dictionary).to(dtype)
    assert other(states).dtype == dtype


def test_another_layout_is_refused_with_the_shape_that_is_wanted(dictionary):
    for shape in ((4, 10, 16), (4, 16, 16), (10, 16), (16,)):
        with pytest.raises(UserError, match=r"need \[…, 4, 16\]"):
            dictionary.encode(torch.zeros(shape))
    with pytest.raises(UserError, match=r"need \[…, 4, 64\]"):
        dictionary.decode(torch.zeros(10, 4, 16))


def test_states_are_those_of_the_sites(small):
    tokens = text(0)
    _, cache = small.run_with_cache(tokens, "layers.*.out")
    batch = as_batch(tokens).to(small.device)
    found = values_at(small, batch, ("layers.0.out", "layers.2.out"))
    for site, states in found.items():
        torch.testing.assert_close(states, cache[site].flatten(0, 1).transpose(0, 1))
    assert len(found) == 2


def test_known_directions_are_found(small, monkeypatch):
    """States are sums of two of twelve directions in eight dimensions: the dictionary finds all twelve."""
    torch.manual_seed(0)
    true = torch.nn.functional.normalize(torch.randn(1, 12, 8), dim=-1)

    def states(_model, batch, points):
        draw = torch.Generator().manual_seed(int(batch.tokens[0, 0]))
        size = torch.rand(1, 512, 12, generator=draw) + 0.5
        chosen = largest(torch.rand(1, 512, 12, generator=draw), 2) > 0
        return dict.fromkeys(points, torch.bmm(size * chosen, true))

    monkeypatch.setattr(srmlab.dictionaries.learning, "values_at", states)
    model = srmlab.build(small.config.replace(streams=1, stream_dim=8))
    found = srmlab.dictionaries.learn(
        model, lambda step: torch.full((1, 1), step), steps=1500, features=24, k=2, lr=5e-3, patience=5000
    )
    nearest = (true[0] @ found.directions[0].T).amax(1)
    assert nearest.min() > 0.95


def test_learning_explains_more_and_more_and_is_the_same_again(small):
    left: list[float] = []
    one = srmlab.dictionaries.learn(
        small, text, steps=40, features=64, k=4, progress=lambda _, unexplained: left.append(unexplained)
    )
    other = srmlab.dictionaries.learn(small, text, steps=40, features=64, k=4)
    assert left[-1] < 0.8 * left[0]
    assert len(left) == 40
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    torch.testing.assert_close(one.directions.norm(dim=-1), torch.ones(4, 64))


def test_dictionaries_that_learn_from_the_same_passes_learn_as_each_would_alone(small):
    kinds = [{"k": 1, "activation": "topk"}, {"k": 4, "activation": "batchtopk"}]
    alone = [srmlab.dictionaries.learn(small, text, steps=3, features=16, **kind) for kind in kinds]
    together = [new_dictionary(small, 16, **kind) for kind in kinds]
    passes = []
    learn_all(small, lambda step: passes.append(step) or text(step), together, steps=3)
    assert passes == [0, 1, 2]
    for one, other in zip(alone, together, strict=True):
        assert not other.training
        for name, value in one.state_dict().items():
            assert torch.equal(value, other.state_dict()[name])


def test_learning_is_the_same_where_gradients_are_turned_off(small):
    def learned() -> Dictionary:
        return srmlab.dictionaries.learn(small, text, steps=2, features=16, k=2, activation="jumprelu")

    with torch.no_grad():
        found = learned()
    assert found.mark == learned().mark


def test_learning_leaves_the_model_as_it_was(small):
    before = {name: value.clone() for name, value in small.state_dict().items()}
    small.train()
    srmlab.dictionaries.learn(small, text, steps=2, features=8, k=2)
    assert small.training
    small.eval()
    for name, value in small.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)
    assert all(parameter.grad is None for parameter in small.parameters())


def test_streams_learn_apart(small):
    """A stream's dictionary is the same whatever the other streams carry."""

    def others_scaled(value, _hook):
        value = value.clone()
        value[:, :, 1:] *= 3
        return value

    with small.hooks([("layers.2.out", others_scaled)]):
        changed = srmlab.dictionaries.learn(small, text, steps=5, features=16, k=2)
    plain = srmlab.dictionaries.learn(small, text, steps=5, features=16, k=2)
    torch.testing.assert_close(changed.directions[0], plain.directions[0])
    assert not torch.allclose(changed.directions[1], plain.directions[1])


def test_dead_features_begin_anew_where_the_dictionary_is_worst():
    dictionary = Dictionary(DictionaryConfig(streams=2, dim=6, features=8, k=1))
    optimizer = torch.optim.Adam(dictionary.parameters())
    states = torch.randn(50, 2, 6)
    residual = (states - dictionary(states)).transpose(0, 1)
    residual.square().sum().backward()
    optimizer.step()
    before = {name: value.detach().clone() for name, value in dictionary.named_parameters()}
    dead = torch.zeros(2, 8, dtype=torch.bool)
    dead[0, 3] = True
    replace(dictionary, optimizer, residual.detach(), dead)
    worst = residual[0, residual[0].norm(dim=-1).argmax()]
    torch.testing.assert_close(dictionary.directions[0, 3], worst / worst.norm())
    moved = (dictionary.directions != before["directions"]).any(-1)
    assert moved.nonzero().tolist() == [[0, 3]]
    assert (dictionary.encoder != before["encoder"]).any(1).nonzero().tolist() == [[0, 3]]
    for moment in ("exp_avg", "exp_avg_sq"):
        kept = optimizer.state[dictionary.encoder][moment]
        assert not kept[0, :, 3].any()
        assert kept[1].any()


@pytest.mark.parametrize(
    ("settings", "name"), [({"reach": 2}, "later"), ({"activation": "jumprelu"}, "threshold")]
)
def test_a_replaced_feature_has_no_momentum_left(small, settings, name):
    one = new_transcoders(small, features=16, k=2, **settings).members[0]
    learner = Learner(one, 10, 1e-2, 10**6, "replace")
    states = torch.randn(4, 12, 16, generator=torch.Generator().manual_seed(0))
    for _ in range(2):
        learner.step(states, states.flip(1))
    dead = torch.zeros(4, 16, dtype=torch.bool)
    dead[1, 5] = True
    moments = learner.optimizer.state[one.get_parameter(name)]["exp_avg_sq"]
    axes = (0, -1) if name == "later" else ()
    moved = moments.sum(axes) if axes else moments.clone()
    replace(one, learner.optimizer, states, dead, states)
    left = moments.sum(axes) if axes else moments
    assert moved[1].any()
    assert not left[1, 5].any()
    assert (left[~dead] == moved[~dead]).all()


def test_replacing_dead_features_explains_more(small):
    """Far too many features: most would never fire."""
    unseen = [text(1000 + i) for i in range(10)]
    explained, alive = [], []
    for patience in (2000, 10**9):
        dictionary = srmlab.dictionaries.learn(small, text, steps=200, features=256, k=2, patience=patience)
        found = srmlab.dictionaries.quality(small, dictionary, unseen)
        explained.append(found.mean_explained)
        alive.append(found.alive.mean())
    assert explained[0] > explained[1]
    assert alive[0] > alive[1] - 0.02


def test_pairs_of_tokens_and_targets_are_taken_too(small):
    one = srmlab.dictionaries.learn(small, text, steps=2, features=8, k=2)
    pairs = srmlab.dictionaries.learn(small, lambda step: (text(step), text(step)), steps=2, features=8, k=2)
    torch.testing.assert_close(one.directions, pairs.directions, rtol=0, atol=0)


def test_a_dictionary_is_read_back_the_same(dictionary, tmp_path):
    again = srmlab.dictionaries.load(srmlab.dictionaries.save(dictionary, tmp_path / "one"))
    assert again.config == dictionary.config
    for a, b in zip(dictionary.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_a_missing_or_damaged_dictionary_is_refused_in_one_line(dictionary, tmp_path):
    with pytest.raises(UserError, match="`srmlab dictionary RUN` learns one"):
        srmlab.dictionaries.load(tmp_path)
    folder = srmlab.dictionaries.save(dictionary, tmp_path / "one")
    (folder / "dictionary.safetensors").write_bytes(b"no")
    with pytest.raises(UserError, match="damaged dictionary"):
        srmlab.dictionaries.load(folder)


def test_a_dictionary_of_another_version_is_not_called_damaged(dictionary, tmp_path):
    folder = srmlab.dictionaries.save(dictionary, tmp_path / "one")
    about = json.loads((folder / "dictionary.json").read_text()) | {"format": 99}
    (folder / "dictionary.json").write_text(json.dumps(about))
    with pytest.raises(UserError, match=r"^[^(]*dictionary.json is of another version; learn"):
        srmlab.dictionaries.load(folder)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 9, "features": 8}, "k = 9: give 1 to 8"),
        ({"layers": [5]}, r"layers = \[5\]"),
        ({"steps": 0}, "steps = 0"),
        ({"features": 0}, "features = 0: give 1 or more"),
        ({"lr": float("nan")}, "lr = nan: must be positive"),
        ({"lr": 1e30, "steps": 9}, "lower the learning rate, now 1e"),
    ],
)
def test_what_cannot_be_learned_is_refused(small, options, message):
    with pytest.raises(UserError, match=message):
        srmlab.dictionaries.learn(small, text, **{"steps": 1, **options})


def test_a_model_without_streams_is_refused():
    with pytest.raises(UserError, match="; GPT2 has none"):
        srmlab.dictionaries.learn(srmlab.build(srmlab.preset("gpt2-nano")), text, steps=1)


def test_settings_that_nothing_learns_with_are_refused_by_name():
    model, tokens = srmlab.build(srmlab.preset("srm-nano")), torch.arange(8)[None]
    with pytest.raises(UserError, match="no setting is called 'layer'; did you mean 'layers'"):
        srmlab.dictionaries.learn(model, lambda _: tokens, steps=1, layer=3)
    with pytest.raises(UserError, match="no setting is called 'layers'; there are activation, features, k"):
        srmlab.dictionaries.learn(model, lambda _: tokens, of="mlp", steps=1, layers=3)
    with pytest.raises(UserError, match="batch is a function of the step"):
        srmlab.dictionaries.learn(model, [tokens], steps=1)
