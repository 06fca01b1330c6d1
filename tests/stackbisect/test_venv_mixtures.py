"""Mixtures of two virtual environments: real interpreters, real pip, wheels made here."""

from __future__ import annotations

import os
import shutil
import sys
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest

from pinner import shipped
from pinner.launch import session_dir
from stackbisect.probe import Candidate, EvidenceOptions, Job, ProbeResult, Unsupported
from stackbisect.runtimes import loaded, venv_graft
from stackbisect.runtimes.base_python import find_base
from stackbisect.runtimes.venv import VenvRuntime
from stackbisect.spaces import pins
from stackbisect.spaces.components import Component, Inventory, derived, install, swap
from tests.stackbisect import wheels

# Bits that depend on both: on the order that `summing` sums in, and on the factor of `scaling`.
WORK = (
    "import scaling, struct, summing\n"
    "for step in range(3):\n"
    "    value = summing.total([1e16, 1.0, -1e16 + step, 0.1 * step]) * scaling.FACTOR\n"
    "    print('loss', struct.pack('<d', value).hex())\n"
)
GOOD, BAD = (Candidate(version, version, n) for n, version in enumerate(("1.0", "2.0")))


@dataclass(frozen=True)
class Lab:
    """A store of wheels, a runtime over it, and one probe folder after the other."""

    folder: Path
    numbers: count[int] = field(default_factory=lambda: count(1))

    @property
    def store(self) -> Path:
        """Where pip finds wheels."""
        return self.folder / "store"

    def runtime(self) -> VenvRuntime:
        """A runtime like the one that another start of the program would make."""
        args = ("--no-index", "--find-links", str(self.store))
        base = find_base(sys.executable, args, os.environ)
        return VenvRuntime(base, "suite", (), self.folder / "envs")

    def job(self, *command: str, files: Sequence[str] = ()) -> Job:
        """A job for one probe."""
        folder = self.folder / "probes" / f"{next(self.numbers):04d}"
        (folder / "scratch").mkdir(parents=True)
        (self.folder / "work").mkdir(exist_ok=True)
        settings = session_dir.Settings("observe", "test", session_dir.now())
        return Job(
            command=command or ("python", "-c", WORK),
            evidence=EvidenceOptions(files=tuple(files), stdout=("loss (.*)",)),
            session=session_dir.create(folder / "session", settings).path,
            inside=shipped.inside_dir(),
            log=folder / "log",
            stdout=folder / "stdout",
            scratch=folder / "scratch",
            workdir=self.folder / "work",
        )

    def probe(self, candidate: Candidate, *command: str) -> ProbeResult:
        """One probe of one candidate."""
        return self.runtime().run(candidate, self.job(*command))


@pytest.fixture(name="lab", scope="module")
def _lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """Two ends: `suite` pins `summing`; `scaling` moves freely; each end has one of its own."""
    lab = Lab(tmp_path_factory.mktemp("mixtures"))
    wheels.summing(lab.store, {"1.0": "forward", "1.5": "forward", "2.0": "backward"})
    wheels.summing(lab.store, {"1.7": "backward", "3.0": "backward"})
    for version, factor, own in (("1.0", "1.0", "old-own"), ("2.0", "3.0", "new-own")):
        wheels.write(lab.store, "scaling", version, {"scaling.py": f"FACTOR = {factor}\n"})
        module = own.replace("-", "_")
        wheels.write(lab.store, module, "0.1", {f"{module}.py": "", f"{module}_data/a.txt": own})
        wheels.write(lab.store, "still", "7", {"still.py": ""})
        wheels.write(
            lab.store,
            "suite",
            version,
            {"suite.py": PROGRAM, f"suite-{version}.dist-info/entry_points.txt": ENTRY},
            [f"summing=={version}", f"scaling >={version},<={version}", own, "still"],
        )
    for candidate in (GOOD, BAD):
        assert lab.probe(candidate).status == "ran"
    return lab


PROGRAM = "import sys\ndef main():\n    print('loss', sys.prefix)\n"
ENTRY = "[console_scripts]\nsuite-python = suite:main\n"


