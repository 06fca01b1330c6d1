"""The ranks of a job agree on lock, pins, profile and hard facts before they work together.

`pinner enforce --agree` asks for it. Each rank writes what it has into the store of the job's own
rendezvous (torchrun's, or what the program gave), inside of `init_process_group` and before the
backend connects: no collective is used, and none can hang on a rank that is not there. Rank 0
compares and writes one verdict, which all ranks raise alike. Ranks that agree write the same text
once, so thousands of ranks cost the store one digest each.

A rank with another stack, or with torn pins, would end before it could tell the others; where it
has a rank of its own it waits for the exchange instead. It decides nothing meanwhile: it ends at
the first choice, when the process ends, and after the time limit. A rank that met a pin which
cannot be forced, and ends before `init_process_group`, comes to the exchange on its way out.

From then on a thread of each rank looks once a second whether another one met a pin that cannot be
forced. It ends the process then: the main thread may be inside of a collective that no exception
reaches.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sys
import threading
import time

from . import facts, faults, ledger, pins, rank_names, session, stack_rules

TYPE_CHECKING = False  # importing `typing` would double the cost of starting
if TYPE_CHECKING:
    from types import ModuleType
    from typing import (
        Any,
        Callable,
        Dict,
        Iterable,
        Iterator,
        List,
        Mapping,
        Optional,
        Tuple,
    )

CHOOSER = "agree"
PREFIX = "pinner/agree"
BROKEN = 97
"""The exit code of a rank that ends because another one met a pin that cannot be forced."""

GRACE_S = 5.0
"""What the verdict may take to travel, beyond the time limit."""

LOOK_S = 1.0
"""How often a rank looks whether another one met an invalid pin."""

_AT_ONCE = 256
_NAMED = 4
_FACT = "fact "
_MODULE = "torch.distributed.distributed_c10d"

_waiting: Optional[str] = None
_invalid: Optional[str] = None
_exchanged_by: Optional[int] = None
_refused: Optional[str] = None


class Disagreement(faults.PinnerError):
    """The ranks do not have the same lock, pins, profile and hard facts, or not all are there."""


def may_wait() -> bool:
    """Whether this process is a rank that will tell the others what it cannot start with."""
    active = session.current()
    world = os.environ.get("WORLD_SIZE", "")
    return (
        active is not None
        and active.agree is not None
        and "RANK" in os.environ
        and world.isdigit()
        and int(world) > 1
        and _exchanged_by != os.getpid()
    )


def keep(cause: str) -> bool:
    """Whether this process waits with `cause`, instead of ending for it at once."""
    if not may_wait():
        return False
    wait_with(cause)
    return True


def wait_with(cause: str) -> None:
    """Keep `cause`, for which this process cannot start, until the exchange, and no longer."""
    global _waiting
    active = session.current()
    if _waiting is not None or active is None or active.agree is None:
        return
    _waiting = cause
    ledger.follow(_end_at_a_choice)
    ledger.at_exit(_end_waiting)  # callbacks run last to first
    ledger.at_exit(_tell_at_the_end)
    timer = threading.Timer(active.agree + GRACE_S, _end_waiting)
    timer.daemon = True
    timer.start()


def _end_waiting() -> None:
    if _waiting is not None:
        faults.die(_waiting)


def _end_at_a_choice(line: Dict[str, Any]) -> None:
    if line["t"] == "choice":
        _end_waiting()


def _keep_invalid(line: Dict[str, Any]) -> None:
    global _invalid
    if _invalid is None and line["t"] == "problem" and line["kind"] == "invalid" and may_wait():
        _invalid = line["text"]
        ledger.at_exit(_tell_at_the_end)


def _tell_at_the_end() -> None:
    """Come to the exchange where this rank ends without, so that the others hear why."""
    module = sys.modules.get(_MODULE)
    active = session.current()
    if not (_waiting or _invalid) or module is None or active is None or active.agree is None:
        return
    if not may_wait() or "MASTER_ADDR" not in os.environ or _is_child():
        return
    try:
        timer = _limit(active.agree)
    except RuntimeError:  # Python 3.12.0 and 3.12.1 start no thread any more at this point
        return  # without a limit it might wait for ever: the others hear who never came
    try:
        next(iter(module.rendezvous("env://")))
    except Disagreement:
        pass  # it was said
    except Exception as error:
        faults.say("cannot tell the other ranks: %s" % faults.describe(error))
    finally:
        timer.cancel()


def _is_child() -> bool:
    """Whether this is a helper that a rank started: it has the rank's variables too."""
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


