"""Our models in pyvene: interchange interventions and their trained kinds, by position, stream or both.

    model = for_pyvene(srmlab.load("srm-nano"))
    where = {"layer": 3, "component": "stream_output", "unit": "h"}
    what = {"intervention_type": pyvene.VanillaIntervention}
    intervenable = pyvene.IntervenableModel(where | what, model=model)
    _, changed = intervenable(base, [source], {"sources->base": ([[[2]]], [[[2]]])})     # stream 2

pyvene finds a place by the type of the model and a component. Registered here, for every architecture:

    block_output     the state after a level [batch, token, streams × dim]; unit "pos"
    stream_output    the same, a stream being what pyvene calls a head; unit "h" or "h.pos"

and any site is a component by its own name: "flat.layers[3].steps[1].attn.output". pyvene knows values of
three axes. Left alone, it would take the stream axis of ours for the last one and change some streams only,
without a word: `flat` shows it every value as [batch, token, streams × dim].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from srmlab.errors import UserError
from srmlab.interop.huggingface import SRMForCausalLM
from srmlab.models import LanguageModel
from srmlab.models.sites import Site


class Flat:
    """A site, or a group of them, as pyvene hooks it: all axes after the second are one."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __getattr__(self, name: str) -> Flat:
        return Flat(getattr(self.module, name))

    def __getitem__(self, index: int) -> Flat:
        return Flat(self.module[index])  # pyright: ignore[reportIndexIssue]

    def register_forward_hook(self, hook: Callable[..., Any], **_: Any) -> RemovableHandle:
        if not isinstance(self.module, Site):
            raise UserError("this is a group of sites, not one: name one of `model.site_names` with .output")

        def flattened(module: nn.Module, args: Any, kwargs: Any, value: Tensor) -> Tensor:
            flat = value.flatten(2).clone()  # pyvene writes into it
            returned = hook(module, args, kwargs, flat)
            return (flat if returned is None else returned).view_as(value)

        return self.module.register_forward_hook(flattened, with_kwargs=True)


class PyveneModel(SRMForCausalLM):
    """The Hugging Face wrapper, with what pyvene looks for."""

    @property
    def flat(self) -> Flat:
        return Flat(self.model)

    @property
    def levels(self) -> list[Flat]:
        """The state after every level, where it is one value."""
        sites = [point.sites for point in self.model.points]
        if any(len(names) > 1 for names in sites):
            raise UserError(
                "this model's state is several values: name a site, such as "
                f"flat.{indexed(sites[0][-1])}.output"
            )
        return [Flat(self.model.get_submodule(name)) for (name,) in sites]


def indexed(site: str) -> str:
    """A site's name as pyvene writes it: layers.3.out → layers[3].out"""
    parts = site.split(".")
    return "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in parts).removeprefix(".")


def for_pyvene(model: LanguageModel) -> PyveneModel:
    """The model as pyvene takes it: it shares the weights, and reads {"input_ids": …}."""
    register()
    theirs = PyveneModel.wrap(model)
    theirs.config.streams = len(model.streams)
    theirs.config.state_dim = len(model.streams) * model.stream_dim
    return theirs


def register() -> None:
    """Tell pyvene where the components of our models are."""
    try:
        from pyvene.models import constants, intervenable_modelcard  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UserError(f"pyvene is needed here ({error}): pip install pyvene") from None
    hook, by_stream = constants.CONST_OUTPUT_HOOK, (constants.split_head_and_permute, "streams")
    intervenable_modelcard.type_to_module_mapping[PyveneModel] = {
        "block_output": ("levels[%s]", hook),
        "stream_output": ("levels[%s]", hook, by_stream),
    }
    intervenable_modelcard.type_to_dimension_mapping[PyveneModel] = {
        "streams": ("streams",),
        "block_output": ("state_dim",),
        "stream_output": ("state_dim/streams",),
    }
