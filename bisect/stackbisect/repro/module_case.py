"""What a program of the kind "module" has beside its call: the module, and how it is called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# The step that goes back through the module.
BACK = "torch.autograd.grad"


@dataclass(frozen=True)
class Module:
    """A torch.nn.Module, by the file that `torch.save` makes of it.

    grad: whether autograd records. inference: in torch.inference_mode. autocast: the dtype
    ("torch.bfloat16") on each device where it is on. wanted: inputs whose gradients are outputs.
    """

    pickle: bytes = field(repr=False)
    grad: bool = True
    inference: bool = False
    autocast: Mapping[str, str] = field(default_factory=dict)
    wanted: tuple[str, ...] = ()
