"""Observes and forces what Triton's autotuner picks, where the pick is made and nowhere else.

`Autotuner.run` asks `prune_configs` for candidates only when it has no decision for a call. Here
that question is answered: with one config when the lock (or this process) has decided, and with
Triton's own list otherwise. A dictionary that stands in for `Autotuner.cache` sees the answer
arrive, writes the ledger line and steps aside. A decided call meets none of this.
"""

from __future__ import annotations

import weakref
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from ... import values
from .. import own_tuners
from . import bench, code, heuristics, versions
from .cache import AskAgain, CatchOnce, FirstUse, exact_key, plain_key
from .call import Call, read_call
from .decide import Decision, Invalid, Live, LockedKernel, check_source, decide, match
from .lines import Chosen, Line, Lines
from .watch import Pending, Watch, encode_configs


class Policy(NamedTuple):
    """How this process decides.

    enforcing: whether a lock is in force.
    on_miss: "fallback", "error" or "tune", for keys that are not in the lock.
    kernel: name to the kernel's part of the pins, or None.
    version: Triton's (major, minor).
    """

    enforcing: bool
    on_miss: str
    kernel: Callable[[str], Optional[Dict[str, Any]]]
    version: Tuple[int, int]


class Chooser:
    """The Triton chooser of one process. write: takes one ledger line."""

    def __init__(self, policy: Policy, write: Callable[[Line], None]) -> None:
        self.policy = policy
        self.lines = Lines(write)
        self.watches: weakref.WeakKeyDictionary[Any, Watch] = weakref.WeakKeyDictionary()
        self._by_function: Dict[int, List[weakref.ref[Any]]] = {}

    # -- who is watched -------------------------------------------------------------------------

    def register(self, tuner: Any) -> Watch:
        """Begin to watch an autotuner that was just made."""
        watch = self.watches.get(tuner)
        if watch is not None:
            return watch
        watch = Watch(tuner)
        self.watches[tuner] = watch
        self._by_function.setdefault(id(watch.function), []).append(weakref.ref(tuner))
        if len(tuner.configs) == 1:
            tuner.configs = FirstUse(tuner.configs, weakref.ref(tuner), self._only_config)
        return watch

    def name_heuristics(self, around: Any) -> None:
        """Note which arguments of an autotuner a `@triton.heuristics` around it computes."""
        inner = heuristics.tuner_under(around)
        if hasattr(inner, "prune_configs"):
            self.register(inner).outer_heuristics += tuple(around.values)

    def check_module(self, module: str) -> None:
        """Raise InvalidPin when a kernel of this module cannot be forced as it stands now."""
        by_kernel: Dict[str, List[Tuple[Any, Watch]]] = {}
        for tuner, watch in list(self.watches.items()):
            if watch.module == module and self._locked(watch) is not None:
                by_kernel.setdefault(watch.kernel, []).append((tuner, watch))
        for tuners in by_kernel.values():
            self._check_kernel(tuners)

    def _check_kernel(self, tuners: List[Tuple[Any, Watch]]) -> None:
        """The lock must know the source of one of the autotuners that share a kernel's name."""
        watch = tuners[0][1]
        locked = self._locked(watch)
        assert locked is not None
        known = [(t, w) for t, w in tuners if w.source() in locked.sources]
        try:
            if not known:
                check_source(locked, watch.source())
            for tuner, own in known:
                if tuner.early_config_prune is None:  # else it may offer configs of its own
                    live, _ = encode_configs(list(tuner.configs))
                    for entry in locked.of_source(own.source()):
                        match(entry, live)
        except Invalid as invalid:
            raise self.lines.invalid(watch, None, invalid) from None

    def sweep(self) -> None:
        """Report decisions that reached a cache by another way than the tuner's own question."""
        for tuner, watch in list(self.watches.items()):
            for key, config in list(tuner.cache.items()) if isinstance(tuner.cache, dict) else ():
                if plain_key(key) not in watch.known_keys:
                    live, _ = encode_configs([config])
                    self.lines.elsewhere(watch, plain_key(key), live[0].fields)

    def another_tuner(self, tuner: Any) -> None:
        """Report a tuner that is derived from Triton's but decides by a `run` of its own."""
        kind = type(tuner)
        if not own_tuners.is_held(kind):
            self.lines.another_tuner(self.register(tuner), values.type_name(tuner))

    # -- one decision ---------------------------------------------------------------------------

    def ask(
        self, tuner: Any, kwargs: Dict[str, Any], prune: Callable[[Any, Dict[str, Any]], List[Any]]
    ) -> List[Any]:
        """The candidates for a call that Triton has not decided. prune: Triton's own answer."""
        watch = self.register(tuner)
        call = read_call(tuner, kwargs, watch.defaults)
        if call.text is not None and call.text in watch.decided:
            self._arm(tuner, watch, Pending(call, [], "again", None, True, []), kwargs)
            return [watch.decided[call.text]]
        configs = prune(tuner, kwargs)
        live, refusal = encode_configs(list(configs))
        if refusal and not call.refusal:
            call = call._replace(text=None, refusal=refusal)
        decision = self._decide(watch, call, live) if self.policy.enforcing else None
        if decision is None:
            how = "only" if len(live) == 1 else "tuned"
            pending = Pending(call, live, how, None, False, [])
        else:
            pending = Pending(call, live, decision.how, decision.entry, True, [])
            configs = [decision.live.config]
        self._arm(tuner, watch, pending, kwargs)
        return configs

    def _decide(self, watch: Watch, call: Call, live: List[Live]) -> Optional[Decision]:
        share = values.share_class(call.key)
        try:
            decision = decide(self._locked(watch), watch.source(), call.text, share, live)
        except Invalid as invalid:
            raise self.lines.invalid(watch, call.key, invalid) from None
        if decision.how != "fallback" or call.text is None:
            return decision
        if len(live) == 1:
            return decision._replace(how="only")
        if self.policy.on_miss == "tune":
            return None
        if self.policy.on_miss == "error":
            raise self.lines.missed(watch, call.key)
        return decision

    def _arm(self, tuner: Any, watch: Watch, pending: Pending, kwargs: Dict[str, Any]) -> None:
        """Wait for Triton to put the decision into its cache."""
        library_key = pending.call.library_key
        plain = tuner.cache
        if isinstance(plain, CatchOnce):  # left behind by a call that raised
            plain = plain.plain
        if pending.call.ambiguous or self._contested(watch, pending.call):
            if not isinstance(plain, AskAgain):
                plain = AskAgain(plain)
            plain.never.add(library_key)
        watch.pending = pending
        arguments = {**tuner.nargs, **kwargs}

        def settle(config: Any) -> None:
            tuner.cache = plain
            watch.pending = None
            plain.pop(library_key, None)  # exact keys are not equal to each other
            plain[exact_key(library_key)] = config
            watch.known_keys.add(library_key)
            if pending.forced and versions.benches_lone_survivor(self.policy.version):
                _skip_once(tuner)
            if pending.how != "again":
                self._settle(tuner, watch, pending, config, arguments)

        tuner.cache = CatchOnce(plain, library_key, settle)

    def _settle(
        self, tuner: Any, watch: Watch, pending: Pending, config: Any, arguments: Dict[str, Any]
    ) -> None:
        (chosen,), _ = encode_configs([config])
        if pending.call.text is None:
            self.lines.refused(watch, chosen.fields, pending.call.refusal)
            return
        if pending.timings and min(figure for _, figure in pending.timings) == float("inf"):
            why = "every candidate failed, so that Triton took the first"
            self.lines.refused(watch, chosen.fields, why)
            return
        how = pending.how
        if how == "tuned":
            how = "disk" if not pending.timings else "missed" if self.policy.enforcing else how
        watch.decided[pending.call.text] = config
        in_force = heuristics.values_in_force(
            tuner, watch.outer_heuristics, {**arguments, **config.all_kwargs()}
        )
        reset = tuple(tuner.reset_to_zero)
        self.lines.choice(watch, pending, Chosen(how, chosen.fields, chosen.text, in_force, reset))

    def _only_config(self, tuner: Any) -> None:
        """An autotuner with one config was used: nothing to decide, but a lock may disagree."""
        watch = self.register(tuner)
        live, refusal = encode_configs(list(tuner.configs))
        if refusal:
            self.lines.refused(watch, live[0].fields, refusal)
            return
        entry = None
        locked = self._locked(watch) if self.policy.enforcing else None
        if locked is not None:
            try:
                check_source(locked, watch.source())
                for entry in locked.of_source(watch.source()):
                    match(entry, live)
            except Invalid as invalid:
                raise self.lines.invalid(watch, None, invalid) from None
        how = "only" if entry is None else "forced"
        pending = Pending(Call({}, "{}", "", (), False), live, how, entry, True, [])
        self.lines.choice(watch, pending, Chosen(how, live[0].fields, live[0].text, {}, ()))

    # -- on the way to a decision ---------------------------------------------------------------

    def bench(self, tuner: Any, config: Any, run: Callable[[], Any]) -> Any:
        """Time one candidate, by `run` (Triton's own), unless the decision is forced."""
        pending = self.register(tuner).pending
        if pending is not None and pending.forced:
            return [0.0, 0.0, 0.0]
        bench.supply(tuner)
        figure = run()
        if pending is not None:
            fields, _ = encode_configs([config])
            pending.timings.append((fields[0].fields, bench.compared(figure)))
        return figure

    def is_forced(self, tuner: Any) -> bool:
        """Whether the decision in the making is already known."""
        pending = self.register(tuner).pending
        return pending is not None and pending.forced

    def compiled(self, source: Any, kernel: Any) -> None:
        """Observe a specialisation that was just compiled, if its kernel is watched."""
        function = getattr(getattr(source, "fn", None), "fn", None)
        for reference in self._by_function.get(id(function), ()):
            tuner = reference()
            if tuner is not None:
                self.lines.compiled(self.watches[tuner], code.read_compiled(source, kernel))

    def _locked(self, watch: Watch) -> Optional[LockedKernel]:
        return watch.locked(self.policy.kernel)

    def _contested(self, watch: Watch, call: Call) -> bool:
        locked = self._locked(watch) if self.policy.enforcing else None
        return locked is not None and locked.contested(watch.source(), values.share_class(call.key))


def _skip_once(tuner: Any) -> None:
    """Make Triton < 3.8 skip the reset that follows a benchmark: there was no benchmark."""
    original = tuner.pre_hook

    def skip(*_: Any, **__: Any) -> int:
        tuner.pre_hook = original
        return 0

    tuner.pre_hook = skip
