"""Digests against a plain read of the same memory, other hashes, and on a GPU its read bandwidth.

Ratios are of times in one run; the first row of each table is 1. "plain read" is torch's sum of the
memory as int64, on as many threads.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable

import torch

from benchmarks import pairs
from pinner.inside.evidence import digest, nh128_native, tensor_sums

MEBIBYTE = 1 << 20
ROUNDS = 15
QUICK = bool(os.environ.get("PINNER_BENCH_QUICK"))


def by_library(value: torch.Tensor, threads: int) -> Callable[[], object]:
    """The compiled form, on so many threads."""
    native = nh128_native.load()
    assert native is not None, "expected a C compiler"
    return lambda: native.sums(value.data_ptr(), value.nbytes, threads)


def by_torch(value: torch.Tensor) -> Callable[[], object]:
    """The form without a compiler or Triton."""

    def run() -> object:
        adder = tensor_sums.ByTorch(torch, value.device)
        adder.add(value.view(torch.uint8), 0)
        return adder.sums()

    return run


def others(value: torch.Tensor) -> dict[str, Callable[[], object]]:
    """Other hashes of the same bytes; those that are not installed are said so."""
    found: dict[str, Callable[[], object]] = {}
    if hasattr(torch, "hash_tensor"):
        found["torch.hash_tensor (64 bits, XOR)"] = lambda: torch.hash_tensor(value).item()
    else:
        print("  torch.hash_tensor: not in this torch")
    memory = memoryview(value.numpy()).cast("B")
    found["SHA-256"] = lambda: hashlib.sha256(memory).digest()
    try:
        import xxhash

        found["xxh3 (128 bits)"] = lambda: xxhash.xxh3_128_digest(memory)
    except ImportError:
        print("  xxh3: xxhash is not installed")
    return found


def large(threads: int) -> None:
    """64 MiB: more than the caches hold."""
    torch.set_num_threads(threads)
    value = torch.randn(16 * MEBIBYTE)
    words = value.view(torch.int64)
    print(f"64 MiB, {threads} thread{'s' * (threads > 1)} (SHA-256 and xxh3: always one)")
    things: dict[str, Callable[[], object]] = {"plain read": lambda: words.sum().item()}
    things["nh128, compiled"] = by_library(value, threads)
    things.update(others(value))
    things["nh128, by torch operations (4 MiB, x 16)"] = by_torch(value[:MEBIBYTE])
    times = pairs.in_turn(things, ROUNDS)
    key = "nh128, by torch operations (4 MiB, x 16)"
    times[key] = [16 * taken for taken in times[key]]
    pairs.report(times)


def small() -> None:
    """1 KiB each: the cost of a call is what counts."""
    torch.set_num_threads(1)
    values = [torch.randn(256) for _ in range(500)]
    print("500 tensors of 1 KiB, a tensor")
    things: dict[str, Callable[[], object]] = {
        "sum of each, not read": lambda: [value.sum() for value in values],
        "digest_many": lambda: digest.digest_many(values, digest.NH128),
        "digest, one by one": lambda: [digest.digest(value, digest.NH128) for value in values],
        "SHA-256, one by one": lambda: [digest.digest(value, digest.SHA256) for value in values],
    }
    if hasattr(torch, "hash_tensor"):
        things["torch.hash_tensor, read"] = lambda: [torch.hash_tensor(v).item() for v in values]
    pairs.report(pairs.in_turn(things, ROUNDS), len(values))


def gpu(mebibytes: int = 64 if QUICK else 1024, count: int = 200) -> dict[str, float]:
    """Prints the digest's bandwidth against that of reading; returns them in GB/s, by name.

    mebibytes: of the large tensor; count: of small ones of 4 KiB, which are digested in one launch
    """
    value = torch.randn(mebibytes * MEBIBYTE // 4, device="cuda")
    words = value.view(torch.int64)
    odd = torch.zeros(value.nbytes + 8, dtype=torch.uint8, device="cuda")[3:-5]
    many = [torch.randn(1024, device="cuda") for _ in range(count)]
    later = digest.deferred([value], digest.NH128)
    assert len(later.tensors()) == 1
    host = digest.digest(value.cpu(), digest.NH128)[0]
    assert later.read() == [host], "the device's digest is another than the host's"

    def finished(work: Callable[[], object]) -> Callable[[], object]:
        def run() -> None:
            work()
            torch.cuda.synchronize()

        return run

    print(f"{mebibytes} MiB on {torch.cuda.get_device_name()}")
    things: dict[str, Callable[[], object]] = {
        "plain read": finished(words.sum),
        "nh128, Triton": finished(lambda: digest.deferred([value], digest.NH128)),
        "nh128, Triton, bytes that begin in a word": finished(
            lambda: digest.deferred([odd], digest.NH128)
        ),
        "copy": finished(value.clone),
    }
    if hasattr(torch, "hash_tensor"):
        things["torch.hash_tensor"] = finished(lambda: torch.hash_tensor(value))
    times = pairs.in_turn(things, ROUNDS)
    pairs.report(times)
    speeds = {name: value.nbytes / min(taken) / 1e9 for name, taken in times.items()}
    print("  GB/s:", ", ".join(f"{name} {speed:.0f}" for name, speed in speeds.items()))

    print(f"{count} tensors of 4 KiB, a tensor")
    pairs.report(
        pairs.in_turn(
            {
                "sum of each": finished(lambda: [each.sum() for each in many]),
                "deferred, one launch": finished(lambda: digest.deferred(many, digest.NH128)),
                "digest_many, read": lambda: digest.digest_many(many, digest.NH128),
            },
            ROUNDS,
        ),
        count,
    )
    return speeds


def main() -> None:
    """Measure and print, with the machine's load, which says how far to trust it."""
    print(f"torch {torch.__version__}, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for threads in (1, 2):
        large(threads)
    small()
    if torch.cuda.is_available():
        gpu()
    else:
        print("GPU: not run on a GPU")


if __name__ == "__main__":
    main()