def component(inventory: Inventory, name: str) -> Component:
    """The distribution of that name."""
    return next(each for each in inventory.components if each.name == name)


def mixture(lab: Lab, *names: str) -> Candidate:
    """The bad end with these distributions from the good one."""
    inventory = lab.runtime().inventory(GOOD, BAD, ())
    swapped = [component(inventory, name) for name in names]
    return derived(BAD, [swap(GOOD, swapped)], "mixture " + " ".join(names))


def bits(result: ProbeResult) -> str:
    """The digest of a probe that ran well."""
    assert (result.status, result.exit_code) == ("ran", 0), (result.reason, result.log)
    return result.evidence.digest


def test_what_differs_is_listed_with_exact_pins_together(lab: Lab) -> None:
    found = lab.runtime().inventory(GOOD, BAD, ())
    assert {each.name: (each.good, each.bad) for each in found.components} == {
        "suite": ("1.0", "2.0"),
        "summing": ("1.0", "2.0"),
        "scaling": ("1.0", "2.0"),
        "old-own": ("0.1", None),
        "new-own": (None, "0.1"),
    }
    assert found.groups == (("distribution:suite", "distribution:summing"),)
    assert [each.name for each in found.components][:2] == ["suite", "summing"]


def test_a_swapped_distribution_brings_its_bits_and_nothing_else(lab: Lab) -> None:
    good, bad = bits(lab.probe(GOOD)), bits(lab.probe(BAD))
    half = lab.probe(mixture(lab, "summing"))
    assert bits(half) not in (good, bad)
    assert half.loaded["distributions"] == {
        "suite": "2.0", "summing": "1.0", "scaling": "2.0", "new-own": "0.1", "still": "7"
    }  # fmt: skip
    assert half.loaded["modules"]["summing"][0] == "1.0"
    assert half.facts["host"]["hostname"] == os.uname().nodename
    whole = lab.probe(mixture(lab, "summing", "scaling", "suite", "old-own", "new-own"))
    assert bits(whole) == good
    assert whole.loaded["distributions"] == lab.probe(GOOD).loaded["distributions"]
    assert (bits(lab.probe(GOOD)), bits(lab.probe(BAD))) == (good, bad)


def test_a_mixture_needs_no_index(lab: Lab) -> None:
    away = lab.store.rename(lab.folder / "away")
    try:
        assert bits(lab.probe(mixture(lab, "scaling")))
    finally:
        away.rename(lab.store)


@pytest.mark.parametrize("last", ["one", "two"])
def test_a_file_of_two_distributions_comes_from_the_one_that_wrote_it(
    tmp_path: Path, last: str
) -> None:
    """Where pip installs over a file, the list of the distribution before has another digest."""
    for version in ("good", "bad"):
        for name in sorted(("one", "two"), key=lambda each: each == last):
            made = wheels.write(tmp_path, name, version, {"both.py": f"{name} {version}"})
            with zipfile.ZipFile(made) as wheel:
                wheel.extractall(tmp_path / version)
    for name in ("one", "two"):
        into = tmp_path / f"mixture-{name}"
        for each in ("one", "two"):
            donor = tmp_path / ("good" if each == name else "bad")
            (info,) = donor.glob(f"{each}-*.dist-info")
            venv_graft.graft(each, info, donor, into)
        assert (into / "both.py").read_text() == f"{last} {'good' if name == last else 'bad'}"


def test_programs_of_a_mixture_start_its_own_python(lab: Lab) -> None:
    found = lab.probe(mixture(lab, "suite"), "suite-python")
    (printed,) = Path(found.log).read_text().splitlines()
    assert Path(printed.removeprefix("loss ")).name.startswith("suite-mixture-suite")
    assert found.status == "ran", found.reason


