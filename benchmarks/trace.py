"""What a trace of operations costs, beside torch's DebugMode with tensor hashes, in one run.

One training step of a small transformer on the CPU, in turn: plain, under DebugMode with the hash
of each output (`log_tensor_hashes("hash_tensor")`, `record_torchfunction=False`) and of inputs too,
and traced, with the compiled digest and with torch's own operations in its place. A trace digests
inputs and outputs; DebugMode keeps strings in memory, a trace writes its log to a file.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator

import torch
from torch.utils import _python_dispatch as modes
from torch.utils._debug_mode import DebugMode

from benchmarks import pairs
from pinner.inside.evidence import nh128_native
from pinner.inside.evidence.trace import ops
from pinner.inside.evidence.trace.hashing import Hashing
from pinner.inside.evidence.trace.log import Log
from pinner.inside.evidence.trace.recorder import Recorder
from pinner.inside.evidence.trace.settings import Settings

ROUNDS = 9
STEPS = 3
BOTH = "DebugMode, hashes of inputs and outputs"
COMPILED = "trace of ops, compiled digest"
FALLBACK = "trace of ops, digest by torch"
PLAIN = "no trace"


def step_of(width: int, batch: int) -> Callable[[], None]:
    """A training step of two encoder layers."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    data = torch.randn(batch, 32, width)

    def step() -> None:
        for _ in range(STEPS):
            loss = model(data).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return step


@contextlib.contextmanager
def tracing(recorder: Recorder) -> Iterator[None]:
    """The mode of the level "ops", for a while."""
    modes._push_mode(ops.mode(recorder))
    try:
        yield
    finally:
        modes._pop_mode()
        recorder.next_step()


@contextlib.contextmanager
def debugging(inputs: bool) -> Iterator[None]:
    """DebugMode with torch's own hash of tensors."""
    mode = DebugMode(record_torchfunction=False)
    with mode, DebugMode.log_tensor_hashes("hash_tensor", hash_inputs=inputs):
        yield


@contextlib.contextmanager
def without_compiler() -> Iterator[None]:
    """The digest as it is where no compiler is."""
    before = nh128_native.load
    nh128_native.load = lambda: None
    try:
        yield
    finally:
        nh128_native.load = before


def compare(title: str, step: Callable[[], None], folder: str) -> None:
    """Measure one program under everything, in turn."""
    recorder = Recorder(torch, Settings({"folder": folder}), Log(folder), Hashing(False))

    def under(*around: Callable[[], contextlib.AbstractContextManager[None]]):
        def run() -> None:
            with contextlib.ExitStack() as stack:
                for each in around:
                    stack.enter_context(each())
                step()

        return run

    def traced():
        return tracing(recorder)

    print(title)
    times = pairs.in_turn(
        {
            BOTH: under(lambda: debugging(True)),
            "DebugMode, hashes of outputs": under(lambda: debugging(False)),
            COMPILED: under(traced),
            FALLBACK: under(without_compiler, traced),
            PLAIN: step,
        },
        ROUNDS,
    )
    pairs.report(times, STEPS)
    for name in (COMPILED, FALLBACK):
        print(
            f"  overhead of {name!r} over that of DebugMode with both: {_overhead(times, name):.3f}"
        )
    print(f"  {recorder.log.events} events written")


def _overhead(times: dict[str, list[float]], name: str) -> float:
    """What a trace adds to a step over what DebugMode adds to it: the median over the rounds."""
    rows = zip(times[name], times[BOTH], times[PLAIN], strict=True)
    return statistics.median((traced - plain) / (debug - plain) for traced, debug, plain in rows)


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, compiled digest: {nh128_native.load() is not None}")
    with tempfile.TemporaryDirectory(prefix="pinner-bench-") as folder:
        compare("small tensors (width 32, batch 2)", step_of(32, 2), os.path.join(folder, "a"))
        compare("larger tensors (width 256, batch 8)", step_of(256, 8), os.path.join(folder, "b"))


if __name__ == "__main__":
    main()
