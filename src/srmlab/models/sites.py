"""Sites: named hook points in the computation, where a value can be read, cached or replaced.

The layer's weights are shared by all its calls, so a hook on a weight-bearing module would see many calls
and keep the last. A `Site` stands for one place in one call: an identity module with its own name, called
exactly once in a forward pass. `layers.3.steps.1.out` is the state after the second step of the fourth
layer, whatever weights made it.

    >>> import torch, srmlab
    >>> model = srmlab.build(srmlab.preset("srm-nano"))
    >>> tokens = torch.arange(8)[None]
    >>> logits, cache = model.run_with_cache(tokens, names_filter="layers.3.out")
    >>> cache["layers.3.out"].shape                     # [batch, token, stream, dim]
    torch.Size([1, 8, 8, 32])
    >>> def silence(z, hook):
    ...     z = z.clone()
    ...     z[:, :, 5] = 0                                # stream 5
    ...     return z
    >>> changed = model.run_with_hooks(tokens, fwd_hooks=[("layers.3.out", silence)])

Several sites at once: in `layers.*.out` the star stands for one part of the name, so these are the outputs
of the eight layers; `**` stands for any number of parts: `**.out`.

Mechanism. The model's code passes every named value through a tap where it is computed: `z = here("out", z)`.
Nothing else lists the sites: when a model is built its forward pass is run once on the meta device with a
tap that records the names (`Recorder`). If there are no hooks the tap is `SILENT`, which returns the value
unchanged, so a model without hooks pays nothing and compiles to one graph without a trace of the sites. If
there are hooks (ours, a plain `register_forward_hook`, or a tool such as nnsight that replaces a module's
`forward`), the pass runs uncompiled and each hooked site is called with its value in the paper's order:
[batch, token, stream, dim]. That holds for `model.compile()` and for `torch.compile(model)`; with
`fullgraph=True` there is no way out of the graph, and a pass with hooks is refused.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.utils.hooks import RemovableHandle

from srmlab.errors import UserError, check_choice, nearest

if TYPE_CHECKING:
    from srmlab.models.activations import ActivationCache
    from srmlab.models.decoding import PaddedTokens

HookFunction = Callable[[Tensor, "HookPoint"], Tensor | None]
Hooks = Iterable[tuple["NamesFilter", HookFunction]]
NamesFilter = str | Iterable[str] | re.Pattern[str] | Callable[[str], bool] | None


class UnknownSite(UserError):
    """A site name that this model does not have. The message names the nearest one."""


@dataclass(frozen=True)
class HookPoint:
    """Where a hook function is called."""

    name: str

    def layer(self) -> int:
        """Which layer, cycle or block it is in: the first number of its name."""
        numbers = [int(part) for part in self.name.split(".") if part.isdigit()]
        if not numbers:
            raise UserError(f"{self.name} is not in a layer")
        return numbers[0]


@dataclass(frozen=True)
class Hook:
    """A function at a site, as torch calls it."""

    function: HookFunction
    point: HookPoint
    of_gradient: bool

    def __call__(self, _site: nn.Module, _inputs: tuple, value: Tensor) -> Tensor | None:
        if not self.of_gradient:
            return self.function(value, self.point)
        if not value.requires_grad:
            raise UserError(
                f"a backward hook at {self.point.name} would never be called: it has no gradient; leave "
                "torch.no_grad, unfreeze the weights, or make the pass inside "
                "`with srmlab.models.gradient_everywhere():`"
            )
        # On the tensor, not on the module: it outlives the block in which the pass was made.
        value.register_hook(lambda gradient: self.function(gradient, self.point))
        return None

    def __deepcopy__(self, _memo: dict) -> Hook:
        return self  # a copied model calls the same function


class Site(nn.Module):
    """One named hook point: an identity module to hook."""

    def __init__(self) -> None:
        super().__init__()
        # The hooks' own dicts under a second name: under the first, torch.compile does not look at them
        # again.
        self.listeners = (
            self._forward_hooks,
            self._forward_pre_hooks,
            self._backward_hooks,
            self._backward_pre_hooks,
        )

    def forward(self, value: Tensor) -> Tensor:
        return value

    @property
    def listening(self) -> bool:
        # Counted, not asked for truth: torch.compile guards the length of a dict, but not whether it is
        # empty.
        return sum(map(len, self.listeners)) > 0 or "forward" in self.__dict__


class SiteGroup(nn.Module):
    """Sites that share the beginning of their names: `model.layers[3].steps[1].out`."""

    def __getitem__(self, index: int) -> nn.Module:
        return list(self.children())[index]

    def __repr__(self) -> str:
        """One line: of hundreds of sites nobody would find the layers of a printed model."""
        return f"SiteGroup of {sum(isinstance(part, Site) for part in self.modules())} sites"


class Tap:
    """Where a module hands over its named values. This one is silent: nobody listens."""

    def __call__(self, name: str, value: Tensor) -> Tensor:  # noqa: ARG002
        """A value in the order of axes in which it is shown."""
        return value

    def streams(self, name: str, value: Tensor) -> Tensor:  # noqa: ARG002
        """A value [S, B, T, D], as the models hold their streams; shown as [B, T, S, D]."""
        return value

    def wants(self, *names: str) -> bool:  # noqa: ARG002
        """Whether a value that costs extra has to be computed."""
        return False

    def at(self, prefix: str) -> Tap:  # noqa: ARG002
        """The tap of a part of the model, whose names start with `prefix`."""
        return self

    @property
    def differentiated(self) -> bool:
        """Whether a hook has put in a value with a gradient of its own, where the model has none."""
        return False


SILENT = Tap()


class Recorder(Tap):
    """Records the names of a pass, in order, and computes everything optional."""

    def __init__(self, names: dict[str, None], prefix: str = "") -> None:
        self.names, self.prefix = names, prefix

    def __call__(self, name: str, value: Tensor) -> Tensor:
        assert self.prefix + name not in self.names, f"{self.prefix + name} is handed over twice in a pass"
        self.names[self.prefix + name] = None
        return value

    def streams(self, name: str, value: Tensor) -> Tensor:
        return self(name, value)

    def wants(self, *names: str) -> bool:  # noqa: ARG002
        return True

    def at(self, prefix: str) -> Tap:
        return Recorder(self.names, f"{self.prefix}{prefix}.")


class LiveTap(Tap):
    """A tap with hooks at some of its sites."""

    def __init__(self, sites: Mapping[str, Site]) -> None:
        self.sites, self.prefix = sites, ""
        self.gradient = torch.is_grad_enabled()  # as the pass is called, whatever the model does inside
        self.opened = [False]  # by a hook; one list for all parts

    def __call__(self, name: str, value: Tensor) -> Tensor:
        site = self.sites[self.prefix + name]
        return self._show(site, name, value) if site.listening else value

    def streams(self, name: str, value: Tensor) -> Tensor:
        site = self.sites[self.prefix + name]
        if not site.listening:
            return value
        given = self._show(site, name, value, order=(1, 2, 0, 3))
        return given.permute(2, 0, 1, 3).contiguous()

    def _show(self, site: Site, name: str, value: Tensor, order: Sequence[int] | None = None) -> Tensor:
        """Call the hooks with a copy of the value: one that changes it in place must not reach what else uses
        its memory, such as the value of an earlier site, or keys that several calls read.

        Before its last levels a model may have no gradient. What a hook puts in there keeps the gradient of
        its own, which then goes through all that follows: else a vector that is learned would never move.
        """
        with torch.set_grad_enabled(self.gradient):
            shown = value.clone() if order is None else value.clone().permute(*order)
            given = site(shown)
        if not isinstance(given, Tensor) or given.shape != shown.shape:
            what = f"shape {tuple(given.shape)}" if isinstance(given, Tensor) else type(given).__name__
            raise UserError(
                f"a hook at {self.prefix + name} returned {what}; "
                f"the site's value has shape {tuple(shown.shape)}"
            )
        if given.requires_grad and not value.requires_grad and self.gradient:
            self.opened[0] = True
            torch.set_grad_enabled(True)  # until the block of `Pass.gradient` ends
        # What was shown is used, even unchanged: the gradient of a cached value is then the site's.
        return given.to(shown.dtype)

    def wants(self, *names: str) -> bool:
        return any(self.sites[self.prefix + name].listening for name in names)

    def at(self, prefix: str) -> Tap:
        inside = copy(self)
        inside.prefix = f"{self.prefix}{prefix}."
        return inside

    @property
    def differentiated(self) -> bool:
        return self.opened[0]


# torch.compiler.disable would import the compiler at once, which takes as long as all of torch.
@_disable_dynamo
def uncompiled(function: Callable[..., Tensor], *args, **kwargs) -> Tensor:
    """Call a function outside of any compiled graph, so that hooks added after compiling take effect."""
    return function(*args, **kwargs)


uncompiled.__dict__.update(
    _torchdynamo_disable=True,  # what a full graph is refused with
    _torchdynamo_disable_msg="somebody listens at a site, and hooks run uncompiled. Use model.compile(), "
    "which hooks go well with, or torch.compile without fullgraph, or call the model that was compiled.",
)


class Instrumented(nn.Module):
    """A model with sites: TransformerLens' methods on a recurrent computation."""

    def add_site(self, name: str) -> None:
        """Put a site at a dotted name, making the modules on the way as needed."""
        *path, leaf = name.split(".")
        parent: nn.Module = self
        for part in path:
            if part not in parent._modules:
                parent.add_module(part, SiteGroup())
            child = parent._modules[part]
            assert child is not None
            parent = child
        if hasattr(parent, leaf):
            raise UserError(f"site {name}: the module has a {leaf!r} already; rename one of the two")
        site = Site()
        parent.add_module(leaf, site)
        self.sites[name] = site

    @property
    def sites(self) -> dict[str, Site]:
        """Every site by name, in the order of the computation."""
        return self.__dict__.setdefault("_sites", {})  # a plain dict: not a second path to the modules

    @property
    def site_names(self) -> list[str]:
        return list(self.sites)

    def tap(self) -> Tap:
        """The tap for one forward pass: live if there is any hook."""
        return LiveTap(self.sites) if self.listening else SILENT

    @property
    def listening(self) -> bool:
        if torch.compiler.is_compiling():
            return any(site.listening for site in self.sites.values())
        # The same without a call for each of hundreds of sites: every pass asks.
        return any(any(map(len, s.listeners)) or "forward" in s.__dict__ for s in self.sites.values())

    def select_sites(self, names_filter: NamesFilter = None) -> list[str]:
        """The site names a filter selects: None (all), a name or glob (`*` is one part of a name, `**` any
        number of them), several of those, a regular expression found in the name, or a predicate on names.
        """
        names = self.site_names
        if names_filter is None:
            return names
        if callable(names_filter) or isinstance(names_filter, re.Pattern):
            fits = names_filter.search if isinstance(names_filter, re.Pattern) else names_filter
            if not (found := [name for name in names if fits(name)]):
                raise UnknownSite("the filter selects no site; model.site_names lists them all")
            return found
        if isinstance(names_filter, str):
            patterns = [names_filter]
        else:
            patterns = list(names_filter) if isinstance(names_filter, Iterable) else [names_filter]
        if not all(isinstance(pattern, str) for pattern in patterns):
            raise UserError("a filter of sites is a name, a glob, several of them, or a function of a name")
        chosen: set[str] = set()
        for pattern in patterns:
            if pattern in self.sites:  # most are plain names
                chosen.add(pattern)
                continue
            matches = [name for name in names if _fits(name.split("."), pattern.split("."))]
            if not matches:
                raise UnknownSite(f"no site is called {pattern!r}{hint(pattern, names)}")
            chosen.update(matches)
        return [name for name in names if name in chosen]

    @property
    def hook_dict(self) -> dict[str, Site]:
        """TransformerLens' name for `sites`."""
        return self.sites

    def add_hook(
        self, names_filter: NamesFilter, function: HookFunction, dir: Literal["fwd", "bwd"] = "fwd"
    ) -> None:
        """Call `fn(value, hook)`, or with "bwd" `fn(gradient, hook)`, in every pass until `reset_hooks`."""
        check_choice("dir", dir, ("fwd", "bwd"))
        names_filter, function = _pair((names_filter, function))
        for name in self.select_sites(names_filter):
            self._hook(name, function, dir)

    def reset_hooks(self) -> None:
        """Remove every hook of ours, also of blocks that are open and those that a copy of the model has
        taken along; not those of torch's own `register_forward_hook`.
        """
        for site in self.sites.values():
            for key in [key for key, hook in site._forward_hooks.items() if isinstance(hook, Hook)]:
                del site._forward_hooks[key]

    def _hook(self, name: str, function: HookFunction, dir: Literal["fwd", "bwd"]) -> RemovableHandle:
        hook = Hook(function, HookPoint(name), of_gradient=dir == "bwd")
        return self.sites[name].register_forward_hook(hook)

    @contextmanager
    def hooks(self, fwd_hooks: Hooks = (), bwd_hooks: Hooks = ()) -> Iterator[Instrumented]:
        """While open, call `fn(value, hook)` at every selected site; what it returns, if anything, replaces
        the value. `bwd_hooks` are called with the gradient of a value made while open, whenever it comes.
        """
        handles: list[RemovableHandle] = []
        try:
            for names_filter, function in map(_pair, fwd_hooks):
                handles += [self._hook(name, function, "fwd") for name in self.select_sites(names_filter)]
            for names_filter, function in map(_pair, bwd_hooks):
                handles += [self._hook(name, function, "bwd") for name in self.select_sites(names_filter)]
            yield self
        finally:
            for handle in handles:
                handle.remove()

    def run_with_hooks(
        self,
        tokens: Tensor | PaddedTokens | str | Sequence[str],
        fwd_hooks: Hooks = (),
        bwd_hooks: Hooks = (),
        **options: Any,
    ) -> Any:
        """One forward pass with hooks; its logits, or what the options of `forward` ask for."""
        with self.hooks(fwd_hooks, bwd_hooks):
            return self(tokens, **options)

    def run_with_cache(
        self,
        tokens: Tensor | PaddedTokens | str | Sequence[str],
        names_filter: NamesFilter = None,
        *,
        device: torch.device | str | None = None,
        detach: bool = True,
        remove_batch_dim: bool = False,
        **options: Any,
    ) -> tuple[Any, ActivationCache]:
        """One forward pass and the values at the selected sites, by name, each in the paper's order of axes.

        A cached value is the one that was used: hooks that are open at the same time and replace a value
        come first. Options are those of `forward`: `return_type="loss"`, `attention_mask`, ….
        """
        from srmlab.models.activations import ActivationCache

        cache = ActivationCache(self)  # pyright: ignore[reportArgumentType]

        def keep(value: Tensor, hook: HookPoint) -> None:
            value = value.detach() if detach else value
            cache[hook.name] = value.to(device) if device is not None else value

        with self.hooks([(self.select_sites(names_filter), keep)]):
            result = self(tokens, **options)
        return result, cache.remove_batch_dim() if remove_batch_dim else cache