def test_several_probes_at_once_make_each_environment_once(lab: Lab) -> None:
    """Two of each, all at the same time, over one runtime, from environments that are not there."""
    shutil.rmtree(lab.folder / "envs")
    kinds = [GOOD, BAD, derived(BAD, [swap(GOOD, [SUMMING])], "a"), derived(GOOD, [TO_1_5], "b")]
    runtime = lab.runtime()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda each: bits(runtime.run(each, lab.job())), [*kinds, *kinds]))
    assert found[:4] == found[4:]
    assert len(set(found)) == 3  # 1.5 sums like the good end
    made = [path for path in (lab.folder / "envs").iterdir() if path.is_dir()]
    assert len(made) == 4


SUMMING = Component("distribution", "summing", "1.0", "2.0")
TO_1_5 = install(SUMMING, "1.5")


def test_a_version_between_the_ends_is_installed_without_its_requirements(lab: Lab) -> None:
    found = lab.probe(derived(BAD, [install(SUMMING, "1.7")], "summing 1.7"))
    assert bits(found) == bits(lab.probe(BAD))
    assert found.loaded["distributions"]["summing"] == "1.7"
    assert found.loaded["artifacts"]["summing"].startswith("sha256:")
    assert lab.probe(BAD).loaded["distributions"]["summing"] == "2.0"


def test_a_version_that_is_not_there_is_untestable_in_pips_words(lab: Lab) -> None:
    found = lab.probe(derived(BAD, [install(SUMMING, "1.6")], "summing 1.6"))
    assert found.status == "untestable"
    assert "No matching distribution found for summing==1.6" in found.reason


def test_a_mixture_of_a_mixture_is_one_too(lab: Lab) -> None:
    inner = derived(BAD, [swap(GOOD, [Component("distribution", "scaling", "1.0", "2.0")])], "x")
    outer = derived(inner, [swap(GOOD, [SUMMING])], "y")
    assert bits(lab.probe(outer)) == bits(lab.probe(GOOD))


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (swap(GOOD, [Component("library", "libm.so", "a", "b")]), "has no library of its own"),
        (swap(GOOD, [Component("distribution", "nothing", "1", "2")]), "expected nothing in"),
        ({"kind": "rewrite"}, "no way to rewrite"),
    ],
)
def test_what_cannot_be_swapped_is_untestable(
    lab: Lab, step: dict[str, object], words: str
) -> None:
    found = lab.probe(derived(BAD, [step], "odd"))
    assert found.status == "untestable"
    assert words in found.reason


def test_a_distribution_whose_files_are_not_all_known_is_untestable(lab: Lab) -> None:
    donor = Candidate("1.0", "1.0", 0)
    inventory = lab.runtime().inventory(GOOD, BAD, ())
    envs = lab.folder / "envs"
    (good,) = (path for path in envs.iterdir() if path.name.startswith("suite-1.0-"))
    (record,) = good.rglob("scaling-1.0.dist-info/RECORD")
    (module,) = good.rglob("scaling.py")
    broken = derived(BAD, [swap(donor, [component(inventory, "scaling")])], "broken")
    kept, source = record.read_text(), module.read_text()
    for path in envs.glob("*scaling*"):
        shutil.rmtree(path)
    try:
        module.unlink()
        found = lab.probe(broken, "true")
        assert "lists scaling.py, which is not there" in found.reason
        record.unlink()
        found = lab.probe(broken, "true")
        assert (found.status, "to list its files, found none" in found.reason) == (
            "untestable",
            True,
        )
        assert not [path for path in envs.iterdir() if "broken" in path.name]
    finally:
        record.write_text(kept)
        module.write_text(source)


def test_a_swapped_distribution_that_is_hidden_is_untestable(lab: Lab) -> None:
    hide = lab.folder / "hide"
    hide.mkdir(exist_ok=True)
    (hide / "scaling.py").write_text("FACTOR = 5.0\n")
    code = f"import sys; sys.path.insert(0, {str(hide)!r})\n" + WORK
    found = lab.probe(mixture(lab, "scaling"), "python", "-c", code)
    assert found.status == "untestable"
    assert f"scaling was loaded from {hide}/scaling.py" in found.reason


