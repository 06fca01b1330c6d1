"""Signatures of the functions that shipped taps name, as they stand in the published packages."""

from __future__ import annotations

import ast
import os
import re
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

Signatures = Mapping[tuple[str, str], str]


@dataclass(frozen=True)
class Library:
    """A package, the variable that may name its wheel, sdist or folder, and what was recorded.

    signatures: (module, function) to its parameters, as `ast.unparse` writes them without their
    annotations.
    """

    tap: str
    package: str
    version: str
    variable: str
    signatures: Signatures


MEGATRON = Library(
    tap="megatron",
    package="megatron.core",
    version="0.16.1",
    variable="MEGATRON_PACKAGE",
    signatures={
        ("megatron.core.pipeline_parallel.schedules", "forward_step_calc_loss"): (
            "model, output_tensor, loss_func, config, vp_stage, collect_non_loss_data, "
            "num_microbatches, forward_data_store, cp_group_size=None, is_last_stage=None"
        ),
        ("megatron.core.optimizer.clip_grads", "get_grad_norm_fp32"): (
            "grads_for_norm, norm_type=2, grad_stats_parallel_group=None"
        ),
        ("megatron.core.optimizer_param_scheduler", "OptimizerParamScheduler.get_lr"): (
            "self, param_group"
        ),
    },
)
TORCHTITAN = Library(
    tap="torchtitan",
    package="torchtitan",
    version="0.3.0",
    variable="TORCHTITAN_PACKAGE",
    signatures={
        ("torchtitan.trainer", "Trainer.forward_backward_step"): (
            "self, *, input_dict, labels, global_valid_tokens"
        ),
        ("torchtitan.components.metrics", "MetricsProcessor.log"): (
            "self, step, global_avg_loss, global_max_loss, grad_norm, extra_metrics=None"
        ),
        ("torchtitan.distributed.utils", "clip_grad_norm_"): (
            "parameters, max_norm, norm_type=2.0, error_if_nonfinite=False, foreach=None, "
            "pp_mesh=None, ep_enabled=False"
        ),
        ("torchtitan.components.optimizer.lr_scheduler", "LRSchedulersContainer.get_metrics"): (
            "self"
        ),
    },
)
LIBRARIES = (MEGATRON, TORCHTITAN)


def published(library: Library) -> Mapping[str, str] | None:
    """The source of each tapped module, from the package that is named or installed; else None."""
    modules = {module for module, _ in library.signatures}
    named = os.environ.get(library.variable)
    if named:
        return {module: _source(Path(named), module) for module in modules}
    try:
        found = find_spec(library.package)
    except ModuleNotFoundError:
        return None
    if found is None or not found.submodule_search_locations:
        return None
    depth = library.package.count(".") + 1
    folder = Path(next(iter(found.submodule_search_locations))).parents[depth - 1]
    return {module: _source(folder, module) for module in modules}


def _source(package: Path, module: str) -> str:
    """The text of a module in a folder, a wheel or an sdist."""
    name = module.replace(".", "/") + ".py"
    if package.is_dir():
        return (package / name).read_text(encoding="utf-8")
    if zipfile.is_zipfile(package):
        with zipfile.ZipFile(package) as wheel:
            return wheel.read(name).decode()
    with tarfile.open(package) as sdist:
        place = re.compile(rf"^[^/]+/(?:src/)?{re.escape(name)}$")
        (member,) = (each for each in sdist.getmembers() if place.match(each.name))
        data = sdist.extractfile(member)
        assert data is not None
        return data.read().decode()


def signature(source: str, function: str) -> str | None:
    """The parameters of a function or method in a module's text; None where it has none."""
    scope: ast.AST = ast.parse(source)
    for name in function.split("."):
        found = next((node for node in _definitions(scope) if node.name == name), None)
        if found is None:
            return None
        scope = found
    if not isinstance(scope, ast.FunctionDef):
        return None
    for argument in ast.walk(scope.args):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    return ast.unparse(scope.args)


def _definitions(scope: ast.AST) -> Iterator[ast.FunctionDef | ast.ClassDef]:
    for node in getattr(scope, "body", ()):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node


def write_stand_in(library: Library, folder: Path, bodies: Mapping[str, str]) -> None:
    """Writes modules of the library's shape; `bodies` says what each function returns."""
    texts: dict[str, list[str]] = {}
    for (module, function), parameters in library.signatures.items():
        lines = texts.setdefault(module, [])
        *classes, name = function.split(".")
        lines += [f"class {each}:" for each in classes]
        indent = "    " * len(classes)
        lines += [f"{indent}def {name}({parameters}):", f"{indent}    return {bodies[function]}"]
    for module, lines in texts.items():
        path = folder.joinpath(*module.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n")
        for package in path.relative_to(folder).parents:
            (folder / package / "__init__.py").touch()
