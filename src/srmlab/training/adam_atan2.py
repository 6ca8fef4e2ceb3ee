"""Adam-atan2: Adam whose quotient m / (sqrt(v) + ε) is an angle, atan2(m, sqrt(v)): no ε, and no step
larger than π/2·lr.

Two forms are published, and differ by about 27 % in the size of a step:

    hrm          p −= lr / (1 − β1^t) · atan2(m, sqrt(v) / sqrt(1 − β2^t))        HRM's code, the default here
    published    p −= lr · 1.27 · atan2(m / (1 − β1^t), sqrt(v / (1 − β2^t)))     Everett et al. 2024

Both decay the weights first, decoupled from the gradient: p *= 1 − lr·wd.

Everything is elementwise, so a sharded parameter (DTensor) is updated shard by shard without communication.
On a GPU all parameters go through `torch._foreach_*` together, to save kernel launches; on a CPU one after
the other, to stay in the cache.
"""

# pyright: reportPrivateImportUsage=false
# torch._foreach_* has no public name, though every optimizer is made of it

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from srmlab.storage.weights import is_sharded

Form = Literal["hrm", "published"]
PUBLISHED_SCALE = 1.27


class AdamAtan2(torch.optim.Optimizer):
    """
    >>> weight = torch.nn.Parameter(torch.zeros(3))
    >>> optimizer = AdamAtan2([weight], lr=0.1, weight_decay=0.0)
    >>> weight.grad = torch.tensor([1.0, -100.0, 0.0])
    >>> optimizer.step()
    >>> weight.data                             # a first step is the same for a gradient of any size
    tensor([-0.0997,  0.0997,  0.0000])
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.95),
        weight_decay: float = 0.1,
        form: Form = "hrm",
    ) -> None:
        if form not in get_args(Form):
            raise ValueError(f"form = {form!r}: must be 'hrm' or 'published'")
        if lr < 0 or weight_decay < 0 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(
                f"lr = {lr}, betas = {betas}, weight_decay = {weight_decay}: must be ≥ 0, in [0, 1), ≥ 0"
            )
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay, "form": form})
        for group in self.param_groups:
            for parameter in group["params"]:
                fill_state(self.state[parameter], parameter)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            # A parameter without gradient (a step function that a random order left out) stays as it is and
            # its count waits; parameters of equal count, usually all, are updated together.
            by_count: dict[int, list[Tensor]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    count = self.state[parameter]["step"]
                    count += 1
                    by_count[int(count)].append(parameter)
            for t, parameters in by_count.items():
                together = parameters[0].device.type != "cpu"
                for some in [parameters] if together else [[parameter] for parameter in parameters]:
                    self._update(some, t, group)
        return loss

    def _update(self, parameters: list[Tensor], t: int, group: dict[str, Any]) -> None:
        lr, (beta1, beta2) = group["lr"], group["betas"]
        weights = [_local(p) for p in parameters]
        grads = [_local(p.grad) for p in parameters if p.grad is not None]
        means = [_local(self.state[p]["exp_avg"]) for p in parameters]
        squares = [_local(self.state[p]["exp_avg_sq"]) for p in parameters]

        torch._foreach_lerp_(means, grads, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, grads, grads, value=1 - beta2)

        roots = torch._foreach_sqrt(squares)
        torch._foreach_div_(roots, math.sqrt(1 - beta2**t))
        if group["form"] == "published":
            size, tops = lr * PUBLISHED_SCALE, torch._foreach_div(means, 1 - beta1**t)
        else:
            size, tops = lr / (1 - beta1**t), means
        angles = [torch.atan2(top, root, out=root) for top, root in zip(tops, roots, strict=True)]

        torch._foreach_mul_(weights, 1 - lr * group["weight_decay"])
        torch._foreach_add_(weights, angles, alpha=-size)


def fill_state(state: dict[str, Any], parameter: Tensor) -> None:
    """Adam's state before the first step. Made at once: there is then always something to load into."""
    state["step"] = torch.tensor(0.0)
    state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
    state["exp_avg_sq"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)


def _local(tensor: Tensor) -> Tensor:
    """This process's shard of a DTensor, in place; any other tensor itself."""
    return tensor.to_local() if is_sharded(tensor) else tensor
