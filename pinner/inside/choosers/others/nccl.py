"""NCCL: the algorithm, protocol and channels of a collective, which decide the order of its sums.

NCCL reads its variables, then a configuration file for what they leave open, when the first
communicator is made; later they do nothing. (NCCL 2.30, src/misc/param.cc and src/graph/tuning.cc)
What the lock holds is set before torch makes a process group with NCCL, and read there. Where
NCCL_ALGO and NCCL_PROTO are not set, NCCL's model picks by message size and topology: the same for
the same version, machines and ranks, and not held by us.

A tuner plugin picks at run time by rules of its own: a hole, unless it is shut out.
"""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING

from . import looks, settings, variables

if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, List, Mapping, MutableMapping

CHOOSER = "nccl"
ALWAYS = ("NCCL_ALGO", "NCCL_PROTO")
# What decides which ranks add in which order, how a message is cut, and how many channels share it.
VARIABLES = (
    *ALWAYS,
    "NCCL_BUFFSIZE",
    "NCCL_CHUNK_SIZE",
    "NCCL_COLLNET_ENABLE",
    "NCCL_COLLNET_NODE_THRESHOLD",
    "NCCL_CROSS_NIC",
    "NCCL_CTA_POLICY",
    "NCCL_LL128_BUFFSIZE",
    "NCCL_LL128_NTHREADS",
    "NCCL_LL_BUFFSIZE",
    "NCCL_MAX_CTAS",
    "NCCL_MAX_NCHANNELS",
    "NCCL_MAX_NRINGS",
    "NCCL_MIN_CTAS",
    "NCCL_MIN_NCHANNELS",
    "NCCL_MIN_NRINGS",
    "NCCL_NTHREADS",
    "NCCL_NVLSTREE_MAX_CHUNKSIZE",
    "NCCL_NVLS_CHUNKSIZE",
    "NCCL_NVLS_ENABLE",
    "NCCL_NVLS_NCHANNELS",
    "NCCL_PAT_ENABLE",
    "NCCL_SYM_CTAS",
    "NCCL_THREAD_THRESHOLDS",
    "NCCL_WIN_ENABLE",
)
FILES = ("NCCL_GRAPH_FILE", "NCCL_TOPO_FILE")
TUNER = "NCCL_TUNER_PLUGIN"
_TUNER_TEXT = "a tuner plugin picks as the run goes: set NCCL_TUNER_PLUGIN=none"
_CONFIG = ("min_ctas", "max_ctas", "cga_cluster_size", "nvls_ctas", "cta_policy", "collnet_enable")
_UNDEFINED = -(2**31)  # NCCL_CONFIG_UNDEF_INT

_used = False


def force(environ: MutableMapping[str, str]) -> None:
    """Set the locked variables that nobody has set."""
    variables.force_early(CHOOSER, VARIABLES, environ)


def install(distributed_c10d: Any) -> None:
    """Hook where torch makes each process group, the default one and all others."""
    original = distributed_c10d._new_process_group_helper

    @functools.wraps(original)
    def _new_process_group_helper(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(_PARAMETERS, args), **kwargs)
        if _has_nccl(distributed_c10d, given.get("backend")):
            _report(given.get("backend_options") or given.get("pg_options"))
        return original(*args, **kwargs)

    distributed_c10d._new_process_group_helper = _new_process_group_helper
    looks.at_looks(_look)


# torch 2.3 to 2.13; what follows them differs and is always passed by name.
_PARAMETERS = ("group_size", "group_rank", "global_ranks_in_group", "backend", "store")


def _has_nccl(distributed_c10d: Any, backend: Any) -> bool:
    """Whether a group of this backend uses NCCL; an undefined one does where CUDA is there."""
    if "nccl" in str(backend).lower():
        return True
    if str(backend).lower() not in ("undefined", "none"):
        return False
    made = distributed_c10d.BackendConfig(distributed_c10d.Backend(backend or "undefined"))
    return "nccl" in made.get_device_backend_map().values() and _nccl_is_built_in(distributed_c10d)


def _nccl_is_built_in(distributed_c10d: Any) -> bool:
    return bool(distributed_c10d.is_nccl_available())


def _report(options: Any) -> None:
    global _used
    _used = True
    variables.force(CHOOSER, VARIABLES, os.environ)
    found = in_force(os.environ, _configuration_files(os.environ))
    variables.report(CHOOSER, VARIABLES, found, ALWAYS)
    variables.report_files(CHOOSER, FILES, found)
    plugin = found.get(TUNER, "")
    if plugin.lower() == "none":
        settings.report(CHOOSER, TUNER, "none", settings.RECORDED, "no tuner plugin")
    elif plugin:
        settings.report(CHOOSER, TUNER, os.path.basename(plugin), settings.NOT_HELD, _TUNER_TEXT)
    for name, value in _configured(options).items():
        settings.report(CHOOSER, "config." + name, value, settings.RECORDED, "of a process group")


def in_force(environ: Mapping[str, str], files: Iterable[str]) -> Dict[str, str]:
    """What NCCL reads: the environment, then the files, the first that has a variable. Pure."""
    found = {name: value for name, value in environ.items() if name.startswith("NCCL_")}
    for text in files:
        for line in text.splitlines():
            name, equals, value = line.partition("=")
            if equals and not line.startswith("#"):
                found.setdefault(name, value)
    return found


def _configuration_files(environ: Mapping[str, str]) -> List[str]:
    own = environ.get("NCCL_CONF_FILE") or os.path.expanduser("~/.nccl.conf")
    found = []
    for path in (own, "/etc/nccl.conf"):
        try:
            with open(path, encoding="utf-8", errors="replace") as source:
                found.append(source.read())
        except OSError:
            continue
    return found


def _configured(options: Any) -> Dict[str, int]:
    """What a program gave for one group, which goes before the environment's defaults."""
    config = getattr(options, "config", None)
    given = {name: getattr(config, name, None) for name in _CONFIG}
    return {
        name: value
        for name, value in given.items()
        if isinstance(value, int) and value != _UNDEFINED
    }


def _look() -> None:
    """Name a tuner plugin that NCCL found by itself."""
    if not _used or os.environ.get(TUNER, ""):
        return
    for name in tuners_among(looks.mapped_names()):
        settings.report(CHOOSER, TUNER, name, settings.NOT_HELD, _TUNER_TEXT)


def tuners_among(names: Iterable[str]) -> List[str]:
    """The tuner plugins among the base names of mapped files. Pure."""
    return sorted(name for name in names if "nccl" in name and "tuner" in name)
