"""The sums of repros/atomics on a real device. Run by scripts/gpu_check.sh."""

from __future__ import annotations

import json

import pytest

from tests.gpu.test_triton_gpu import run, sys

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reductions")
    done = run(folder, sys.executable, "-m", "tests.gpu.reductions_probe")
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("how", ["atomic", "serial", "slots"])
def test_each_way_of_adding_gives_the_sum(seen, how):
    assert all(each["error"] < 1e-3 for each in seen[how].values()), seen[how]


@pytest.mark.parametrize("how", ["serial", "slots"])
def test_serial_sums_and_slots_have_the_same_bits_every_time(seen, how):
    print("by atomics:", seen["atomic"])  # these may differ, and need not
    assert [each["results"] for each in seen[how].values()] == [1, 1, 1]