# -- inside of init_process_group ------------------------------------------------------------------


def install(module: ModuleType) -> None:
    """Exchange in `init_process_group` of torch.distributed.distributed_c10d.

    torch 1.13 to 2.13 call the module's own `rendezvous` there, which yields store, rank, world.
    """
    active = session.current()
    if active is None or active.agree is None or hasattr(module, "_pinner_agrees"):
        return
    seconds = active.agree
    setattr(module, "_pinner_agrees", True)  # noqa: B010
    init, meet, leave = module.init_process_group, module.rendezvous, module.destroy_process_group

    @functools.wraps(init)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(_NAMES, args), **kwargs)
        store = given.get("store")
        timer = _limit(seconds)
        try:
            if store is not None:
                _once(module, store, given.get("rank", -1), given.get("world_size", -1), seconds)
            return init(*args, **kwargs)
        finally:
            timer.cancel()

    @functools.wraps(meet)
    def rendezvous(*args: Any, **kwargs: Any) -> Iterator[Any]:
        for store, rank, world in meet(*args, **kwargs):
            _once(module, store, rank, world, seconds)
            yield store, rank, world

    @functools.wraps(leave)
    def destroy_process_group(*args: Any, **kwargs: Any) -> Any:
        if not args and kwargs.get("group") is None:
            _stop_looking()
        return leave(*args, **kwargs)

    module.init_process_group = init_process_group  # type: ignore[attr-defined]
    module.rendezvous = rendezvous  # type: ignore[attr-defined]
    module.destroy_process_group = destroy_process_group  # type: ignore[attr-defined]


_NAMES = ("backend", "init_method", "timeout", "world_size", "rank", "store")


def _limit(seconds: float) -> threading.Timer:
    timer = threading.Timer(seconds + 2 * GRACE_S, _never_came_back, [seconds])
    timer.daemon = True
    timer.start()
    return timer


def _never_came_back(seconds: float) -> None:
    place = ledger.layout()
    faults.die(
        "rank %s of %s: init_process_group did not come back within %g s: not every rank got there"
        % (place["rank"], place["world"], seconds),
        advice="see which rank ended, or give more time with --agree SECONDS",
    )


def _once(module: ModuleType, store: Any, rank: int, world: int, seconds: float) -> None:
    global _exchanged_by, _refused, _waiting
    if _exchanged_by == os.getpid() and _refused is not None:
        raise Disagreement(_refused)  # a program that tries again: nobody else comes again
    if _exchanged_by == os.getpid() or world <= 1:
        return
    _exchanged_by = os.getpid()
    prefixed = module.PrefixStore(_prefix(), store)
    found, name = exchange(prefixed, rank, world, seconds, fields(_waiting))
    _refused = found
    if found is not None:
        _waiting = None  # it is told here
        faults.record(found)
        faults.say(found)
        raise Disagreement(found)
    text = "all ranks of this job have one lock, one set of pins, one profile and one stack"
    ledger.write(
        {"t": "problem", "kind": "note", "chooser": CHOOSER, "kernel": "ranks", "text": text}
    )
    _look_from_now_on(prefixed, rank, name)


