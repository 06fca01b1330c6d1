"""Observes and forces the config of kernels that `CachingAutotuner` runs.

These are the Triton kernels that Inductor generates, and a user's `@triton.autotune` kernels inside
`torch.compile`. A config is forced when the autotuner is made, in whichever process that is: only
that config is compiled, `.best_config` files are not asked, and no search begins at it. What was
settled on is written down by the process that launches, after the last of the three searches
(benchmark, combo tuning, coordinate descent). A launch itself runs the library's own code.

An autotuner is pickled on its way from a compile worker. It carries its state as plain data.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

from ... import values
from ..triton.decide import Live
from ..triton.watch import encode_configs
from . import identity
from .chooser import Chooser, Decision
from .kernel_code import read_code
from .kernel_question import question_of
from .lines import Fields, Taken
from .question import Question

State = Dict[str, Any]

_STATE = "pinner_state"
_OFFERED = "pinner_offered"


class Kernels:
    """The hooks of one process. chooser: takes the questions."""

    def __init__(self, chooser: Chooser) -> None:
        self._chooser = chooser
        self._measuring = threading.local()

    def patch(self, heuristics: Any) -> None:
        """Hook `torch._inductor.runtime.triton_heuristics`."""
        kind = heuristics.CachingAutotuner
        self._wrap_disk(heuristics)
        self._wrap_init(kind)
        self._wrap_precompile(kind)
        self._wrap_bench(kind)
        self._wrap_search(kind, "autotune_to_one_config", returns_launcher=False)
        self._wrap_search(kind, "coordinate_descent_tuning", returns_launcher=True)
        if hasattr(kind, "_combo_sequential_autotune"):  # 2.12 and later
            self._wrap_search(kind, "_combo_sequential_autotune", returns_launcher=True)
        if hasattr(kind, "recheck_autotune_cache"):  # 2.8 and later
            self._wrap_recheck(kind)

    # -- hooks ----------------------------------------------------------------------------------

    def _wrap_disk(self, heuristics: Any) -> None:
        original = heuristics.check_autotune_cache

        @functools.wraps(original)
        def check_autotune_cache(configs: Any, *args: Any, **options: Any) -> Any:
            if self._chooser.policy.enforcing:
                return configs, None, {"autotune_cache_state": "pinned"}
            answer = original(configs, *args, **options)
            if len(configs) > 1 and len(answer[0]) == 1:
                setattr(answer[0][0], _OFFERED, len(configs))
            return answer

        heuristics.check_autotune_cache = check_autotune_cache

    def _wrap_init(self, kind: Any) -> None:
        original = kind.__init__

        @functools.wraps(original)
        def __init__(tuner: Any, *args: Any, **options: Any) -> None:
            original(tuner, *args, **options)
            self._made(tuner)

        kind.__init__ = __init__

    def _wrap_precompile(self, kind: Any) -> None:
        original = kind.precompile

        @functools.wraps(original)
        def precompile(
            tuner: Any, warm_cache_only: bool = False, reload_kernel: Any = None, **options: Any
        ) -> Any:
            if warm_cache_only:  # a worker, which launches nothing
                return original(tuner, warm_cache_only, reload_kernel, **options)
            self._arrived(tuner, reload_kernel)
            done = original(tuner, warm_cache_only, reload_kernel, **options)
            if len(tuner.launchers) == 1 and not _searching(tuner):
                self._settle(tuner, tuner.launchers[0])
            return done

        kind.precompile = precompile

    def _wrap_bench(self, kind: Any) -> None:
        original = kind.bench

        @functools.wraps(original)
        def bench(tuner: Any, launcher: Any, *args: Any, **options: Any) -> Any:
            figure = original(tuner, launcher, *args, **options)
            self._figures().append((launcher.config, float(figure)))
            return figure

        kind.bench = bench

    def _figures(self) -> List[Tuple[Any, float]]:
        """What this thread measured since a kernel was settled: config, milliseconds."""
        if not hasattr(self._measuring, "figures"):
            self._measuring.figures = []
        figures: List[Tuple[Any, float]] = self._measuring.figures
        return figures

    def _wrap_search(self, kind: Any, name: str, returns_launcher: bool) -> None:
        original = getattr(kind, name)

        @functools.wraps(original)
        def search(tuner: Any, *args: Any, **options: Any) -> Any:
            known = self._known_launcher(tuner)
            if known is not None:
                tuner.launchers = [known]
                return known if returns_launcher else None
            with _keeping_results(tuner) as results:
                found = original(tuner, *args, **options)
            launcher = found if returns_launcher else tuner.launchers[0]
            if returns_launcher:
                setattr(launcher.config, _flag_of(name), True)
            if not _searching(tuner, launcher):
                self._settle(tuner, launcher, results)
            return found

        setattr(kind, name, search)

    def _wrap_recheck(self, kind: Any) -> None:
        original = kind.recheck_autotune_cache

        @functools.wraps(original)
        def recheck_autotune_cache(tuner: Any, *args: Any, **options: Any) -> Any:
            before = len(tuner.compile_results)
            done = original(tuner, *args, **options)
            if before > 1 and len(tuner.compile_results) == 1:
                setattr(tuner.compile_results[0].config, _OFFERED, before)
            return done

        kind.recheck_autotune_cache = recheck_autotune_cache

    # -- before a decision ----------------------------------------------------------------------

    def _made(self, tuner: Any) -> None:
        """An autotuner was made: force its config where it is known."""
        if not hasattr(tuner.fn, "src"):
            return  # under Triton's interpreter nothing is tuned: the first config runs
        question = question_of(tuner)
        live, refusal = encode_configs(list(tuner.configs))
        question = question._replace(refusal=question.refusal or refusal)
        offered = max(getattr(config, _OFFERED, 1) for config in tuner.configs)
        state: State = {
            "question": tuple(question),
            "offered": max(len(live), offered),
            "how": "disk" if offered > 1 else "",
        }
        tuner.__dict__[_STATE] = state
        decision = self._decide(tuner, question, live)
        if decision is None:
            return
        state["how"] = decision.how
        tuner.configs = [_final(decision.live.config)]
        # Registers decide about a smaller RBLOCK, and then timing between the two (torch 2.13).
        tuner.inductor_meta["dynamic_scale_rblock"] = False
        tuner.autotune_cache_info = {"autotune_cache_state": "hit"}

    def _decide(self, tuner: Any, question: Question, live: List[Live]) -> Optional[Decision]:
        def make(fields: Fields) -> Optional[Live]:
            return _built(live[0].config, fields)

        return self._chooser.decide(question, live, make if _is_open(tuner) else None)

    def _arrived(self, tuner: Any, reload_kernel: Optional[Callable[[], Any]]) -> None:
        """An autotuner is about to make its launchers, perhaps one that a worker made.

        A worker that ran without pinner compiled every config: the known one is taken from these.
        """
        if _STATE in tuner.__dict__ or reload_kernel is None:
            return
        twin = reload_kernel()
        state = tuner.__dict__[_STATE] = dict(twin.__dict__[_STATE])
        if not state["how"] or not tuner.compile_results:
            return
        wanted = twin.configs[0] if twin.configs else twin.compile_results[0].config
        text = _text(wanted)
        kept = [each for each in tuner.compile_results if _text(each.config) == text]
        if not kept:
            tuner.fn = twin.fn
            kept = [tuner._precompile_config(wanted)]
        _final(kept[0].config)
        tuner.compile_results = kept[:1]
        tuner.inductor_meta["dynamic_scale_rblock"] = False
        tuner.autotune_cache_info = {"autotune_cache_state": "hit"}

    def _known_launcher(self, tuner: Any) -> Any:
        """The launcher of a config that this process took before for an equal kernel."""
        state = tuner.__dict__.get(_STATE)
        if state is None or not tuner.launchers:
            return None
        question = Question(*state["question"])
        live, _ = encode_configs([each.config for each in tuner.launchers])
        decision = self._decide(tuner, question, live)
        if decision is None:
            return None
        state["how"] = state["how"] or decision.how
        config = _final(decision.live.config)
        for launcher in tuner.launchers:
            if launcher.config is config:
                return launcher
        _load_function(tuner)
        result = tuner._precompile_config(config)
        tuner.compile_results = [result]
        return result.make_launcher()

    # -- after a decision -----------------------------------------------------------------------

    def _settle(self, tuner: Any, launcher: Any, results: Sequence[Any] = ()) -> None:
        state = tuner.__dict__.get(_STATE)
        figures, self._measuring.figures = self._figures(), []
        if state is None:
            if not hasattr(tuner.fn, "src"):
                return
            name = str(tuner.inductor_meta.get("kernel_name", tuner.fn.__name__))
            text = "tuned in a process without pinner, and its source is not here to pin it"
            self._chooser.lines.elsewhere("triton:" + name, text)
            return
        if state.get("settled"):
            return
        state["settled"] = True
        question = Question(*state["question"])
        (chosen,), _ = encode_configs([launcher.config])
        searched = bool(figures) or _was_found(launcher.config)
        how = state["how"] or ("tuned" if searched else "")
        if how == "disk" and searched and figures:
            how = "tuned"
        if not how or how == "again":
            return
        timings = [(_fields(config), figure) for config, figure in figures]
        if timings and min(figure for _, figure in timings) == float("inf"):
            why = "every candidate failed, so that Inductor took the first"
            self._chooser.lines.refused(question, why)
            return
        offered = max(state["offered"], len({values.canonical(fields) for fields, _ in timings}))
        entry = self._chooser.entry(question) if how == "forced" else None
        self._chooser.settle(question, Taken(chosen, offered, how, timings, entry, False))
        made = read_code(
            [*tuner.compile_results, *results],
            launcher.config,
            chosen.fields,
            identity.short_digest(question.text),
        )
        if made is not None:
            self._chooser.lines.code(question, made._replace(entry=entry))


@contextlib.contextmanager
def _keeping_results(tuner: Any) -> Iterator[List[Any]]:
    """What a search compiles: Inductor keeps a launcher only, which does not hold the binary."""
    results: List[Any] = []
    original = tuner._precompile_config

    def precompile_config(*args: Any, **options: Any) -> Any:
        results.append(original(*args, **options))
        return results[-1]

    tuner._precompile_config = precompile_config
    try:
        yield results
    finally:
        del tuner._precompile_config


def _is_open(tuner: Any) -> bool:
    """Whether a search may find configs that are not in the list at the start."""
    meta = tuner.inductor_meta
    return bool(
        meta.get("coordinate_descent_tuning")
        or meta.get("combo_tuning_groups")
        or (
            getattr(tuner.heuristic_type, "name", "") == "REDUCTION"
            and not meta.get("persistent_reduction")
            and meta.get("dynamic_scale_rblock", True)
            and tuner.size_hints is not None
            and tuner.device_props.type in ("cuda", "hip")
        )
    )


def _searching(tuner: Any, launcher: Any = None) -> bool:
    """Whether `run` will search on from this launcher."""
    config = (launcher or tuner.launchers[0]).config
    meta = tuner.inductor_meta
    if meta.get("combo_tuning_groups") and not getattr(config, "found_by_combo_autotune", False):
        return True
    found = getattr(config, "found_by_coordesc", False)
    return bool(meta.get("coordinate_descent_tuning")) and not found


def _flag_of(search: str) -> str:
    return "found_by_coordesc" if search.startswith("coord") else "found_by_combo_autotune"


def _was_found(config: Any) -> bool:
    return bool(
        getattr(config, "found_by_coordesc", False)
        or getattr(config, "found_by_combo_autotune", False)
    )


def _final(config: Any) -> Any:
    """Mark a config as the end of every search."""
    config.found_by_coordesc = True
    config.found_by_combo_autotune = True
    return config


def _built(template: Any, fields: Fields) -> Optional[Live]:
    """A config with these fields; None where they are not those of this kernel's configs."""
    arguments = {name: v for name, v in fields.items() if not values.is_launch_option(name)}
    if set(arguments) != set(template.kwargs):
        return None
    if any(isinstance(value, (dict, list)) for value in fields.values()):
        return None  # searches change numbers only
    launch = {name: v for name, v in fields.items() if values.is_launch_option(name)}
    config = type(template)(dict(arguments), **launch)
    return encode_configs([config])[0][0]


def _load_function(tuner: Any) -> None:
    """Read the kernel's function again where it stayed behind in a worker."""
    if getattr(tuner.fn, "fn", None) is None:
        tuner.fn = tuner._reload_kernel().fn


def _fields(config: Any) -> Fields:
    return encode_configs([config])[0][0].fields


def _text(config: Any) -> str:
    return encode_configs([config])[0][0].text
