"""The compiled form of nh128 for GPUs: one Triton kernel reads the memory once and adds two sums.

Triton is imported when the first tensor on a GPU is digested, never before. The kernel stands
inside a function for that reason; it finds `tl` among the globals of this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, no_type_check

from . import nh128

if TYPE_CHECKING:
    from typing import Any, Dict, List

tl: Any = None
_kernels: Any = None

# Columns that one program reads side by side: 4 warps with two neighbouring words a thread; small
# tensors take one warp a program, so that more processors have work.
_WIDE, _NARROW = 256, 64
_WIDE_FROM_BYTES = 8 << 20
_MOST_PROGRAMS = 4096
# What is no larger is read by one program, many tensors by one launch.
SMALL_BYTES = 64 << 10


class Kernels:
    """The two kernels: of one piece of memory, and of many small ones."""

    def __init__(self, one: Any, many: Any) -> None:
        self.one = one
        self.many = many
        self._keys: Dict[Any, Any] = {}

    def keys_on(self, torch: Any, device: Any) -> Any:
        """Return the keys as int64 on a device."""
        keys = self._keys.get(device)
        if keys is None:
            numbers = [nh128.signed(key) for key in nh128.KEYS]
            keys = torch.tensor(numbers, dtype=torch.int64, device="cpu").to(device)
            self._keys[device] = keys
        return keys

    def add(self, torch: Any, data: Any, block: int, sums: Any) -> None:
        """Add the sums of `data`, uint8 without gaps, to `sums`, two int64 on the same device."""
        size = data.numel()
        if size == 0:
            return
        unit = unit_of(data.data_ptr() | data.storage_offset())  # as a view, too, it must fit
        pieces = data[: size // 8 * 8].view(_integers(torch)[unit])
        width = _WIDE if size >= _WIDE_FROM_BYTES else _NARROW
        columns = -(-size // nh128.BLOCK_BYTES) * nh128.COLUMNS
        programs = min(-(-columns // width), _MOST_PROGRAMS)
        with _on(torch, data.device):
            self.one[(programs,)](
                pieces,
                data,
                size,
                block,
                self.keys_on(torch, data.device),
                sums,
                UNIT=unit,
                WIDTH=width,
                num_warps=width // 64,
            )

    def add_many(self, torch: Any, addresses: List[int], sizes: List[int], sums: Any) -> None:
        """Write the sums of many small pieces of memory to `sums`, int64 (number, 2).

        Each begins at a multiple of 8 bytes.
        """
        device = sums.device
        pinned = device.type == "cuda"  # a copy from other memory would wait for the stream
        places = torch.tensor(
            [addresses, sizes], dtype=torch.int64, device="cpu", pin_memory=pinned
        ).to(device, non_blocking=pinned)
        with _on(torch, device):
            self.many[(len(sizes),)](
                places,
                len(sizes),
                self.keys_on(torch, device),
                sums,
                WIDTH=_NARROW,
                num_warps=1,
            )


def unit_of(address: int) -> int:
    """Return how many bytes can be read at once: 8, or less where the memory begins in a word."""
    return min(8, address & -address) if address else 8


def load() -> Kernels:
    """Return the kernels. Raises ImportError where there is no Triton."""
    global _kernels
    if _kernels is None:
        _kernels = _define()
    return _kernels  # type: ignore[no-any-return]


def _integers(torch: Any) -> Dict[int, Any]:
    return {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}


def _on(torch: Any, device: Any) -> Any:
    """Launches go to the current device, and that need not be the tensor's."""
    import contextlib

    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