def test_a_library_of_the_system_that_shadows_the_swapped_one_is_said() -> None:
    env = Path("/envs/a")
    own = [env / "lib/nvidia/cublas/lib/libcublas.so.12"]
    system = "/usr/local/cuda/lib64/libcublas.so.12"

    def fault(*libraries: str) -> str:
        seen = loaded.Loaded(1, 1, {}, libraries)
        return loaded.elsewhere("nvidia-cublas-cu12", (), own, env, seen)

    assert fault(system).startswith(f"{system} was loaded")
    assert fault(str(own[0]), system) == ""
    assert fault("/usr/lib/libm.so.6") == ""


def test_a_probe_that_is_not_wanted_any_more_ends_at_once(lab: Lab) -> None:
    job = lab.job("sh", "-c", "echo up; exec sleep 3600")
    runtime = lab.runtime()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(runtime.run, GOOD, job)
        while not (job.log.exists() and "up" in job.log.read_text()):
            assert not running.done(), running.result()
        job.stop.set()
        assert running.result(timeout=30).status == "infrastructure"
        again = pool.submit(runtime.run, GOOD, lab.job("sleep", "3600"))
        runtime.close()
        assert again.result(timeout=30).status == "infrastructure"


def test_probes_whose_files_are_evidence_take_turns(lab: Lab) -> None:
    """They share the command's folder: a second one would be judged by the first one's file."""
    code = (
        "import os, time\n"
        "assert not os.path.exists('busy')\n"
        "open('busy', 'w').close(); time.sleep(0.3); os.unlink('busy')\n"
        "open('out.bin', 'w').write('bits')\n"
    )
    runtime = lab.runtime()
    with ThreadPoolExecutor(2) as pool:
        jobs = [lab.job("python", "-c", code, files=["*.bin"]) for _ in range(2)]
        found = list(pool.map(lambda job: runtime.run(GOOD, job), jobs))
    assert [bits(each) for each in found] == [found[0].evidence.digest] * 2


def test_versions_between_the_ends_come_from_the_index_in_the_asked_direction(lab: Lab) -> None:
    def versions(good: str | None, bad: str | None) -> list[str]:
        asked = Component("distribution", "summing", good, bad)
        return lab.runtime().versions(asked, GOOD, BAD)

    assert versions("1.0", "2.0") == ["1.0", "1.5", "1.7", "2.0"]
    assert versions("3.0", "1.7") == ["3.0", "2.0", "1.7"]
    assert versions("1.0", "1.6+lab") == ["1.0", "1.5", "1.6+lab"]
    with pytest.raises(Unsupported, match="no versions between"):
        versions(None, "1.0")


def test_versions_of_what_the_index_does_not_know_are_the_two_ends(lab: Lab) -> None:
    asked = Component("distribution", "private-thing", "1.0", "2.0")
    assert lab.runtime().versions(asked, GOOD, BAD) == ["1.0", "2.0"]


PINS: list[tuple[str, tuple[str, ...]]] = [
    ("triton==3.0.0 ; platform_system == 'Linux'", ("triton",)),
    ("nvidia_cublas-cu12 (==12.1.3.1)", ("nvidia-cublas-cu12",)),
    ("torch[opt] === 2.4.0+lab", ("torch",)),
    ("numpy==1.*", ()),
    ("numpy>=1.2", ()),
    ("numpy", ()),
    ("numpy==1.2,!=1.2.1", ()),
    ("pytest==8.0; extra == 'test'", ()),
]


@pytest.mark.parametrize(("line", "found"), PINS)
def test_exact_pins_are_read_as_packaging_writes_them(line: str, found: tuple[str, ...]) -> None:
    assert pins.pinned([line]) == found


def test_pins_at_either_end_join_groups_and_strangers_join_none() -> None:
    good = {"torch": ("triton",), "vision": ("torch",), "other": ("gone",)}
    bad = {"torch": ("cublas",), "x": ("y",)}
    names = ["y", "x", "vision", "triton", "torch", "other", "cublas", "alone"]
    assert pins.groups(names, good, bad) == (("cublas", "torch", "triton", "vision"), ("x", "y"))
