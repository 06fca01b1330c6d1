"""Facts depend on the stack alone, and a stack that is not the locked one is refused."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pinner import stack
from pinner.inside import facts, loaded, nvml
from tests import lanes
from tests.session_rig import NOTE, REPO, SessionRig

EVIDENCE = "import pinner; pinner.fingerprint('loss', 1.5)\n"


@pytest.fixture
def rig(tmp_path: Path) -> SessionRig:
    return SessionRig(tmp_path / "session")


def compiled(source: str, out: Path) -> Path:
    """A shared library from C."""
    compiler = lanes.require_command("cc", "gcc")
    out.parent.mkdir(parents=True, exist_ok=True)
    command = [compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", str(out)]
    subprocess.run(command, input=source, text=True, check=True)
    return out


class TestTheSameInEveryWorkload:
    """pytorch/pytorch#132464: one workload never touched CUDA, and the facts did not match."""

    def of(self, folder: Path, code: str, **env: str) -> dict[str, Any]:
        rig = SessionRig(folder)
        done = rig.script(code, **env)
        assert done.returncode == 0, done.stderr
        return rig.facts()

    def test_torch_alone_and_torch_at_work(self, tmp_path: Path) -> None:
        idle = self.of(tmp_path / "idle", "import torch")
        busy = self.of(
            tmp_path / "busy",
            "import numpy, sys\n" + EVIDENCE + "import torch\n"
            "torch.set_num_threads(1); torch.cuda.is_available(); torch.manual_seed(0)\n"
            "(torch.randn(64, 64) @ torch.randn(64, 64)).sum().item()\n"
            "import torch.nn, triton, torch.distributed\n" + EVIDENCE,
        )
        assert idle == busy
        assert idle["torch"] == importlib.metadata.version("torch")
        assert idle["loaded:torch"] == idle["torch"]

    def test_children_report_what_their_parent_does(self, rig: SessionRig) -> None:
        code = (
            "import multiprocessing, torch\n"
            "def work():\n    import pinner; pinner.fingerprint('x', 1)\n"
            "if __name__ == '__main__':\n"
            "    for method in ('fork', 'spawn'):\n"
            "        child = multiprocessing.get_context(method).Process(target=work)\n"
            "        child.start(); child.join(); assert child.exitcode == 0\n"
        )
        rig.script(code)
        reported = [
            {k: v for line in each if line["t"] == "facts" for k, v in line["facts"].items()}
            for each in rig.ledgers()
        ]
        assert len(reported) == 3
        assert reported[1:] == reported[:-1]

    def test_no_value_means_unknown(self, tmp_path: Path) -> None:
        found = self.of(tmp_path / "s", "import torch")
        assert all(isinstance(value, (str, int)) for value in found.values())
        assert not {"", "unknown", "None", "none"} & {str(value) for value in found.values()}

    def test_a_process_without_torch_has_all_but_what_torch_loads(self, tmp_path: Path) -> None:
        with_torch = self.of(tmp_path / "a", "import torch")
        without = self.of(tmp_path / "b", EVIDENCE)
        here = {k: v for k, v in with_torch.items() if not k.startswith("loaded:")}
        assert without == here

    def test_nothing_is_asked_of_torch_before_the_program_is(self, rig: SessionRig) -> None:
        """ATen reads ATEN_CPU_CAPABILITY at its first call, which must be the program's."""
        code = (
            "import torch, os\n"
            "os.environ['ATEN_CPU_CAPABILITY'] = 'default'\n"
            "print(torch.backends.cpu.get_cpu_capability())\n"
        )
        assert rig.script(code).stdout == "DEFAULT\n"


class TestSwitches:
    def test_those_of_gpus_and_those_of_cpus_are_told_apart(self, rig: SessionRig) -> None:
        rig.script(EVIDENCE, NVIDIA_TF32_OVERRIDE="0", OMP_NUM_THREADS="3,2", MKL_CBWR="COMPATIBLE")
        found = rig.facts()
        assert found["env:NVIDIA_TF32_OVERRIDE"] == "0"
        assert found["cpu:env:MKL_CBWR"] == "COMPATIBLE"
        assert found["cpu:threads"] == 3
        assert "env:NCCL_ALGO" not in found

    def test_threads_follow_the_affinity(self, rig: SessionRig) -> None:
        code = "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\n"
        rig.script(code + EVIDENCE, OMP_NUM_THREADS="")
        assert rig.facts()["cpu:threads"] == 1


