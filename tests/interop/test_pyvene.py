"""pyvene on our models: each intervention is what a hook of ours does, and nothing else changes."""

from __future__ import annotations

import pytest
import torch

import srmlab
from subjects import SMALL

pyvene = pytest.importorskip("pyvene", reason="pyvene is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")  # of pyvene's own code

BASE, SOURCE = torch.tensor([[5, 6, 7, 8, 9], [1, 2, 3, 4, 5]]), torch.tensor([[50, 51, 52, 53, 54]] * 2)
MANY = SMALL.replace(streams=12, stream_dim=8)  # more streams than dims: where a mistaken axis would show


@pytest.fixture(params=["few streams", "many streams", "gpt2-nano"])
def model(request):
    configs = {"few streams": SMALL, "many streams": MANY}
    config = configs.get(request.param) or srmlab.preset(request.param, vocab_size=97, context=32)
    return srmlab.build(config).eval()


def interchanged(model, component, unit, places, layer=1, kind=None):
    from srmlab.interop.pyvene import for_pyvene

    how = {"layer": layer, "component": component, "unit": unit}
    intervenable = pyvene.IntervenableModel(
        how | {"intervention_type": kind or pyvene.VanillaIntervention}, model=for_pyvene(model)
    )
    with torch.no_grad():
        _, changed = intervenable(
            {"input_ids": BASE}, [{"input_ids": SOURCE}], {"sources->base": (places, places)}
        )
    return changed.logits


def by_hook(model, site, change):
    with torch.no_grad():
        _, cache = model.run_with_cache(SOURCE, names_filter=site)

    def swap(value, hook):  # noqa: ARG001
        value = value.clone()
        change(value, cache[site])
        return value

    with torch.no_grad():
        return model.run_with_hooks(BASE, fwd_hooks=[(site, swap)])


def test_a_position_of_the_state_is_exchanged(model):
    def change(value, source):
        value[:, 3] = source[:, 3]

    wanted = by_hook(model, model.points[1].sites[-1], change)
    found = interchanged(model, "block_output", "pos", [[[3], [3]]])
    torch.testing.assert_close(found, wanted)
    assert not torch.allclose(found, model(BASE))


@pytest.mark.parametrize("config", [SMALL, MANY], ids=["few streams", "many streams"])
def test_a_stream_is_exchanged_at_every_position_or_at_one(config):
    model = srmlab.build(config).eval()
    stream, site = config.streams - 1, model.points[1].sites[0]

    def everywhere(value, source):
        value[:, :, stream] = source[:, :, stream]

    def at_two(value, source):
        value[:, 2, stream] = source[:, 2, stream]

    found = interchanged(model, "stream_output", "h", [[[stream]] * 2])
    torch.testing.assert_close(found, by_hook(model, site, everywhere))
    found = interchanged(model, "stream_output", "h.pos", [[[[stream]] * 2, [[2]] * 2]])
    torch.testing.assert_close(found, by_hook(model, site, at_two))


def test_any_site_is_a_component_by_its_name():
    model = srmlab.build(MANY).eval()

    def change(value, source):
        value[:, 1] = source[:, 1]

    found = interchanged(model, "flat.layers[2].steps[1].attn.output", "pos", [[[1], [1]]])
    torch.testing.assert_close(found, by_hook(model, "layers.2.steps.1.attn", change))


def test_a_rotation_is_learned_in_the_space_of_one_stream():
    from srmlab.interop.pyvene import for_pyvene

    model = srmlab.build(SMALL).eval()
    intervenable = pyvene.IntervenableModel(
        {
            "layer": 2,
            "component": "stream_output",
            "unit": "h.pos",
            "low_rank_dimension": 2,
            "intervention_type": pyvene.LowRankRotatedSpaceIntervention,
        },
        model=for_pyvene(model),
    )
    intervenable.disable_model_gradients()
    (rotation,) = intervenable.get_trainable_parameters()
    assert rotation.shape == (SMALL.stream_dim, 2)
    places = [[[[1]] * 2, [[4]] * 2]]
    _, changed = intervenable(
        {"input_ids": BASE}, [{"input_ids": SOURCE}], {"sources->base": (places, places)}
    )
    changed.logits.sum().backward()
    assert rotation.grad is not None
    assert rotation.grad.abs().sum() > 0


def test_a_model_whose_state_is_several_values_says_how_to_name_one():
    model = srmlab.build(srmlab.preset("hrm-nano", vocab_size=97, context=32)).eval()
    with pytest.raises(srmlab.errors.UserError, match=r"name a site, such as flat\.cycles\[0\]"):
        interchanged(model, "block_output", "pos", [[[1], [1]]])
