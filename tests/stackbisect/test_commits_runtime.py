"""Probes in checkouts: real repositories, builds by sh, what each probe leaves and sees."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from pinner import shipped
from pinner.launch import session_dir
from stackbisect.probe import Candidate, EvidenceOptions, InfrastructureError, Job, ProbeResult
from stackbisect.runtimes import sources
from stackbisect.runtimes.commits import CommitRuntime
from stackbisect.spaces import commits
from stackbisect.spaces.commits import Change, Repository
from tests.stackbisect import repositories
from tests.stackbisect.repositories import Made

LINES = EvidenceOptions(stdout=("(.*)",))


class Bench:
    """A runtime over one repository, and probes in it."""

    def __init__(
        self, folder: Path, repository: Path, build: str | None = None, **more: object
    ) -> None:
        """`more` goes to the runtime."""
        self.folder = folder
        environ = {**os.environ, **more.pop("environ", {})}  # type: ignore[dict-item]
        self.repository = Repository(repository)
        self.runtime = CommitRuntime(
            self.repository,
            folder,
            build,
            environ,
            **more,  # type: ignore[arg-type]
        )

    def job(
        self, command: str, evidence: EvidenceOptions = LINES, env: Mapping[str, str] | None = None
    ) -> Job:
        """A job for sh."""
        folder = self.folder / "probes" / f"{len(self.left('probes')) + 1:04d}"
        (folder / "scratch").mkdir(parents=True)
        settings = session_dir.Settings("observe", "test", session_dir.now())
        return Job(
            command=("sh", "-c", command),
            evidence=evidence,
            session=session_dir.create(folder / "session", settings).path,
            inside=shipped.inside_dir(),
            log=folder / "log",
            stdout=folder / "stdout",
            scratch=folder / "scratch",
            workdir=self.folder,
            env=env or {},
        )

    def candidate(self, sha: str) -> Candidate:
        """A commit as it is."""
        return commits.candidate(self.repository.commit(sha), 0)

    def __call__(self, sha: str, command: str, **more: object) -> ProbeResult:
        """One probe of a commit."""
        return self.runtime.run(self.candidate(sha), self.job(command, **more))  # type: ignore[arg-type]

    def out(self, result: ProbeResult) -> list[str]:
        """What the command printed."""
        return Path(result.log).with_name("stdout").read_text().splitlines()

    def left(self, name: str) -> list[str]:
        """What is in a folder of the bisection."""
        place = self.folder / name
        return sorted(os.listdir(place)) if place.exists() else []


@pytest.fixture(name="known")
def _known(tmp_path: Path) -> dict[str, str]:
    made = repositories.line("abc", [{"value": name, "run.py": "print(1)\n"} for name in "abc"])
    return repositories.make(tmp_path / "repo", made)


BenchFactory = Callable[..., Bench]


@pytest.fixture(name="bench")
def _bench(tmp_path: Path, known: dict[str, str]) -> BenchFactory:
    def make(build: str | None = None, **more: object) -> Bench:
        return Bench(tmp_path / "bisection", tmp_path / "repo", build, **more)

    return make


def everything(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file with its time and content."""
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_commit_is_tried_in_a_checkout_of_its_own_and_the_users_files_stay(
    bench: BenchFactory, known: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "repo" / "value").write_text("edited")
    before = everything(tmp_path / "repo")
    probe = bench()
    ask = (
        "cat value; echo; git rev-parse HEAD; echo $STACKBISECT_COMMIT; git status -s; pwd; touch x"
    )
    found = probe(known["b"], ask)
    assert (found.status, found.exit_code) == ("ran", 0), found.reason
    *lines, place = probe.out(found)
    assert lines == ["b", known["b"], known["b"]]
    assert place.startswith(str(tmp_path / "bisection" / "checkouts"))
    assert probe.left("checkouts") == []
    assert everything(tmp_path / "repo") == before
    assert found.facts["commit"] == known["b"]
    assert found.facts["host"]["hostname"] == os.uname().nodename


def test_every_probe_gets_what_the_build_left_at_the_same_path(
    bench: BenchFactory, known: dict[str, str], tmp_path: Path
) -> None:
    """Also read-only folders, and not what the probe before it left or changed."""
    build = (
        "echo built >> built; pwd > where; mkdir closed; echo 1 > closed/x; chmod 555 closed;"
        f"echo >> {tmp_path}/builds"
    )
    probe = bench(build)
    ask = "cat built where; ls; echo 2 >> built; touch left; test $(pwd) = $(cat where)"
    first, second, third = (probe(known["a"], ask) for _ in range(3))
    assert [each.exit_code for each in (first, second, third)] == [0, 0, 0], third.reason
    assert probe.out(first) == probe.out(second) == probe.out(third)
    assert probe.out(first)[0] == "built"
    assert "left" not in probe.out(second)
    assert (tmp_path / "builds").read_text() == "\n"
    assert probe.left("checkouts") == []
    probe(known["b"], ask)
    assert (tmp_path / "builds").read_text() == "\n\n"
    assert probe.runtime.clean() == 2
    assert probe.left("builds") == []