def _prefix() -> str:
    """Torchrun may hand the same store to the ranks that it starts again (2.13, --standalone)."""
    return "%s/%s" % (PREFIX, os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


# -- what is compared ------------------------------------------------------------------------------


def fields(waiting: Optional[str] = None) -> Dict[str, str]:
    """Return what this rank has: names to values as text."""
    active = session.current()
    found = {"refused": waiting} if waiting else {}
    if _invalid:
        found["invalid pin"] = _invalid
    if active is None:
        return found
    found["--on-miss"] = active.on_miss
    found["--allow"] = " ".join(sorted(active.allow))
    locked: Mapping[str, Any] = {}
    if active.pins is not None:
        try:
            loaded = pins.read(active.pins)
        except faults.StartFault as error:
            found["lock"] = str(error)
        else:
            locked = loaded.stack_hard
            found["lock"] = loaded.lock
            with open(active.pins, "rb") as source:
                found["pins"] = "sha256:" + hashlib.sha256(source.read()).hexdigest()
            found["profile"] = _digest({"lock": loaded.policy, "session": active.policy})
    found.update(_hard(locked))
    return found


def _hard(locked: Mapping[str, Any]) -> Dict[str, str]:
    """The hard facts here; without those of which the lock itself lists several values."""
    here = facts.collect()
    on_cpu = stack_rules.evidence_from_cpu(locked or here)
    return {
        _FACT + name: str(value)
        for name, value in here.items()
        if (name in locked or stack_rules.is_hard(name, on_cpu))
        and stack_rules.is_known(value)
        and stack_rules.SEPARATOR not in str(locked.get(name, ""))
    }


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(text.encode("ascii")).hexdigest()


# -- the exchange ----------------------------------------------------------------------------------


def exchange(
    store: Any, rank: int, world: int, seconds: float, mine: Mapping[str, str]
) -> Tuple[Optional[str], str]:
    """Return why the ranks cannot go on, or None, and the name of this gathering; the same on each.

    store: has set, get, wait(keys, timedelta), check(keys) and delete_key(key). It may hold what
        an earlier gathering left: the verdict is addressed to the very processes that asked.
    """
    from datetime import timedelta

    deadline = time.monotonic() + seconds
    text = json.dumps(mine, sort_keys=True)
    digest = hashlib.sha256(text.encode("ascii")).hexdigest()
    nonce = os.urandom(8).hex()
    try:
        store.set("fields/" + digest, text)
        store.set("rank/%d" % rank, "%s %s" % (digest, nonce))
        if rank == 0:
            found, nonces = _verdict(store, world, deadline, seconds)
            for each, its in nonces.items():
                store.set("verdict/%d/%s" % (each, its), json.dumps([found, nonce]))
            store.delete_key("rank/0")
            if found is not None:
                _until_read(store, nonces)
            return found, nonce
        asked = "verdict/%d/%s" % (rank, nonce)
        left = max(0.0, deadline - time.monotonic()) + GRACE_S
        store.wait([asked], timedelta(seconds=left))
        found, name = json.loads(store.get(asked))
        store.delete_key("rank/%d" % rank)
        return found, name
    except (RuntimeError, ValueError) as error:  # torch's errors of stores are RuntimeErrors
        text = "rank 0 gave no verdict on whether the ranks agree within %g s (%s)" % (
            seconds,
            str(error).splitlines()[0] if str(error) else type(error).__name__,
        )
        return text, ""


def _verdict(
    store: Any, world: int, deadline: float, seconds: float
) -> Tuple[Optional[str], Dict[int, str]]:
    """The verdict, and to whom it is told: rank to nonce."""
    from datetime import timedelta

    digests: Dict[int, str] = {}
    nonces: Dict[int, str] = {}
    for start in range(0, world, _AT_ONCE):
        ranks = range(start, min(world, start + _AT_ONCE))
        left = max(0.001, deadline - time.monotonic())
        try:
            store.wait(["rank/%d" % rank for rank in ranks], timedelta(seconds=left))
        except RuntimeError:
            return _missing(store, world, seconds)
        for rank in ranks:
            digests[rank], nonces[rank] = _said_by(store, rank)
    every = {digest: json.loads(store.get("fields/" + digest)) for digest in set(digests.values())}
    return compared(digests, every), nonces


def _said_by(store: Any, rank: int) -> List[str]:
    text: str = store.get("rank/%d" % rank).decode("ascii")
    return text.split()


def _missing(store: Any, world: int, seconds: float) -> Tuple[str, Dict[int, str]]:
    there = [rank for rank in range(world) if store.check(["rank/%d" % rank])]
    absent = sorted(set(range(world)) - set(there))
    text = (
        "%s did not say within %g s what lock and stack it runs with, so none of the %d ranks goes "
        "on: see why it ended, whether it runs under pinner enforce --agree too, or give more "
        "time with --agree SECONDS" % (rank_names.in_words(absent), seconds, world)
    )
    return text, {rank: _said_by(store, rank)[1] for rank in there}


def _until_read(store: Any, ranks: Iterable[int]) -> None:
    """Rank 0 may hold the store: it stays until the others have read why they end."""
    end = time.monotonic() + GRACE_S
    left = [rank for rank in ranks if rank]
    while left and time.monotonic() < end:
        time.sleep(0.01)
        left = [rank for rank in left if store.check(["rank/%d" % rank])]


def compared(digests: Mapping[int, str], every: Mapping[str, Mapping[str, str]]) -> Optional[str]:
    """Return what differs between ranks; None where nothing does. Pure.

    digests: of each rank's fields. every: the fields by digest
    """
    of: Dict[str, List[int]] = {}
    for rank in sorted(digests):
        of.setdefault(digests[rank], []).append(rank)
    most = min(of, key=lambda digest: (-len(of[digest]), of[digest][0]))
    told: List[str] = []
    for digest, ranks in of.items():
        if digest != most:
            differing = _differing(every[digest], every[most])
            told.extend(
                "%s: %s on %s, %s on %s"
                % (
                    name,
                    mine,
                    rank_names.in_words(ranks),
                    usual,
                    rank_names.in_words(_with(name, usual, of, every)),
                )
                for name, mine, usual in differing
            )
    if told:
        more = "; and %d more differences" % (len(told) - _NAMED) if len(told) > _NAMED else ""
        return "the ranks do not agree, so none of them goes on: %s%s; %s" % (
            "; ".join(told[:_NAMED]),
            more,
            "start all of them with one lock and one environment",
        )
    return every[most].get("refused")


def _with(
    name: str,
    value: str,
    of: Mapping[str, List[int]],
    every: Mapping[str, Mapping[str, str]],
) -> List[int]:
    same = (ranks for digest, ranks in of.items() if every[digest].get(name, _ABSENT) == value)
    return sorted(rank for ranks in same for rank in ranks)


_ABSENT = stack_rules.ABSENT


def _differing(here: Mapping[str, str], usual: Mapping[str, str]) -> List[List[str]]:
    """Rows of (field, value here, usual value); why a rank refuses only where no field says it."""
    rows = []
    for name in sorted((set(here) | set(usual)) - {"refused"}):
        mine, theirs = here.get(name, _ABSENT), usual.get(name, _ABSENT)
        loaded = name.startswith(_FACT + stack_rules.ONLY_WHEN_LOADED)
        if mine != theirs and not (loaded and _ABSENT in (mine, theirs)):
            rows.append([name, mine, theirs])
    if "lock" in {row[0] for row in rows} and ("pins" not in here or "pins" not in usual):
        rows = [row for row in rows if row[0] not in ("pins", "profile")]  # torn: they follow
    if not rows and here.get("refused") != usual.get("refused"):
        rows.append(["refused", here.get("refused", _ABSENT), usual.get("refused", _ABSENT)])
    return rows


# -- invalid pins, later ---------------------------------------------------------------------------

_stop: Optional[threading.Event] = None


def _look_from_now_on(store: Any, rank: int, name: str) -> None:
    """Tell the others of an invalid pin here, and look for theirs. name: of the gathering."""
    global _stop
    own, theirs = _another(store), _another(store)
    stop = _stop = threading.Event()
    pid = os.getpid()
    key = "invalid/" + name
    told = threading.Event()

    def tell(line: Dict[str, Any]) -> None:
        if line["t"] != "problem" or line["kind"] != "invalid" or os.getpid() != pid:
            return
        if stop.is_set():
            return
        text = "rank %d cannot force a pin, so every rank stops: %s" % (rank, line["text"])
        try:  # noqa: SIM105
            own.set(key, json.dumps({"rank": rank, "text": text}))
            told.set()
        except RuntimeError:
            pass  # the job's store is gone: so are the others

    ledger.follow(tell)
    looking = threading.Thread(target=_look, args=(theirs, rank, key, stop), name="pinner-agree")
    looking.daemon = True
    looking.start()

    def end() -> None:
        if os.getpid() != pid:
            return
        if told.is_set() and rank == 0:  # it may hold the store, which ends with it
            time.sleep(2 * LOOK_S)
        stop.set()
        looking.join(2 * LOOK_S)

    ledger.at_exit(end)


def _another(store: Any) -> Any:
    """A connection of its own (torch 2.9): one that waits would hold up the others."""
    return store.clone() if hasattr(store, "clone") else store


def _look(store: Any, rank: int, key: str, stop: threading.Event) -> None:
    while not stop.wait(LOOK_S):
        try:
            if not store.check([key]):
                continue
            found = json.loads(store.get(key))
        except (RuntimeError, ValueError):
            return  # the job's store is gone: its ranks end
        if found["rank"] != rank and not stop.is_set():
            faults.say(found["text"])
            os._exit(BROKEN)


def _stop_looking() -> None:
    if _stop is not None:
        _stop.set()


def begin(after: Callable[[str, Callable[[ModuleType], object]], None]) -> None:
    """Hook torch.distributed. after: `imports.after`."""
    after(_MODULE, install)
    ledger.follow(_keep_invalid)
