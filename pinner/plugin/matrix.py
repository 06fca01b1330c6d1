"""A module over a matrix of memory layouts and number formats: each combination must repeat."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pinner.inside.evidence.digest import layout_of
from pinner.inside.faults import EvidenceError
from pinner.plugin.repeat import Call, NotRepeatable, repeat
from pinner.plugin.state import random_state, set_random_state

LAYOUTS = ("contiguous", "transposed", "sliced", "channels_last")
FORMATS = ("float32", "bfloat16", "float16")

Combination = tuple[str, str]


@dataclass(frozen=True)
class Asked:
    """A matrix.

    make: returns the module or function; called anew for each combination, under `seed`.
    shapes: of its inputs. unsupported: combinations that are left out, each with the reason.
    """

    make: Callable[[], Any]
    shapes: tuple[tuple[int, ...], ...]
    layouts: Sequence[str] = LAYOUTS
    formats: Sequence[str] = FORMATS
    unsupported: Mapping[Combination, str] = field(default_factory=dict)
    device: str = "cpu"
    seed: int = 0
    runs: int = 3
    gradients: bool = True


@dataclass(frozen=True)
class Matrix:
    """bits: one digest for each (layout, format) that was run. skipped: why others were not."""

    bits: Mapping[Combination, str]
    skipped: Mapping[Combination, str]


def run(asked: Asked) -> Matrix:
    """Runs every combination. Raises `NotRepeatable`, which lists those that failed, and
    `ValueError` for a matrix that cannot be meant.
    """
    _check(asked)
    found: dict[Combination, str] = {}
    skipped: dict[Combination, str] = {}
    failed: dict[Combination, str] = {}
    state = random_state()
    try:
        for combination in ((x, y) for x in asked.layouts for y in asked.formats):
            reason = asked.unsupported.get(combination) or _impossible(asked, combination[0])
            if reason:
                skipped[combination] = reason
                continue
            try:
                found[combination] = _one(asked, *combination)
            except NotRepeatable as error:
                failed[combination] = str(error)
            except (RuntimeError, TypeError, EvidenceError) as error:
                failed[combination] = (
                    f"{type(error).__name__}: {error} (name it in `unsupported`, with the reason, "
                    "if that is meant)"
                )
    finally:
        set_random_state(state)
    if failed:
        lines = [f"{layout}, {fmt}: {text}" for (layout, fmt), text in failed.items()]
        of = len(found) + len(failed)
        raise NotRepeatable("\n".join([f"{len(failed)} of {of} combinations failed", *lines]))
    if not found:
        lines = [f"{layout}, {fmt}: {text}" for (layout, fmt), text in skipped.items()]
        raise NotRepeatable("\n".join(["no combination was run, which is no pass", *lines]))
    return Matrix(found, skipped)


def _check(asked: Asked) -> None:
    import torch

    unknown = [name for name in asked.layouts if name not in LAYOUTS]
    unknown += [n for n in asked.formats if not isinstance(getattr(torch, n, None), torch.dtype)]
    unknown += [
        str(each)
        for each in asked.unsupported
        if each[0] not in asked.layouts or each[1] not in asked.formats
    ]
    if unknown:
        raise ValueError(
            f"expected layouts of {', '.join(LAYOUTS)}, names of torch dtypes, and `unsupported` "
            f"of combinations in the matrix; found {', '.join(unknown)}"
        )
    if any(not reason.strip() for reason in asked.unsupported.values()):
        raise ValueError("expected a reason for each combination in `unsupported`, found none")


def _impossible(asked: Asked, layout: str) -> str:
    """Why no input can have this layout; empty where one can."""
    if layout == "contiguous":
        return ""
    import torch

    shown = (layout_of(laid_out(torch.empty(shape), layout)) for shape in asked.shapes)
    if any(found != "contiguous" for found in shown):
        return ""
    return f"no input of shapes {list(map(list, asked.shapes))} can be {layout}"


def _one(asked: Asked, layout: str, fmt: str) -> str:
    import torch

    torch.manual_seed(asked.seed)
    dtype = getattr(torch, fmt)
    function = asked.make()
    if isinstance(function, torch.nn.Module):
        function = function.to(device=asked.device, dtype=dtype)
    draw = torch.Generator().manual_seed(asked.seed)
    inputs = []
    for shape in asked.shapes:
        plain = torch.randn(shape, generator=draw).to(asked.device, dtype)
        value = laid_out(plain, layout).detach()
        if asked.gradients and (dtype.is_floating_point or dtype.is_complex):
            value.requires_grad_()
        inputs.append(value)
    call = Call(function, tuple(inputs), gradients=asked.gradients)
    return repeat(call, asked.runs).bits


def laid_out(tensor: Any, layout: str) -> Any:
    """The same values in another layout; unchanged where the shape knows no such layout."""
    import torch

    if layout == "transposed" and tensor.dim() >= 2:
        return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)
    if layout == "sliced" and tensor.dim() >= 1:
        wide = tensor.new_zeros((*tensor.shape[:-1], 2 * tensor.shape[-1] + 1))
        wide[..., 1::2] = tensor
        return wide[..., 1::2]
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    if layout == "channels_last" and tensor.dim() in formats:
        return tensor.contiguous(memory_format=formats[tensor.dim()])
    return tensor
