"""Threads, forks and kills: no count of cuBLASLt's calls is lost or mixed up."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from pinner.inside.choosers.cublaslt import build, layout, mapped
from tests.fakes import cublaslt_stand_in
from tests.fakes.cublaslt_stand_in import Rig, built

THREADS, PROBLEMS, ROUNDS = 8, 50, 20
THREADED = f"l = load()\nshow(l.consumer_threads({THREADS}, {PROBLEMS}, {ROUNDS}))"


def head_of(path: Path) -> Any:
    return layout.Map.from_buffer_copy(path.read_bytes())


def records_of(path: Path) -> list[Any]:
    content = path.read_bytes()
    return list(mapped._records(str(path), content, head_of(path)))


class TestThreads:
    def test_each_decision_is_recorded_once_and_each_call_counted(self, tmp_path: Path) -> None:
        rig = Rig(tmp_path)
        assert rig.calls(THREADED, "pick=1") == [[0]]
        (path,) = rig.map_files()
        assert len(rig.choices()) == PROBLEMS
        assert (head_of(path).questions, head_of(path).matmuls) == (8000, 8000)
        records = records_of(path)
        assert [sum(getattr(r, n) for r in records) for n in ("asked", "used")] == [8000, 8000]
        assert rig.problems() == {}

    def test_all_are_forced(self, tmp_path: Path) -> None:
        recorded = Rig(tmp_path / "record")
        recorded.calls(THREADED, "random")
        rig = Rig(tmp_path / "enforce")
        rig.enforce_choices(recorded.choices())
        assert rig.calls(THREADED, "random") == [[0]]
        (path,) = rig.map_files()
        assert {line["how"] for line in rig.choices()} == {"forced"}
        assert sum(record.used for record in records_of(path)) == 8000
        assert rig.problems() == {}


class TestForks:
    def test_a_child_counts_in_a_file_of_its_own(self, tmp_path: Path) -> None:
        rig = Rig(tmp_path)
        code = (
            "l = load()\ngemm(l, m=3)\ngemm(l, m=3)\n"
            "if os.fork() == 0:\n    gemm(l, m=5)\n    os._exit(0)\n"
            "os.wait()\ngemm(l, m=7)\n"
        )
        rig.calls("import os\n" + code)
        files = rig.map_files()
        assert len(files) == 2
        rows = [
            (line["key"]["c_rows"], process["pid"], process["ppid"])
            for process, *lines in map(mapped.lines, map(str, files))
            for line in lines
        ]
        parent, child = ({pid for m, pid, _ in rows if m in sizes} for sizes in ((3, 7), (5,)))
        assert len(parent) == len(child) == 1
        assert parent != child
        assert {ppid for m, _, ppid in rows if m == 5} == parent
        assert sorted(head_of(path).questions for path in files) == [1, 3]

    def test_a_child_that_decides_nothing_makes_no_file(self, tmp_path: Path) -> None:
        rig = Rig(tmp_path)
        rig.calls("import os\nl = load()\ngemm(l)\nif os.fork() == 0: os._exit(0)\nos.wait()")
        assert len(rig.map_files()) == 1

    def test_a_forked_child_is_forced_too(self, tmp_path: Path) -> None:
        code = "import os\nl = load()\nshow(gemm(l))\n"
        code += "if os.fork() == 0:\n    show(gemm(l))\n    os._exit(0)\nos.wait()\n"
        recorded = Rig(tmp_path / "record")
        shown = recorded.calls(code, "pick=4")
        rig = Rig(tmp_path / "enforce")
        rig.enforce_choices(recorded.choices()[:1])
        assert rig.calls(code) == shown
        assert [line["how"] for line in rig.choices()] == ["forced", "forced"]
        assert rig.problems() == {}

    def test_a_fork_in_the_middle_of_threads_hangs_nobody(self, tmp_path: Path) -> None:
        rig = Rig(tmp_path)
        code = (
            "import os, threading\nl = load()\n"
            "t = threading.Thread(target=l.consumer_threads, args=(4, 50, 200))\nt.start()\n"
            "for _ in range(10):\n"
            "    if os.fork() == 0:\n"
            "        gemm(l, m=99)\n        os._exit(0)\n"
            "    assert os.wait()[1] == 0\n"
            "t.join()\n"
        )
        rig.calls(code)
        assert len(rig.map_files()) == 11
        assert sum(line["key"]["c_rows"] == 99 for line in rig.choices()) == 10


class TestKills:
    def test_what_a_killed_process_decided_is_there(self, tmp_path: Path) -> None:
        rig = Rig(tmp_path)
        code = (
            "import os, signal\nl = load()\nfor m in (3, 5): gemm(l, m=m)\n"
            "os.kill(os.getpid(), signal.SIGKILL)"
        )
        assert rig.program(code).returncode == -9
        process, *choices = rig.mapped()
        assert process["t"] == "process"
        assert process["argv"] == [str(tmp_path / "program.py")]
        assert [line["key"]["c_rows"] for line in choices] == [3, 5]

    @pytest.mark.parametrize("state", [1, 0])
    def test_a_decision_cut_in_the_middle_is_said(self, tmp_path: Path, state: int) -> None:
        rig = Rig(tmp_path)
        rig.calls("l = load()\nfor m in (3, 5): gemm(l, m=m)")
        (path,) = rig.map_files()
        content = bytearray(path.read_bytes())
        start, size = layout.Map.record.offset, head_of(path).record_size
        first = next(at for at in range(start, len(content), size) if content[at])
        content[first] = state
        path.write_bytes(content)
        assert len(rig.choices()) == 1
        said = rig.problems().get("note", [])
        assert said == (
            ["1 decisions were being written when the process was killed"] if state else []
        )

    def test_a_file_without_its_mark_tells_nothing(self, tmp_path: Path) -> None:
        """The process was killed before it decided anything."""
        path = tmp_path / "x.map"
        path.write_bytes(bytes(100))
        assert mapped.lines(str(path)) == []

    def test_a_cut_file_and_one_of_another_layout_are_refused(self, tmp_path: Path) -> None:
        rig = Rig(tmp_path)
        rig.calls("gemm(load())")
        (path,) = rig.map_files()
        content = path.read_bytes()
        for cut in (100, layout.Map.record.offset + 10):
            path.write_bytes(content[:cut])
            with pytest.raises(mapped.MapFault, match="torn"):
                mapped.lines(str(path))
        path.write_bytes(content[:8] + b"\1" + content[9:])
        with pytest.raises(mapped.MapFault, match="another version of pinner"):
            mapped.lines(str(path))


def test_a_process_that_cannot_write_ends(tmp_path: Path) -> None:
    """Its decisions would be lost without a word."""
    rig = Rig(tmp_path)
    code = "import shutil\nl = load()\nshutil.rmtree(F)\ngemm(l)\nshow('went on')"
    done = rig.program(code.replace("F)", f"{str(tmp_path / 'cublaslt')!r})", 1))
    assert done.returncode == 96
    assert "cannot open" in done.stderr
    assert done.stdout == ""


SANITIZED = """
int consumer_threads(int, int, int);
int pinner_cublaslt_start(const void *, const char *);
unsigned long long pinner_cublaslt_layout_hash(void);
#include <stdio.h>
#include <string.h>
#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>
static struct {
    uint64_t layout, enforcing, on_miss, rebuild, any_gpu, capacity;
    char prefix[4096], process[8192];
} s;
int main(int count, char **words) {
    (void)count;
    s.layout = pinner_cublaslt_layout_hash();
    s.enforcing = words[2] != NULL;
    snprintf(s.prefix, sizeof s.prefix, "%s", words[1]);
    if (pinner_cublaslt_start(&s, words[2])) return 2;
    int wrong = consumer_threads(8, 50, 4);
    if (fork() == 0) _exit(consumer_threads(1, 5, 1));
    int status = 0;
    wait(&status);
    return wrong != 0 || status != 0;
}
"""


@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_no_sanitizer_finds_anything(tmp_path: Path, sanitizer: str) -> None:
    """The library, its caller and a program, compiled with the sanitizer; both kinds of run."""
    program = tmp_path / "program"
    (tmp_path / "main.c").write_text(SANITIZED)
    own = [path for path in build.sources() if path.endswith(".c")]
    consumer = str(cublaslt_stand_in.HERE / "cublaslt_consumer.c")
    command = ["cc", "-std=gnu11", "-g", "-O1", f"-fsanitize={sanitizer}", "-rdynamic"]
    lt = str(built() / "libcublasLt.so.13")
    done = subprocess.run(
        [*command, str(tmp_path / "main.c"), consumer, *own, lt, f"-Wl,-rpath,{built()}"]
        + ["-o", str(program), "-ldl", "-lpthread"],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        pytest.skip(f"this compiler has no -fsanitize={sanitizer}")
    rig = Rig(tmp_path / "record")
    rig.calls(f"l = load()\nl.consumer_threads(1, {PROBLEMS}, 1)")
    pins = tmp_path / "pins"
    from pinner.inside.choosers.cublaslt import table

    table.write(str(pins), cublaslt_stand_in.entries(rig.choices()))
    for number, words in enumerate(([], [str(pins)])):
        prefix = str(tmp_path / f"m{number}")
        done = subprocess.run([str(program), prefix, *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[:3000]
        assert "Sanitizer" not in done.stderr
        parent = max(tmp_path.glob(f"m{number}*.map"), key=lambda path: head_of(path).questions)
        assert head_of(parent).questions == 8 * PROBLEMS * 4
        assert len(mapped.lines(str(parent))) == 1 + PROBLEMS
