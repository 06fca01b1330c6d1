"""Command lines that keep pinner out of their Python processes, and ones that only look so."""

from __future__ import annotations

import shlex

import pytest

from pinner.launch.command_line import (
    is_python,
    isolating_flag,
    needs_shared_folder,
    obstacles,
    obstacles_in_script,
    script_of,
)


@pytest.mark.parametrize(
    ("line", "flag"),
    [
        ("python train.py", None),
        ("python -I train.py", "-I"),
        ("python -E train.py", "-E"),
        ("python -S train.py", "-S"),
        ("python -Es train.py", "-E"),
        ("python -sBI train.py", "-I"),
        ("python -X dev -I train.py", "-I"),
        ("python -Xdev -I train.py", "-I"),
        ("python -W ignore -S train.py", "-S"),
        ("python --check-hash-based-pycs always -I train.py", "-I"),
        ("python -W -I train.py", None),
        ("python train.py -I", None),
        ("python -m train -I", None),
        ("python -c 'print(1)' -I", None),
        ("python -Bc 'print(1)' -I", None),
        ("python -mtrain -E", None),
        ("python -s -P -u -O -B train.py", None),
        ("python - -I", None),
        ("python", None),
    ],
)
def test_flags_before_the_program_count_and_its_own_do_not(line: str, flag: str | None) -> None:
    assert isolating_flag(shlex.split(line)) == flag


@pytest.mark.parametrize(
    "name", ["python", "python3", "/usr/bin/python3.12", "python3.13t", "pypy3"]
)
def test_names_of_interpreters(name: str) -> None:
    assert is_python(name)


@pytest.mark.parametrize("name", ["ipython-like", "pythonista", "torchrun", "python.sh", ""])
def test_names_of_others(name: str) -> None:
    assert not is_python(name)


@pytest.mark.parametrize(
    ("line", "words", "certain"),
    [
        ("python -I train.py", "-I", True),
        ("env -i python train.py", "env -i", True),
        ("env - python train.py", "env -i", True),
        ("env --ignore-environment A=1 python train.py", "env -i", True),
        ("nice -n 5 python -E train.py", "-E", False),
        ("timeout 60 env -i python train.py", "env -i", False),
        ("sudo python train.py", "sudo", False),
        ("srun --export=NONE python train.py", "--export=ALL", False),
        ("srun --export NONE python train.py", "--export=ALL", False),
        ("docker run image python train.py", "pinner env", False),
        ("ssh host python train.py", "pinner env", False),
    ],
)
def test_obstacles_are_named_with_what_to_do(line: str, words: str, certain: bool) -> None:
    (found,) = obstacles(shlex.split(line))
    assert words in found.text
    assert found.certain is certain


@pytest.mark.parametrize(
    "line",
    [
        "python train.py",
        "env A=1 python train.py -i",
        "srun --export=ALL,A=1 python train.py",
        "srun python train.py",
        "torchrun --nproc_per_node 8 train.py",
        "python train.py --runner ssh docker -I",
        "./train.sh docker",
        "true",
    ],
)
def test_what_is_no_obstacle(line: str) -> None:
    assert obstacles(shlex.split(line)) == ()


def test_processes_on_other_hosts_need_a_folder_that_they_see() -> None:
    nodes = {"SLURM_JOB_NUM_NODES": "4"}
    hint = needs_shared_folder(["srun", "python", "x.py"], nodes)
    assert hint is not None
    assert "4 nodes" in hint
    assert needs_shared_folder(["python", "x.py"], nodes) is None
    assert needs_shared_folder(["srun", "python", "x.py"], {"SLURM_JOB_NUM_NODES": "1"}) is None
    assert needs_shared_folder(["srun", "python", "x.py"], {}) is None


def test_a_shell_script_is_found() -> None:
    assert script_of(["sh", "-c", "echo", "x"]) == ("text", "echo")
    assert script_of(["bash", "-lc", "echo"]) == ("text", "echo")
    assert script_of(["bash", "-e", "run.sh", "x"]) == ("file", "run.sh")
    assert script_of(["./run.sh"]) == ("file", "./run.sh")
    assert script_of(["python", "run.py"]) is None
    assert script_of([]) is None


def test_lines_of_a_script_are_named_by_number() -> None:
    script = "set -e\nexport PYTHONPATH=/opt/lib\npython -I tool.py # why\necho it's open\n"
    first, second = obstacles_in_script(script)
    assert first.text.startswith("line 2 (export PYTHONPATH=/opt/lib): PYTHONPATH is overwritten")
    assert second.text.startswith("line 3 (python -I tool.py")
    assert not first.certain


def test_a_script_that_keeps_pythonpath_is_fine() -> None:
    assert obstacles_in_script("PYTHONPATH=/opt/lib:$PYTHONPATH python train.py") == ()