def _fits(name: list[str], pattern: list[str]) -> bool:
    """Whether the parts of a name are those of a glob."""
    if not pattern:
        return not name
    if pattern[0] == "**":
        return any(_fits(name[i:], pattern[1:]) for i in range(len(name) + 1))
    return bool(name) and fnmatch.fnmatchcase(name[0], pattern[0]) and _fits(name[1:], pattern[1:])


def hint(pattern: str, names: list[str]) -> str:
    """The tail of an error about a name that no site has."""
    if fnmatch.filter(names, pattern):
        return "; * is one part of a name, ** any number of them"
    kind = "connection.pattern"
    if pattern.endswith(kind) and not any(name.endswith(kind) for name in names):
        return "; this model's connection has no pattern: attention, gate and translation have one"
    if "hook_" in pattern or pattern.startswith("("):
        near = _of_transformer_lens(pattern, names)
        example = f", such as {near!r}" if near else ""
        return f"; TransformerLens' places have names of their own here{example}: model.site_names lists them"
    return nearest(pattern, names) or "; model.site_names lists them all"


TRANSFORMER_LENS = {  # the end of its hook points' names → of sites
    "resid_post": "out",
    "attn_out": "attn",
    "mlp_out": "mlp",
    "pattern": "attention.weights",
    "pre": "neurons.pre",
    "post": "neurons.post",
} | {part: f"attention.{part}" for part in "qkvz"}


def _of_transformer_lens(pattern: str, names: list[str]) -> str | None:
    """The first site of the layer that a name such as blocks.3.hook_resid_post speaks of."""
    word, level = re.search(r"(?:hook_|')(\w+)", pattern), re.search(r"\d+", pattern)
    if word is None or level is None or word[1] not in TRANSFORMER_LENS:
        return None
    end = f".{TRANSFORMER_LENS[word[1]]}"
    found = [name for name in names if name.split(".")[1:2] == [level[0]] and name.endswith(end)]
    return min(found, key=len, default=None)


def _pair(given: Any) -> tuple[NamesFilter, HookFunction]:
    match given:
        case (names_filter, function) if callable(function):
            return names_filter, function  # pyright: ignore[reportReturnType]
    raise UserError(f"hooks are a list of (name, function) pairs, not of {given!r}")
