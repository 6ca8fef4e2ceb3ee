from __future__ import annotations

import numpy as np
import pytest
import torch

import srmlab.analysis
from srmlab.analysis.capture import EvidenceSums, Mean, capture, merge, place
from srmlab.analysis.routing import RoutingSums
from srmlab.errors import UserError


def arrays(result):
    return {name: getattr(result, name) for name in result.axes()}


def assert_same(a, b, **tolerance):
    for name, value in arrays(a).items():
        np.testing.assert_allclose(getattr(b, name), value, err_msg=name, **(tolerance or {"atol": 1e-7}))
    for name in a.errors:
        np.testing.assert_allclose(
            b.standard_error(name), a.standard_error(name), err_msg=name, **(tolerance or {"atol": 1e-7})
        )


def test_streaming_equals_one_shot(model, batches):
    streamed = srmlab.analysis.routing(model, batches)
    at_once = srmlab.analysis.routing(model, [torch.cat(batches)])
    assert_same(streamed, at_once)
    assert streamed.evidence == at_once.evidence


def test_merged_halves_equal_the_whole(model, batches):
    whole, first, second = (RoutingSums(model) for _ in range(3))
    (expected,) = capture(model, batches, whole)
    capture(model, batches[:1], first)
    capture(model, batches[1:], second)
    merge(first, second)
    assert_same(first.result(expected.evidence), expected)


def test_several_accumulators_share_one_forward_pass(model, batches):
    passes = []
    model.sites["layers.0.out"].register_forward_hook(lambda *_: passes.append(1))
    capture(model, batches, RoutingSums(model), RoutingSums(model, 0.5))
    assert len(passes) == len(batches)


def window(length, first=0):
    return place(torch.zeros(1, length, dtype=torch.long), torch.device("cpu"), first=first)


def test_sequences_of_unequal_length_weigh_by_their_tokens():
    mean = Mean()
    mean.add(window(2), torch.tensor([2.0]))
    mean.add(window(3, first=1), torch.tensor([9.0]))
    assert mean.mean == pytest.approx(11 / 5)
    residuals = np.array([2.0, 9.0]) - 11 / 5 * np.array([2, 3])
    assert mean.standard_error == pytest.approx(np.sqrt(2 * (residuals**2).sum()) / 5)


def test_one_sequence_alone_has_no_standard_error():
    mean = Mean()
    mean.add(window(2), torch.tensor([2.0]))
    assert np.isnan(mean.standard_error)


def test_the_fingerprint_tells_texts_apart_but_not_batch_sizes_or_order(batches):
    def fingerprint(parts):
        text = EvidenceSums()
        for index, tokens in enumerate(parts):
            text.begin(place(tokens, torch.device("cpu"), index))
        return text.result().fingerprint

    whole = torch.cat(batches)
    assert fingerprint(batches) == fingerprint([whole]) == fingerprint([whole.flip(0)])
    changed = whole.clone()
    changed[0, 0] = (changed[0, 0] + 1) % 97
    assert fingerprint([changed]) != fingerprint([whole])


class Stopped(Exception):
    pass


def stop_after(count):
    def progress(done):
        if done == count:
            raise Stopped

    return progress


def test_a_stopped_capture_picks_up_its_sums(model, batches, tmp_path):
    (expected,) = capture(model, batches, RoutingSums(model))
    with pytest.raises(Stopped):
        capture(
            model, batches, RoutingSums(model), checkpoint=tmp_path / "sums", every=1, progress=stop_after(3)
        )
    passes = []
    handle = model.sites["layers.0.out"].register_forward_hook(lambda *_: passes.append(1))
    (found,) = capture(model, batches, RoutingSums(model), checkpoint=tmp_path / "sums", every=1)
    handle.remove()
    assert len(passes) == 1
    assert_same(found, expected)
    for name, error in expected.errors.items():
        np.testing.assert_allclose(found.errors[name], error, atol=1e-9, err_msg=name)
    assert found.evidence == expected.evidence


@pytest.mark.parametrize("changed", ["text", "settings", "weights"])
def test_saved_sums_of_something_else_are_not_picked_up(model, batches, tmp_path, changed):
    with pytest.raises(Stopped):
        capture(
            model, batches, RoutingSums(model), checkpoint=tmp_path / "sums", every=1, progress=stop_after(3)
        )
    threshold = 0.1
    if changed == "text":
        batches = [batches[0].flip(1), *batches[1:]]
    elif changed == "settings":
        threshold = 0.2
    else:
        with torch.no_grad():
            model.layer.connection.qkv.weight.mul_(2)
    (found,) = capture(model, batches, RoutingSums(model, threshold), checkpoint=tmp_path / "sums", every=1)
    (expected,) = capture(model, batches, RoutingSums(model, threshold))
    assert_same(found, expected)
    assert found.evidence == expected.evidence


def test_the_model_is_back_in_training_mode_afterwards(model, batches):
    model.train()
    srmlab.analysis.routing(model, batches)
    assert model.training


def test_no_batches_are_refused(model):
    with pytest.raises(UserError, match="no batches"):
        srmlab.analysis.routing(model, [])


def test_a_batch_of_the_wrong_shape_is_refused(model):
    with pytest.raises(UserError, match=r"need \[batch, token\]"):
        srmlab.analysis.routing(model, [torch.zeros(5, dtype=torch.long)])