class TestPtxas:
    def program(self, folder: Path, text: str) -> str:
        path = folder / "ptxas"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return str(path)

    def test_one_in_the_place_of_tritons_says_its_version(self, rig: SessionRig) -> None:
        said = (
            "echo 'ptxas: NVIDIA (R) Ptx optimizing assembler'\n"
            "echo 'Cuda compilation tools, release 13.0, V13.0.88'\n"
            "echo 'Build cuda_13.0.r13.0/compiler.36424714_0'"
        )
        rig.script(EVIDENCE, TRITON_PTXAS_PATH=self.program(rig.folder, said))
        assert rig.facts()["ptxas"] == "V13.0.88"

    def test_one_that_does_not_run_is_no_fact(self, rig: SessionRig) -> None:
        rig.script(EVIDENCE, TRITON_PTXAS_PATH="/nowhere/ptxas")
        assert "ptxas" not in rig.facts()


class TestLoadedLibraries:
    CUBLASLT = "unsigned long cublasLtGetVersion(void) { return 130002; }"
    CUDNN = "unsigned long cudnnGetVersion(void) { return 91300; }"
    NCCL = "int ncclGetVersion(int *v) { *v = 22707; return 0; }"
    BROKEN = "int ncclGetVersion(int *v) { return 1; }"

    def versions(self, *libraries: Path) -> str:
        code = (
            f"import sys; sys.path.insert(0, {str(REPO)!r})\nimport ctypes\n"
            f"for path in {[str(path) for path in libraries]!r}: ctypes.CDLL(path)\n"
            "from pinner.inside import loaded; print(loaded.versions())"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def test_each_says_its_own_version(self, tmp_path: Path) -> None:
        libraries = [
            compiled(self.CUBLASLT, tmp_path / "libcublasLt.so.13"),
            compiled(self.CUDNN, tmp_path / "libcudnn.so.9.13"),
            compiled(self.NCCL, tmp_path / "a b" / "libnccl.so.2"),
        ]
        assert self.versions(*libraries) == str(
            {"loaded:cublaslt": 130002, "loaded:cudnn": 91300, "loaded:nccl": 22707}
        )

    def test_two_copies_are_both_named(self, tmp_path: Path) -> None:
        other = self.CUBLASLT.replace("130002", "120804")
        libraries = [
            compiled(self.CUBLASLT, tmp_path / "a" / "libcublasLt.so.13"),
            compiled(other, tmp_path / "b" / "libcublasLt.so.12"),
        ]
        assert self.versions(*libraries) == str({"loaded:cublaslt": "120804 and 130002"})

    def test_one_that_cannot_say_is_no_fact(self, tmp_path: Path) -> None:
        libraries = [
            compiled(self.BROKEN, tmp_path / "libnccl.so.2"),
            compiled("int other;", tmp_path / "libcudnn.so.9"),
        ]
        assert self.versions(*libraries) == "{}"

    def test_neighbours_with_longer_names_are_others(self) -> None:
        files = ["/x/libcudnn.so", "/x/libcudnn_ops.so.9", "/x/libcudnn.so.9.1", "/x/mylibcudnn.so"]
        assert loaded.copies(files, "libcudnn.so") == ["/x/libcudnn.so", "/x/libcudnn.so.9.1"]


H200_0 = nvml.Device("GPU-1111-1", "NVIDIA H200", (9, 0), 132, 139 << 30)
H200_1 = H200_0._replace(uuid="GPU-1111-2")
A100 = nvml.Device("GPU-2222-1", "NVIDIA A100", (8, 0), 108, 80 << 30)


class TestVisibleGpus:
    @pytest.mark.parametrize(
        ("visible", "expected"),
        [
            (None, [H200_0, H200_1]),
            ("", []),
            ("-1", []),
            ("NoDevFiles", []),
            ("0", [H200_0]),
            ("1", [H200_1]),
            ("1,0", [H200_1, H200_0]),
            ("0,-1,1", [H200_0]),
            ("7", []),
            ("GPU-1111-2", [H200_1]),
            ("GPU-1111", [H200_0, H200_1]),
        ],
    )
    def test_of_one_kind(self, visible: str | None, expected: list[nvml.Device]) -> None:
        assert nvml.chosen([H200_0, H200_1], visible) == expected

    def test_of_two_kinds_a_number_may_be_either(self) -> None:
        """CUDA counts the fastest first, NVML by bus."""
        assert nvml.chosen([A100, H200_0], "0") == [A100, H200_0]
        assert nvml.chosen([A100, H200_0], "GPU-2222") == [A100]

    def test_different_kinds_are_listed_whatever_their_order(self) -> None:
        found = nvml.describe([H200_0, A100], None)
        assert found == nvml.describe([A100, H200_0], None)
        assert found["gpu"] == "NVIDIA A100, NVIDIA H200"
        assert found["gpu:capability"] == "8.0, 9.0"


class TestNvml:
    def facts(self, tmp_path: Path, kind: str, visible: str | None = None) -> Any:
        source = (REPO / "tests" / "fakes" / "nvml.c").read_text()
        library = compiled(source, tmp_path / "lib" / "libnvidia-ml.so.1")
        code = (
            f"import sys; sys.path.insert(0, {str(REPO)!r})\n"
            f"from pinner.inside import nvml; print(nvml.facts({visible!r}))"
        )
        env = {**os.environ, "FAKE_NVML": kind, "LD_LIBRARY_PATH": str(library.parent)}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
        assert done.returncode == 0, done.stderr
        return eval(done.stdout)

    H200 = {  # noqa: RUF012
        "gpu": "NVIDIA H200",
        "gpu:capability": "9.0",
        "gpu:sms": "132",
        "gpu:memory": "142336 MiB",
        "gpu:count": 2,
        "driver": "580.65.06",
    }

    @pytest.mark.parametrize("kind", ["two", "old"])
    def test_two_of_a_kind(self, tmp_path: Path, kind: str) -> None:
        assert self.facts(tmp_path, kind) == self.H200

    def test_one_of_two_is_the_same_but_for_the_count(self, tmp_path: Path) -> None:
        assert self.facts(tmp_path, "two", "1") == {**self.H200, "gpu:count": 1}

    def test_parts_of_one(self, tmp_path: Path) -> None:
        found = self.facts(tmp_path, "mig")
        assert (found["gpu"], found["gpu:sms"]) == ("NVIDIA H200 MIG 3g.71gb", "60")
        assert found["gpu:count"] == 2
        assert self.facts(tmp_path, "mig", "MIG-1111-2")["gpu:count"] == 1

    def test_different_ones(self, tmp_path: Path) -> None:
        found = self.facts(tmp_path, "mixed")
        assert found["gpu:sms"] == "108, 132"

    @pytest.mark.parametrize(("kind", "visible"), [("none", None), ("two", ""), ("two", "-1")])
    def test_none(self, tmp_path: Path, kind: str, visible: str | None) -> None:
        assert self.facts(tmp_path, kind, visible) == {}

    @pytest.mark.gpu
    def test_the_real_one_says_what_cuda_says(self) -> None:
        import torch

        found = nvml.facts(os.environ.get("CUDA_VISIBLE_DEVICES"))
        cuda = torch.cuda.get_device_properties(0)
        assert found["gpu"] == cuda.name
        assert found["gpu:capability"] == f"{cuda.major}.{cuda.minor}"
        assert found["gpu:sms"] == str(cuda.multi_processor_count)
        assert found["gpu:count"] == torch.cuda.device_count()


@pytest.mark.gpu
def test_a_program_can_fork_after_its_facts_were_read(rig: SessionRig) -> None:
    """CUDA, once initialised, is unusable in every forked child; facts must not initialise it."""
    code = (
        "import torch, os\n"
        "pid = os.fork()\n"
        "if pid == 0:\n    torch.ones(1, device='cuda').item(); os._exit(0)\n"
        "print(os.waitpid(pid, 0)[1])\n"
    )
    assert rig.script(code).stdout == "0\n"
    assert {"loaded:cublaslt", "loaded:cudnn", "gpu"} <= set(rig.facts())


class TestProcessor:
    X86 = {  # noqa: RUF012
        "model name": "Intel(R) Xeon(R) Platinum 8480+",
        "flags": "fpu sse sse2 avx avx2 avx512f amx_bf16 ibrs_enhanced",
    }

    def test_flags_about_security_do_not_count(self) -> None:
        """A kernel update adds them; no arithmetic depends on them."""
        updated = {**self.X86, "flags": self.X86["flags"] + " bhi_ctrl its_no"}
        assert facts.cpu_facts(updated) == facts.cpu_facts(self.X86)

    def test_instruction_sets_count_whatever_their_order(self) -> None:
        without = {**self.X86, "flags": self.X86["flags"].replace("avx512f ", "")}
        turned = {**self.X86, "flags": " ".join(reversed(self.X86["flags"].split()))}
        assert facts.cpu_facts(without) != facts.cpu_facts(self.X86)
        assert facts.cpu_facts(turned) == facts.cpu_facts(self.X86)

    def test_arm(self) -> None:
        arm = {"CPU implementer": "0x41", "CPU part": "0xd4f", "Features": "fp asimd sve sve2 bf16"}
        assert facts.cpu_facts(arm)["cpu"] == "0x41/0xd4f"
        assert facts.cpu_facts({**arm, "Features": "fp asimd"}) != facts.cpu_facts(arm)

    def test_nothing_known_is_no_fact(self) -> None:
        assert facts.cpu_facts({}) == {}


class TestEnforced:
    """A stack that is not the locked one is refused before torch runs."""

    def locked(self, rig: SessionRig, **changes: str | None) -> None:
        """Lock the stack as it is here, with changes; None takes a fact out."""
        probe = SessionRig(rig.folder.parent / "probe")
        assert probe.script("import torch").returncode == 0
        hard = {**stack.classify(probe.facts()).hard, **changes}
        rig.enforce({"stack": {"hard": {k: v for k, v in hard.items() if v is not None}}})

    def test_the_same_stack_is_taken(self, rig: SessionRig) -> None:
        self.locked(rig)
        done = rig.script("import torch\n" + EVIDENCE + "print('ran')")
        assert (done.returncode, done.stdout, done.stderr) == (0, "ran\n", "")

    def test_a_difference_is_a_row_of_field_locked_and_here(self, rig: SessionRig) -> None:
        self.locked(rig, torch="2.11.0")
        (rig.folder / "torch.py").write_text("print('torch ran')\n")
        done = rig.script("try:\n    import torch\nexcept BaseException: pass\nprint('ran')")
        here = importlib.metadata.version("torch")
        assert (done.returncode, done.stdout) == (96, "")
        first, head, row, advice = done.stderr.splitlines()
        assert first == "pinner: the stack here is not the locked one, 1 hard fact differs:"
        assert head.split() == ["pinner:", "field", "locked", "here"]
        assert row.split() == ["pinner:", "torch", "2.11.0", here]
        assert "--allow FIELD" in advice
        assert rig.faults()[0]["rows"] == [["field", "locked", "here"], ["torch", "2.11.0", here]]

    def test_what_is_known_only_after_torch_is_checked_then(self, rig: SessionRig) -> None:
        self.locked(rig, **{"loaded:torch:git": "0" * 40})
        done = rig.script("import torch\nprint('ran')")
        assert (done.returncode, done.stdout) == (96, "")
        assert "loaded:torch:git" in done.stderr

    def test_a_program_without_torch_is_checked_at_its_first_line(self, rig: SessionRig) -> None:
        self.locked(rig, numpy="1.0")
        done = rig.script("print('begins', flush=True)\n" + NOTE + "note(1)\nprint('ran')")
        assert (done.returncode, done.stdout) == (96, "begins\n")
        assert rig.notes() == [[]]

    def test_a_switch_that_was_not_set_when_it_was_locked(self, rig: SessionRig) -> None:
        self.locked(rig)
        done = rig.script("import torch\nprint('ran')", NVIDIA_TF32_OVERRIDE="1")
        assert (done.returncode, done.stdout) == (96, "")
        rows = rig.faults()[0]["rows"]
        assert rows[1:] == [["env:NVIDIA_TF32_OVERRIDE", "not there", "1"]]

    def test_a_library_of_kernels_that_is_not_installed(self, rig: SessionRig) -> None:
        self.locked(rig, **{"flash-attn": "2.8.3"})
        assert rig.script("import torch").returncode == 96
        assert rig.faults()[0]["rows"][1:] == [["flash-attn", "2.8.3", "not there"]]

    def test_a_library_of_kernels_that_was_not_installed(self, rig: SessionRig) -> None:
        self.locked(rig)
        metadata = rig.folder / "flash_attn-2.8.3.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text("Name: flash-attn\nVersion: 2.8.3\n")
        assert rig.script("import torch").returncode == 96
        assert rig.faults()[0]["rows"][1:] == [["flash-attn", "not there", "2.8.3"]]

    @pytest.mark.parametrize("name", ["torch", "tor*"])
    def test_an_allowed_difference(self, rig: SessionRig, name: str) -> None:
        self.locked(rig, torch="2.11.0")
        rig.settings["allow"] = [name]
        rig.write_settings()
        assert rig.script("import torch\nprint('ran')").stdout == "ran\n"

    def test_any_of_several_locked_values_is_right(self, rig: SessionRig) -> None:
        """Processes of one run differ: torchrun sets OMP_NUM_THREADS for its ranks only."""
        self.locked(rig, **{"cpu:env:OMP_NUM_THREADS": "1 | not there", "cpu:threads": "1 | 2 | 3"})
        for value, code in (("1", 0), (None, 0), ("4", 96)):
            env = {} if value is None else {"OMP_NUM_THREADS": value}
            assert rig.script("import torch", **env).returncode == code, value

    def test_observing_refuses_nothing(self, rig: SessionRig) -> None:
        self.locked(rig, torch="2.11.0")
        rig.settings["mode"] = "observe"
        rig.write_settings()
        assert rig.script("import torch\nprint('ran')").stdout == "ran\n"


class TestFactsOfARun:
    """From the facts of its processes to those of the lock."""

    GPU = {"torch": "2.13.0", "gpu": "NVIDIA H200", "cpu": "Xeon", "loaded:cublaslt": 130002}  # noqa: RUF012

    def test_processes_that_agree(self) -> None:
        assert stack.combine([self.GPU, dict(self.GPU)]) == self.GPU

    def test_a_hard_fact_in_which_they_differ_lists_what_was_seen(self) -> None:
        helper = {**self.GPU, "gpu": None, "env:NCCL_ALGO": "Ring"}
        found = stack.combine([self.GPU, helper])
        assert found["gpu"] == "NVIDIA H200 | not there"
        assert found["env:NCCL_ALGO"] == "Ring | not there"
        locked = stack.classify(found)
        assert stack.mismatches(locked, self.GPU) == ()
        assert stack.mismatches(locked, {k: v for k, v in helper.items() if v}) == ()
        [wrong] = stack.mismatches(locked, {**self.GPU, "gpu": "NVIDIA A100"})
        assert wrong.field == "gpu"

    def test_a_process_that_loaded_nothing_has_no_say_in_what_is_loaded(self) -> None:
        helper = {k: v for k, v in self.GPU.items() if k != "loaded:cublaslt"}
        assert stack.combine([self.GPU, helper])["loaded:cublaslt"] == 130002

    def test_a_soft_fact_in_which_they_differ_is_left_out(self) -> None:
        found = stack.combine([self.GPU, {**self.GPU, "cpu": "EPYC"}])
        assert "cpu" not in found

    def test_without_a_gpu_the_processor_is_hard(self) -> None:
        first = {"torch": "2.13.0", "cpu": "Xeon", "cpu:threads": 2}
        found = stack.combine([first, {**first, "cpu:threads": 1}])
        assert stack.classify(found).hard["cpu:threads"] == "1 | 2"
        assert stack.classify(found).hard["cpu"] == "Xeon"