@no_type_check
def _define() -> Kernels:
    global tl
    import triton
    import triton.language

    tl = triton.language

    @triton.jit
    def nh128_step(h, lane_sum, multiplier: tl.constexpr):
        h = h ^ lane_sum
        h = (h ^ (h >> 32)) * multiplier
        return h ^ (h >> 29)

    @triton.jit
    def nh128_lane(low, high, here, keys, place, FULL: tl.constexpr):  # noqa: PLR0917
        key = tl.load(keys + place)
        keyed_low = low + key.to(tl.uint32)
        keyed_high = high + (key >> 32).to(tl.uint32)
        if not FULL:
            keyed_low = tl.where(here, keyed_low, tl.zeros_like(keyed_low))
        return keyed_low.to(tl.uint64) * keyed_high.to(tl.uint64)

    @triton.jit
    def nh128_words(pieces, index, here, UNIT: tl.constexpr, FULL: tl.constexpr):
        if UNIT == 8 and FULL:
            word = tl.load(pieces + index).to(tl.uint64)
        elif UNIT == 8:
            word = tl.load(pieces + index, mask=here, other=0).to(tl.uint64)
        else:
            word = tl.zeros_like(index).to(tl.uint64)
            for place in tl.static_range(8 // UNIT):
                part = tl.load(pieces + index * (8 // UNIT) + place, mask=here, other=0)
                part = part.to(tl.int64).to(tl.uint64) & ((1 << (8 * UNIT)) - 1)
                word = word | (part << (8 * UNIT * place))
        return word

    @triton.jit
    def nh128_last_word(data, size):
        word = tl.zeros((), dtype=tl.uint64)
        whole = size // 8 * 8
        for place in tl.static_range(8):
            byte = tl.load(data + whole + place, mask=whole + place < size, other=0)
            word = word | (byte.to(tl.uint64) << (8 * place))
        return word

    @triton.jit
    def nh128_columns(  # noqa: PLR0917
        pieces,
        data,
        size,
        block,
        first_column,
        keys,
        UNIT: tl.constexpr,
        WIDTH: tl.constexpr,
        FULL: tl.constexpr,
    ):
        """A and B of WIDTH columns, a pair for each. FULL: all of them have all their rows."""
        words = (size + 7) // 8
        whole = size // 8
        column = tl.multiple_of(first_column, WIDTH) + tl.arange(0, WIDTH).to(tl.int64)
        base = column // 8 * 512 + column % 8
        zero = tl.zeros((WIDTH,), dtype=tl.uint64)
        sum0 = zero
        sum1 = zero
        sum2 = zero
        sum3 = zero
        if FULL:
            rows = 64
        else:
            rows = tl.minimum((words + 7) // 8, 64).to(tl.int32)
            last = nh128_last_word(data, size)
        for row in range(0, rows, 8):
            for more in tl.static_range(8):
                index = base + (row + more) * 8
                here = index < words
                word = nh128_words(pieces, index, index < whole, UNIT, FULL)
                if not FULL:
                    word = tl.where(index == whole, last, word)
                low = word.to(tl.uint32)
                high = (word >> 32).to(tl.uint32)
                sum0 += nh128_lane(low, high, here, keys, row + more, FULL)
                sum1 += nh128_lane(low, high, here, keys, row + more + 1, FULL)
                sum2 += nh128_lane(low, high, here, keys, row + more + 2, FULL)
                sum3 += nh128_lane(low, high, here, keys, row + more + 3, FULL)
        number = (column + block * 8 + 1).to(tl.uint64)
        a = number * 0x9E3779B97F4A7C15
        a = nh128_step(a, sum0, 0xBF58476D1CE4E5B9)
        a = nh128_step(a, sum1, 0xBF58476D1CE4E5B9)
        a = nh128_step(a, sum2, 0xBF58476D1CE4E5B9)
        a = nh128_step(a, sum3, 0xBF58476D1CE4E5B9)
        a = a * 0x94D049BB133111EB
        b = number * 0xD1B54A32D192ED03
        b = nh128_step(b, sum3, 0xFF51AFD7ED558CCD)
        b = nh128_step(b, sum2, 0xFF51AFD7ED558CCD)
        b = nh128_step(b, sum1, 0xFF51AFD7ED558CCD)
        b = nh128_step(b, sum0, 0xFF51AFD7ED558CCD)
        b = b * 0xC4CEB9FE1A85EC53
        exists = base < words
        first = tl.where(exists, a ^ (a >> 32), zero)
        second = tl.where(exists, b ^ (b >> 32), zero)
        return first.to(tl.int64), second.to(tl.int64)

    @triton.jit(do_not_specialize=["size", "block"])
    def nh128_one(  # noqa: PLR0917
        pieces, data, size, block, keys, sums, UNIT: tl.constexpr, WIDTH: tl.constexpr
    ):
        size = size.to(tl.int64)
        block = block.to(tl.int64)
        full = size // 4096 * 8 // WIDTH
        first = tl.zeros((WIDTH,), dtype=tl.int64)
        second = tl.zeros((WIDTH,), dtype=tl.int64)
        program = tl.program_id(0).to(tl.int64)
        programs = tl.num_programs(0).to(tl.int64)
        for part in range(program, full, programs):
            a, b = nh128_columns(pieces, data, size, block, part * WIDTH, keys, UNIT, WIDTH, True)
            first += a
            second += b
        if program == full % programs:  # what is left is less than one part
            a, b = nh128_columns(pieces, data, size, block, full * WIDTH, keys, UNIT, WIDTH, False)
            first += a
            second += b
        tl.atomic_add(sums, tl.sum(first, 0))
        tl.atomic_add(sums + 1, tl.sum(second, 0))

    @triton.jit(do_not_specialize=["count"])
    def nh128_many(places, count, keys, sums, WIDTH: tl.constexpr):
        number = tl.program_id(0)
        address = tl.load(places + number)
        size = tl.load(places + count + number)
        pieces = address.to(tl.pointer_type(tl.int64))
        data = address.to(tl.pointer_type(tl.uint8))
        columns = (size + 4095) // 4096 * 8
        first = tl.zeros((WIDTH,), dtype=tl.int64)
        second = tl.zeros((WIDTH,), dtype=tl.int64)
        zero = size * 0
        for column in range(zero, columns, WIDTH):
            a, b = nh128_columns(pieces, data, size, zero, column, keys, 8, WIDTH, False)
            first += a
            second += b
        tl.store(sums + 2 * number, tl.sum(first, 0))
        tl.store(sums + 2 * number + 1, tl.sum(second, 0))

    globals().update(
        nh128_step=nh128_step,
        nh128_lane=nh128_lane,
        nh128_words=nh128_words,
        nh128_last_word=nh128_last_word,
        nh128_columns=nh128_columns,
    )
    return Kernels(nh128_one, nh128_many)