def test_two_probes_of_one_commit_at_once_build_it_once(
    bench: BenchFactory, known: dict[str, str], tmp_path: Path
) -> None:
    probe = bench(f"echo >> {tmp_path}/builds; sleep 0.2")
    results: list[ProbeResult] = []
    jobs = [probe.job("cat value") for _ in range(2)] + [probe.job("cat value")]
    shas = [known["a"], known["a"], known["b"]]
    threads = [
        threading.Thread(
            target=lambda job, sha: results.append(probe.runtime.run(probe.candidate(sha), job)),
            args=pair,
        )
        for pair in zip(jobs, shas, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [each.status for each in results] == ["ran"] * 3
    assert (tmp_path / "builds").read_text() == "\n\n"


def test_a_build_that_fails_makes_the_commit_untestable_and_its_log_is_kept(
    bench: BenchFactory, known: dict[str, str]
) -> None:
    probe = bench(
        "echo compiling; test $(cat value) != b || { echo 'no such header' >&2; exit 3; }"
    )
    found = probe(known["b"], "cat value")
    assert found.status == "untestable"
    assert found.reason == "the build ended with 3: compiling / no such header (log build.log)"
    assert "no such header" in Path(found.log).with_name("build.log").read_text()
    assert (probe.left("checkouts"), probe.left("builds")) == ([], [])
    assert probe(known["c"], "cat value").status == "ran"


def test_builds_beyond_the_budget_go_the_least_recently_used_first(
    bench: BenchFactory, known: dict[str, str]
) -> None:
    probe = bench("head -c 300000 /dev/zero > big", budget=800_000)
    for name in "abac":
        probe(known[name], "cat value")
    assert probe.left("builds") == sorted(known[name][:16] for name in "ac")
    one = bench("head -c 300000 /dev/zero > big", budget=1)
    assert one(known["b"], "cat value").status == "ran"
    assert one.left("builds") == [known["b"][:16]]


def test_what_a_kill_left_half_made_is_made_anew(
    bench: BenchFactory, known: dict[str, str]
) -> None:
    probe = bench("echo built > built")
    probe(known["a"], "cat built")
    (probe.folder / "builds" / known["a"][:16] / "build.json").unlink()
    (probe.folder / "builds" / known["a"][:16] / "tree" / "built").write_text("half")
    (probe.folder / "checkouts" / "left").mkdir(parents=True)
    (probe.folder / "builds" / "other" / "tree").mkdir(parents=True)
    again = bench("echo built > built")
    assert again.out(again(known["a"], "cat built")) == ["built"]
    assert (again.left("checkouts"), again.left("builds")) == ([], [known["a"][:16]])


def test_builds_under_other_variables_are_other_builds_and_secrets_reach_no_log(
    bench: BenchFactory, known: dict[str, str]
) -> None:
    probe = bench("echo $FLAG $TOKEN | tee flag", secret=frozenset(["TOKEN"]))
    env = {"TOKEN": "very-secret-1"}
    fast = probe(known["a"], "cut -d' ' -f1 flag", env={**env, "FLAG": "fast"})
    exact = probe(known["a"], "cut -d' ' -f1 flag", env={**env, "FLAG": "exact"})
    probe(known["a"], "echo $TOKEN", env={"TOKEN": "very-secret-2", "FLAG": "exact"})
    assert (probe.out(fast), probe.out(exact)) == (["fast"], ["exact"])
    assert len(probe.left("builds")) == 2
    logs = b"".join(path.read_bytes() for path in (probe.folder / "probes").rglob("*.log"))
    logs += b"".join(path.read_bytes() for path in (probe.folder / "probes").glob("*/log"))
    assert b"<hidden>" in logs
    assert b"very-secret" not in logs


def test_evidence_files_are_those_of_the_checkout(
    bench: BenchFactory, known: dict[str, str]
) -> None:
    probe = bench()
    files = EvidenceOptions(files=("out/*.bin",))
    ask = "mkdir -p out; cp value out/loss.bin"
    first, second = (probe(known[name], ask, evidence=files) for name in "ab")
    assert list(first.evidence.streams) == ["file:out/loss.bin"]
    assert first.evidence.digest != second.evidence.digest


def test_a_python_command_is_observed_in_the_checkout(tmp_path: Path) -> None:
    source = "import pinner\nfor step in range(3):\n    pinner.fingerprint('loss', 0.1 * step)\n"
    known = repositories.make(tmp_path / "repo", [Made("a", (), {"train.py": source})])
    probe = Bench(tmp_path / "bisection", tmp_path / "repo")
    found = probe(known["a"], "python3 train.py", evidence=EvidenceOptions())
    assert found.status == "ran", found.reason
    assert [len(each["0"]) for each in found.evidence.streams.values()] == [3]


def test_variables_of_a_hook_do_not_lead_git_elsewhere(
    bench: BenchFactory, known: dict[str, str], tmp_path: Path
) -> None:
    other = repositories.make(tmp_path / "other", [Made("z", (), {"value": "z"})])
    environ = {"GIT_DIR": str(tmp_path / "other" / ".git"), "GIT_WORK_TREE": str(tmp_path)}
    probe = bench("git rev-parse HEAD > head", environ=environ)
    found = probe(known["a"], "cat value; echo; git rev-parse HEAD; cat head")
    assert probe.out(found) == ["a", known["a"], known["a"]]
    assert other["z"] not in found.evidence.to_json()


def test_a_job_that_is_not_wanted_any_more_ends_in_its_build(
    bench: BenchFactory, known: dict[str, str], tmp_path: Path
) -> None:
    probe = bench(f"touch {tmp_path}/begun; sleep 600")
    job = probe.job("cat value")
    thread = threading.Thread(target=probe.runtime.run, args=(probe.candidate(known["a"]), job))
    thread.start()
    deadline = time.monotonic() + 60
    while not (tmp_path / "begun").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    job.stop.set()
    thread.join(60)
    assert not thread.is_alive()
    assert (probe.left("checkouts"), probe.left("builds")) == ([], [])


# -- submodules and pins ---------------------------------------------------------------------------


def superproject(root: Path, url: str, links: Mapping[str, str], **files: str) -> dict[str, str]:
    """One commit with the submodule `lib` at two different commits."""
    modules = f'[submodule "the lib"]\n\tpath = lib\n\turl = {url}\n'
    made = [
        Made(name, (), {".gitmodules": modules, **files}, {"lib": sha})
        for name, sha in links.items()
    ]
    return repositories.make(root / "top", made)


def test_submodules_stand_at_their_recorded_commits_and_theirs_too(tmp_path: Path) -> None:
    """The outer one by a relative URL, fetched; the inner one from the folder it names."""
    deep = repositories.make(tmp_path / "deep", repositories.line("xy", [{"v": "1"}, {"v": "2"}]))
    modules = f'[submodule "deep"]\n\tpath = in/deep\n\turl = {tmp_path}/deep\n'
    made = [
        Made("p", (), {".gitmodules": modules, "w": "1"}, {"in/deep": deep["x"]}),
        Made("q", "p", {".gitmodules": modules, "w": "2"}, {"in/deep": deep["y"]}),
    ]
    lib = repositories.make(tmp_path / "lib", made)
    known = superproject(tmp_path, "../lib", {"a": lib["p"], "b": lib["q"]})
    probe = Bench(tmp_path / "bisection", tmp_path / "top")
    ask = "cat lib/w; echo; cat lib/in/deep/v; echo; git status --short; git submodule status"
    for name, number in (("a", "1"), ("b", "2")):
        found = probe(known[name], ask)
        assert found.status == "ran", found.reason
        lines = probe.out(found)
        assert lines[:2] == [number, number]
        assert len(lines) == 3
        assert lib["p" if name == "a" else "q"] in lines[2]
    assert len(probe.left("mirrors")) == 0  # both are folders of this machine


def test_a_submodule_of_a_url_is_mirrored_once_and_what_is_gone_is_untestable(
    tmp_path: Path,
) -> None:
    lib = repositories.make(tmp_path / "lib", repositories.line("pq", [{"w": "1"}, {"w": "2"}]))
    links = {"a": lib["p"], "b": lib["q"], "gone": "1" * 40}
    known = superproject(tmp_path, f"file://{tmp_path}/lib", links)
    probe = Bench(tmp_path / "bisection", tmp_path / "top")
    assert [probe.out(probe(known[name], "cat lib/w")) for name in "ab"] == [["1"], ["2"]]
    (mirror,) = probe.left("mirrors")
    assert mirror.startswith("lib-")
    found = probe(known["gone"], "cat lib/w")
    assert found.status == "untestable"
    assert "111111111111 is not in file://" in found.reason


def test_a_submodule_that_the_user_has_already_needs_no_url(tmp_path: Path) -> None:
    """Its commits are in the user's own repository: .git/modules."""
    lib = repositories.make(tmp_path / "lib", repositories.line("pq", [{"w": "1"}, {"w": "2"}]))
    known = superproject(tmp_path, "../lib", {"a": lib["p"], "b": lib["q"]})
    allow = ("-c", "protocol.file.allow=always")
    clone = ("clone", "--quiet", "--recurse-submodules", str(tmp_path / "top"), "mine")
    repositories.git(tmp_path, *allow, *clone)
    repositories.git(tmp_path / "mine", "fetch", "--quiet", "origin", known["a"])
    inner = Repository(tmp_path / "mine/.git/modules/the lib")  # says ../../../lib
    assert inner.path == str(tmp_path / "mine/lib")
    shutil.rmtree(tmp_path / "lib")
    probe = Bench(tmp_path / "bisection", tmp_path / "mine")
    assert [probe.out(probe(known[name], "cat lib/w")) for name in "ab"] == [["1"], ["2"]]
    assert probe.left("mirrors") == []


@pytest.mark.parametrize(
    ("url", "remote", "expected"),
    [
        ("https://host/lib.git", "https://other/top.git", "https://host/lib.git"),
        ("../lib.git", "https://host/group/top.git", "https://host/group/lib.git"),
        ("../../deps/lib", "https://host/group/top.git/", "https://host/deps/lib"),
        ("./lib", "/srv/git/top", "/srv/git/top/lib"),
        ("../lib", "/srv/git/top", "/srv/git/lib"),
        ("../lib.git", "git@host:group/top.git", "git@host:group/lib.git"),
        ("../lib.git", "ssh://git@host:22/group/top.git", "ssh://git@host:22/group/lib.git"),
    ],
)
def test_relative_urls_are_those_of_the_remote(url: str, remote: str, expected: str) -> None:
    assert sources.absolute(url, remote) == expected


def test_a_server_that_is_not_there_is_the_machinerys_fault(tmp_path: Path) -> None:
    known = superproject(tmp_path, f"file://{tmp_path}/absent", {"a": "1" * 40})
    probe = Bench(tmp_path / "bisection", tmp_path / "top")
    found = probe(known["a"], "true")
    assert found.status == "infrastructure"
    assert "absent" in found.reason


def test_another_commit_of_a_submodule_and_another_pin_stand_in_the_checkout(
    tmp_path: Path,
) -> None:
    lib = repositories.make(tmp_path / "lib", repositories.line("pq", [{"w": "1"}, {"w": "2"}]))
    pin = f"llvm {lib['q'][:10]} # not {lib['q'][:10]}0\n"
    known = superproject(tmp_path, str(tmp_path / "lib"), {"a": lib["q"]}, pin=pin)
    probe = Bench(tmp_path / "bisection", tmp_path / "top", "cp lib/w built")
    base = probe.candidate(known["a"])
    other = Repository(tmp_path / "lib").commit(lib["p"])
    moved = commits.overlaid(base, Change("submodule", "lib", lib["p"], lib["q"]), other, "", 0)
    change = Change("pin", "pin", lib["p"], lib["q"], lib["q"][:10])
    both = commits.overlaid(moved, change, other, lib["p"][:10], 0)
    assert len({base.id, moved.id, both.id}) == 3
    ask = "cat built; echo; cat pin"
    outs = [
        probe.out(probe.runtime.run(Candidate.from_json(json.loads(json.dumps(c.to_json()))), job))
        for c, job in ((each, probe.job(ask)) for each in (base, moved, both))
    ]
    assert [lines[0] for lines in outs] == ["2", "1", "1"]
    assert outs[1][1] == pin.strip()
    assert outs[2][1] == f"llvm {lib['p'][:10]} # not {lib['q'][:10]}0"


def test_a_repository_that_is_gone_is_the_machinerys_fault(
    bench: BenchFactory, known: dict[str, str], tmp_path: Path
) -> None:
    probe = bench()
    candidate = probe.candidate(known["a"])
    shutil.rmtree(tmp_path / "repo")
    found = probe.runtime.run(candidate, probe.job("cat value"))
    assert found.status == "infrastructure"
    assert "any more" in found.reason
    with pytest.raises(InfrastructureError):
        probe.runtime.difference(candidate, candidate)


def test_a_shallow_clone_of_the_users_can_be_checked_out(
    known: dict[str, str], tmp_path: Path
) -> None:
    url = f"file://{tmp_path}/repo"
    repositories.git(tmp_path, "clone", "-q", "--depth=2", "--branch=main", url, "shallow")
    probe = Bench(tmp_path / "bisection", tmp_path / "shallow")
    assert probe.out(probe(known["b"], "cat value")) == ["b"]
