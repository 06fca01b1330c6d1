"""Observes and forces what `AlgorithmSelectorCache` picks: GEMMs, convolutions, flex attention.

The question is read where it is asked (`__call__`), answered after every other filter of the
candidates, and written down where the answer takes effect: when the winner makes its output node,
or when the scheduler settles a selection that was deferred to its benchmark of fused epilogues.
With one candidate left, Inductor neither compiles nor benchmarks the others.
"""

from __future__ import annotations

import functools
import threading
from typing import Any, Dict, List, Optional, Sequence

from . import identity, switches
from .chooser import Chooser, Decision
from .lines import Code, Taken
from .question import Question, of_selection

_QUESTION = "_pinner_selection"


class Selection:
    """One question on its way: what was offered, what was measured, what came of it."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self.offered: identity.Candidates = identity.Candidates([], "")
        self.decision: Optional[Decision] = None
        self.figures: Dict[str, float] = {}
        self.benchmarked = False
        self.settled = False


class Selector:
    """The hooks of one process. chooser: takes the questions."""

    def __init__(self, chooser: Chooser) -> None:
        self.chooser = chooser
        self._asking = threading.local()

    # -- hooks ----------------------------------------------------------------------------------

    def patch(self, select_algorithm: Any) -> None:
        """Hook the class that selects, in a module that was just executed."""
        kind = select_algorithm.AlgorithmSelectorCache
        original_call, original_lookup = kind.__call__, kind.lookup

        @functools.wraps(original_call)
        def __call__(
            cache: Any, name: str, choices: Any, input_nodes: Any, layout: Any, *a: Any, **k: Any
        ) -> Any:
            selection = Selection(of_selection(name, choices, input_nodes, layout))
            if k.get("return_multi_template") and selection.question.key.get("device") != "cpu":
                switches.name_epilogues(self.chooser.lines)
            choices = self._listen(cache, selection, choices)
            outer = getattr(self._asking, "selection", None)
            self._asking.selection = selection
            try:
                return original_call(cache, name, choices, input_nodes, layout, *a, **k)
            finally:
                self._asking.selection = outer

        @functools.wraps(original_lookup)
        def lookup(
            cache: Any, choices: Any, op: Any, inputs: Any, benchmark: Any, *a: Any, **k: Any
        ) -> Any:
            if benchmark is not None:
                benchmark = _noting(benchmark)
            return original_lookup(cache, choices, op, inputs, benchmark, *a, **k)

        kind.__call__, kind.lookup = __call__, lookup

    def patch_ir(self, ir: Any) -> None:
        """Hook the buffer whose winner the scheduler settles."""
        kind = ir.MultiTemplateBuffer
        original = kind.finalize_as_triton_caller

        @functools.wraps(original)
        def finalize_as_triton_caller(buffer: Any, caller: Any) -> Any:
            self._settle(caller)
            return original(buffer, caller)

        kind.finalize_as_triton_caller = finalize_as_triton_caller
        several = getattr(kind, "finalize_as_triton_callers", None)  # 2.8 and later
        if several is None:
            return

        @functools.wraps(several)
        def finalize_as_triton_callers(buffer: Any, callers: Any) -> Any:
            self._settle(callers[None])
            return several(buffer, callers)

        kind.finalize_as_triton_callers = finalize_as_triton_callers

    def _listen(self, cache: Any, selection: Selection, choices: List[Any]) -> List[Any]:
        """Put our filter behind all others, and listen to the timings.

        Versions before 2.9 know no filters: there the candidates are answered at once.
        """
        if self._hear not in cache.feedback_saver_fns:
            cache.feedback_saver_fns.append(self._hear)
        filters = getattr(cache, "preprocessing_fns", None)
        if filters is None:
            return self._answer(selection, choices)
        if self._filter in filters:
            filters.remove(self._filter)
        filters.append(self._filter)
        return choices

    def _filter(self, choices: List[Any]) -> List[Any]:
        selection = getattr(self._asking, "selection", None)
        return choices if selection is None else self._answer(selection, choices)

    def _hear(self, timings: Dict[Any, float], name: Any, inputs: Any, *rest: Any) -> None:
        for choice, figure in timings.items():
            selection = choice.__dict__.get(_QUESTION)
            if selection is not None:
                selection.figures[_text_of(selection, choice)] = float(figure)

    # -- the decision ---------------------------------------------------------------------------

    def _answer(self, selection: Selection, choices: List[Any]) -> List[Any]:
        if not choices:
            return choices
        selection.offered = identity.candidates(choices)
        refusal = selection.question.refusal or selection.offered.refusal
        selection.question = selection.question._replace(refusal=refusal)
        for choice in choices:
            choice.__dict__[_QUESTION] = selection
            self._follow(type(choice))
        decision = self.chooser.decide(selection.question, selection.offered.live)
        selection.decision = decision
        return choices if decision is None else [decision.live.config]

    def _follow(self, kind: Any) -> None:
        """Notice when a candidate of this class becomes part of the graph."""
        owner = next(each for each in kind.__mro__ if "output_node" in vars(each))
        original = vars(owner)["output_node"]
        if getattr(original, "_pinner", False):
            return

        @functools.wraps(original)
        def output_node(choice: Any) -> Any:
            self._settle(choice)
            return original(choice)

        output_node._pinner = True  # type: ignore[attr-defined]
        owner.output_node = output_node

    def _settle(self, choice: Any) -> None:
        selection = choice.__dict__.get(_QUESTION)
        if selection is None or selection.settled:
            return
        selection.settled = True
        live = selection.offered.live
        chosen = next(each for each in live if each.config is choice)
        decision, question = selection.decision, selection.question
        if decision is None and len(live) == 1:
            return  # nothing was offered beside it, and the lock holds nothing for it
        figures = selection.figures
        if figures and min(figures.values()) == float("inf"):
            why = "every candidate failed, so that Inductor took one by rule"
            self.chooser.lines.refused(question, why)
            return
        how = decision.how if decision else "tuned" if selection.benchmarked else "disk"
        timings = [(each.fields, figures[each.text]) for each in live if each.text in figures]
        entry = decision.entry if decision else None
        self.chooser.settle(question, Taken(chosen, len(live), how, timings, entry))
        self._write_code(question, chosen, entry)

    def _write_code(self, question: Question, chosen: Any, entry: Any) -> None:
        digest = identity.source_digest(chosen.config)
        if digest is not None and not question.refusal:
            spec = identity.short_digest(question.text)
            self.chooser.lines.code(question, Code(chosen.fields, spec, digest, {}, entry))


def _noting(benchmark: Any) -> Any:
    @functools.wraps(benchmark)
    def noting(choices: Sequence[Any]) -> Any:
        for choice in choices:
            selection = choice.__dict__.get(_QUESTION)
            if selection is not None:
                selection.benchmarked = True
        return benchmark(choices)

    return noting


def _text_of(selection: Selection, choice: Any) -> str:
    return next((e.text for e in selection.offered.live if e.config is choice), "")
