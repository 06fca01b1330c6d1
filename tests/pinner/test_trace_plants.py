"""Every fault that can be planted in moe_train.py: the command that finds it, and what it says.

Whole commands, in processes of their own: `pinner trace` and `compare`, `verify --runs`, `verify
--resume`. The short form draws one of each way to start the program; the long one (`make soak`)
goes through all of them.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import lanes
from tests.command_rig import Pinner, Said, python
from tests.workloads.moe_sites import LINEAR

pytestmark = pytest.mark.xdist_group("trace-plants")  # they share the runs without a fault

SEED = secrets.randbits(32)
STEPS = 2
WIDEST = 32  # elements of the smallest output of a linear operation: 32 tokens, 4 experts


@dataclass(frozen=True)
class Fault:
    """A fault, and what `pinner compare` has to say of it.

    name: of the call that differs first. reading: how that is read. words: what the text says.
    """

    kind: str
    name: str
    reading: str
    words: str


ORIGIN = "this is the origin: inputs equal, outputs different"
FAULTS = (
    Fault("bitflip", "moe.linear.default", "origin", ORIGIN),
    Fault("atomics", "moe.combine.default", "origin", ORIGIN),
    Fault("routing", "moe.route.default", "origin", ORIGIN),
    Fault("scale", "moe.scale_of.default", "origin", ORIGIN),
    Fault("outside", "", "untraced", "the producer is not traced"),
    Fault("copy", "", "", ""),
)


@dataclass(frozen=True)
class Place:
    """Where a fault is planted: drawn."""

    rank: int
    step: int
    site: str
    element: int

    def plant(self, kind: str) -> str:
        """The value of PLANT."""
        site = self.site if kind in ("bitflip", "outside") else ""
        return f"{kind}:{self.rank}:{self.step}:{site}:{self.element}"


def drawn(ranks: int = 1, first: int = 0, again: int = 0) -> Place:
    draw = random.Random(SEED + again)
    place = Place(
        draw.randrange(ranks),
        draw.randrange(first, STEPS),
        draw.choice(LINEAR),
        draw.randrange(WIDEST),
    )
    print(f"seed {SEED}: {place}")
    return place


class Traces:
    """Traces of one way to start the program, in `folder`; the one without a fault is made once."""

    def __init__(self, folder: Path, argv: Sequence[str], level: str) -> None:
        self.pinner = Pinner(folder)
        self.argv = argv
        self.level = level
        self.caches = {
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "OMP_NUM_THREADS": "1",
        }
        self.trace("good", "")

    def trace(self, name: str, plant: str) -> None:
        options = ("-o", name, "--no-check", "--keep-bytes", "--level", self.level)
        said = self.pinner("trace", *options, "--", *self.argv, PLANT=plant, **self.caches)
        assert said.code == 0, said.err

    def compared(self, plant: str) -> Said:
        """What `pinner compare` says of a run with this fault."""
        name = f"bad-{len(list(self.pinner.folder.iterdir()))}"
        self.trace(name, plant)
        return self.pinner("compare", "--json", "good", name)


def only_drawn(fault: Fault) -> None:
    """Skips all faults but one, in the short form."""
    short = random.Random(SEED).choice(FAULTS)
    if not lanes.soak() and fault is not short:
        pytest.skip(f"the short form has drawn {short.kind} (seed {SEED})")


def only_long() -> None:
    if not lanes.soak():
        pytest.skip("many whole runs: only in the long form, make soak")


@pytest.fixture(scope="module")
def eager(tmp_path_factory: pytest.TempPathFactory) -> Traces:
    command = python("moe_train.py", "--steps", str(STEPS))
    return Traces(tmp_path_factory.mktemp("eager"), command, "ops")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Traces:
    command = python("moe_train.py", "--steps", str(STEPS), "--compile")
    return Traces(tmp_path_factory.mktemp("compiled"), command, "kernels")


def check(fault: Fault, place: Place, said: Said) -> dict[str, Any]:
    """The first mismatch; it has to be the right call, in the right step, read rightly."""
    assert said.code == 1, said.err
    found: dict[str, Any] = said.json["first"]
    assert found["event"]["step"] == place.step, said.out
    assert found["event"]["name"] == (fault.name or found["event"]["name"])
    assert found["reading"] == fault.reading, said.out
    assert fault.words in found["words"]
    return found


def check_rows(figures: dict[str, Any]) -> None:
    """Two tokens changed places: their rows are named, and no other."""
    (difference,) = figures["differences"]
    assert difference["rows"] == len(difference["first_rows"]) == 2
    assert difference["first_rows"][0] == 0


def check_bytes(place: Place, figures: dict[str, Any]) -> None:
    """The kept bytes of a flipped low bit: one element, its index, both values, 1 ulp."""
    (difference,) = figures["differences"]
    assert (difference["differing"], difference["ulp"], difference["most_ulp"]) == (1, 1, 1)
    assert difference["first"] == place.element
    width = difference["shape"][-1]
    assert difference["index"][-2:] == [place.element // width, place.element % width]
    one, other = (int(text, 16) for text in difference["hex"])
    assert one ^ other == 1


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.kind)
def test_eager(eager: Traces, fault: Fault) -> None:
    only_drawn(fault)
    # A weight that something changes before the first step was not written by what is traced.
    place = drawn(first=1 if fault.kind == "outside" else 0)
    said = eager.compared(place.plant(fault.kind))
    if fault.kind == "copy":
        assert said.code == 0, said.err
        return
    found = check(fault, place, said)
    if fault.kind in ("bitflip", "outside"):
        assert found["event"]["module"] == place.site
    if fault.kind == "bitflip":
        check_bytes(place, said.json["bytes"][0])
    if fault.kind == "routing":
        check_rows(said.json["bytes"][0])


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.kind)
def test_compiled(compiled: Traces, fault: Fault) -> None:
    only_drawn(fault)
    place = drawn(first=1 if fault.kind == "outside" else 0)
    said = compiled.compared(place.plant(fault.kind))
    if fault.kind == "copy":
        assert said.code == 0, said.err
        return
    check(fault, place, said)
    if fault.kind == "bitflip":
        check_bytes(place, said.json["bytes"][0])
    if fault.kind == "routing":
        check_rows(said.json["bytes"][0])


def test_two_ranks_by_torchrun(tmp_path: Path) -> None:
    """The rank is named; what reached the other one through the collective is not blamed."""
    run = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script, *words = python("moe_train.py", "--steps", str(STEPS))[1:]
    traces = Traces(tmp_path, [python("")[0], *run, script, *words], "ops")
    fault, place = FAULTS[0], drawn(ranks=2)
    said = traces.compared(place.plant(fault.kind))
    found = check(fault, place, said)
    assert (found["rank"], found["event"]["module"]) == (place.rank, place.site)
    check_bytes(place, said.json["bytes"][0])
    (other,) = [each for each in said.json["ranks"] if each["rank"] != place.rank]
    if other["first"] is not None:  # else rounding has absorbed it before the reduction
        assert other["first"]["event"]["kind"] == "collective"
        assert other["first"]["reading"] == "arrived"


@pytest.fixture
def pinner(tmp_path: Path) -> Pinner:
    (tmp_path / "here").mkdir()
    return Pinner(tmp_path / "here")


def ways(*words: str) -> list[list[str]]:
    """The program eager and compiled."""
    return [python("moe_train.py", *words), python("moe_train.py", "--compile", *words)]


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["bitflip", "atomics"])
@pytest.mark.parametrize("argv", ways("--steps", str(STEPS)), ids=["eager", "compiled"])
def test_verify_follows_independent_runs_to_the_element(
    pinner: Pinner, argv: list[str], kind: str
) -> None:
    only_long()
    for again in range(8):  # what rounding absorbs before the gradients leaves equal evidence
        place = drawn(again=again)
        said = pinner(
            *("verify", "--json", "--keep-bytes", "--", *argv),
            timeout=1200,  # eight runs with empty caches
            PLANT=place.plant(kind),
            TURNS=str(pinner.folder / f"turns-{again}"),
            OMP_NUM_THREADS="1",
        )
        if said.code != 0:
            break
    assert said.code == 1, said.err
    last = said.json["chain"][-1]["first"]
    name = "moe.linear.default" if kind == "bitflip" else "moe.combine.default"
    assert (last["name"], last["step"], last["reading"]) == (name, place.step, ORIGIN)
    if kind == "bitflip":
        assert last["figures"][0].startswith("bytes: output 0: 1 of ")
        assert ", 1 ulp apart" in last["figures"][0]
    assert list(Path(said.json["kept"]).glob("kernels-*/rank-none/bytes/*.safetensors"))


@pytest.mark.soak
@pytest.mark.parametrize(
    ("kind", "lacks"),
    [
        ("rng", ["torch's random state on the CPU", "what was passed"]),
        ("loader", ["what was passed"]),
    ],
)
@pytest.mark.parametrize("argv", ways("--every", "2", "{dir}"), ids=["eager", "compiled"])
def test_verify_resume_names_what_was_not_restored(
    pinner: Pinner, argv: list[str], kind: str, lacks: list[str]
) -> None:
    only_long()
    environ = {"PLANT": f"{kind}:*:*", "OMP_NUM_THREADS": "1"}
    said = pinner("verify", "--resume", "--json", "--", *argv, **environ)
    assert said.code == 1, said.err
    assert sorted(lack["name"] for lack in said.json["lacks"]) == sorted(lacks)
    assert said.json["differences"][0]["step"] == 2
