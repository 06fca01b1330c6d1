"""The digest `nh128`: what it is, so that it can be computed anywhere; and by array operations.

It is made to be computed where a tensor lives, in one pass and in any order of additions, and to
see what other hashes of tensors miss: order, signs of zero, payloads of NaN, changes that cancel.
It is no cryptographic hash: whoever wants a collision can make one.

**Words.** The bytes of the value in logical (C) order, little-endian, are words of 64 bits; the
last word is filled up with zero bytes. All arithmetic below is modulo 2**64 unless it says 2**32.

**Blocks and columns.** 512 words (4096 bytes) are a block of 64 rows of 8 words. Word `i` lies in
block `i // 512`, row `i % 512 // 8`, column `i % 8` of the block. A column of a block is the unit
that is mixed; its number is `8 * block + column`.

**Keys.** K[0] … K[66] are the outputs of splitmix64 from state 0:

    state += 0x9E3779B97F4A7C15; z = state
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9; z = (z ^ z >> 27) * 0x94D049BB133111EB
    output z ^ z >> 31

**Sums of a column.** For each lane 0 to 3, over the words w of the column in rows r that exist:

    sum[lane] = Σ (low(w) + low(K[r + lane]) mod 2**32) * (high(w) + high(K[r + lane]) mod 2**32)

where low and high are the halves of 32 bits. Rows past the end add nothing.

**Mixing.** Each column that holds at least one word gives two numbers. With n its number and

    step(h, s, m):  h ^= s;  h ^= h >> 32;  h *= m;  h ^= h >> 29

    a = (n + 1) * 0x9E3779B97F4A7C15; step over lanes 0, 1, 2, 3 with m = 0xBF58476D1CE4E5B9
    b = (n + 1) * 0xD1B54A32D192ED03; step over lanes 3, 2, 1, 0 with m = 0xFF51AFD7ED558CCD
    a *= 0x94D049BB133111EB; a ^= a >> 32
    b *= 0xC4CEB9FE1A85EC53; b ^= b >> 32

**Digest.** A and B are the sums of a and b over all columns. The header is the ASCII text
`nh128 DTYPE[SIZE,SIZE,…]` and a zero byte, DTYPE as torch or numpy names it. The digest is
"nh128:" and the first 16 bytes, in hexadecimal, of SHA-256 over header, A and B (8 bytes each,
little-endian). So dtype and shape count, and with them the number of bytes.

**Why it is like that.** A sum with wrap-around is the same in any order, on any device. What is
summed must not be linear in the word, or four changes of one unit (+1, -1, -1, +1) cancel; nor
blind to its place, or a permutation is not seen. In the sums of a column each half of a word is
multiplied with the other half, both keyed by their row: this is NH of UMAC (Black, Halevi,
Krawczyk, Krovetz, Rogaway, 1999) with its shifted keys. Over random keys two different columns
agree in one lane with probability at most 2**-32 and in all four with at most 2**-128. The keys
here are fixed and random-looking, so this holds for whatever was not made against them. A product
of two halves of 32 bits is one instruction on a GPU and in any vector unit. The mixing, once for
64 words, then ties the sums to the column's number, non-linearly, before they are added up: both
chains are bijections of each lane's sum, and they take the lanes in opposite orders.

Rows, columns and blocks lie so that neighbouring words belong to different columns: the lanes of
a vector, or the threads of a warp, read memory in order and need nothing from each other.
"""

from __future__ import annotations

import hashlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any, Iterable, List, Tuple

    Sums = Tuple[int, int]

NAME = "nh128"
COLUMNS = 8
ROWS = 64
LANES = 4
WORD_BYTES = 8
BLOCK_WORDS = COLUMNS * ROWS
BLOCK_BYTES = BLOCK_WORDS * WORD_BYTES

FIRST = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
SECOND = (0xD1B54A32D192ED03, 0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53)

_WRAP = (1 << 64) - 1
_LOW = (1 << 32) - 1


def _splitmix64(count: int) -> List[int]:
    state, found = 0, []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & _WRAP
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _WRAP
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _WRAP
        found.append(z ^ (z >> 31))
    return found


KEYS = tuple(_splitmix64(ROWS + LANES - 1))


def signed(number: int) -> int:
    """Return the int64 with the same 64 bits."""
    return number - (1 << 64) if number >> 63 else number


def header(dtype: str, shape: Iterable[int]) -> bytes:
    """Return what no other dtype and shape has."""
    sizes = ",".join(str(int(size)) for size in shape)
    return ("%s %s[%s]" % (NAME, dtype, sizes)).encode("utf-8") + b"\0"


def text_of(head: bytes, body: bytes) -> str:
    """Return the digest. body: A and B as 16 bytes, or all bytes of a value that is no array."""
    return NAME + ":" + hashlib.sha256(head + body).hexdigest()[:32]


def sums_as_bytes(first: int, second: int) -> bytes:
    """Return A and B, signed or not, as the 16 bytes that are hashed."""
    return (first & _WRAP).to_bytes(8, "little") + (second & _WRAP).to_bytes(8, "little")


class ArrayOps:
    """The sums by operations on int64 arrays, of torch on one device or of numpy.

    For where there is neither a compiler nor Triton. The caller gives at most `chunk_blocks` blocks
    at once, so that the intermediate values stay near the processor and their size is bounded.
    """

    # Fewer elements than torch begins to use threads for: these cost more here than they give.
    HOST_BLOCKS = 48
    DEVICE_BLOCKS = 1024

    def __init__(self, int64: Any, chunk_blocks: int) -> None:
        """int64: makes an int64 array, where the work is to be done, of a list of such numbers."""
        self.chunk_blocks = chunk_blocks
        keys = [signed(key) for key in KEYS]
        lanes = [keys[lane : lane + ROWS] for lane in range(LANES)]
        self._keys = [int64(lane).reshape(ROWS, 1) for lane in lanes]
        self._high = [int64([key >> 32 for key in lane]).reshape(ROWS, 1) for lane in lanes]
        self._columns = int64(list(range(1, COLUMNS + 1)))
        self._places = int64(list(range(BLOCK_WORDS))).reshape(1, ROWS, COLUMNS)
        self._counts = int64(list(range(BLOCK_WORDS)))
        self._blocks = int64(list(range(chunk_blocks))).reshape(-1, 1)

    def sums(self, words: Any, count: int, block: int) -> Tuple[Any, Any]:
        """Return A and B, as arrays of one number, of the words of some blocks.

        words: int64, whole blocks; of the last block only the words before `count` exist
        count: how many words there are
        block: the number of the first block
        """
        words = words.reshape(-1, ROWS, COLUMNS)
        whole = count // BLOCK_WORDS
        first, second = self._of_whole_blocks(words[:whole], block)
        rest = count - whole * BLOCK_WORDS
        if rest:
            rows = -(-rest // COLUMNS)
            last = words[whole:, :rows]
            a, b = self.each(last, self._counts[rest : rest + 1], block + whole)
            first, second = first + a, second + b
        return first, second

    def each(self, words: Any, counts: Any, block: int = 0) -> Tuple[Any, Any]:
        """Return A and B of each of some values that have at most one block.

        words: int64 (values, rows, 8), with zeros behind the end of each
        counts: int64 (values,), how many words each has
        """
        rows = words.shape[1]
        here = self._places[:, :rows] < counts.reshape(-1, 1, 1)
        lanes = self._lanes(words, rows, here)
        numbers = self._columns + block * COLUMNS
        halves = [
            self._mixed(numbers, lanes, FIRST),
            self._mixed(numbers, lanes[::-1], SECOND),
        ]
        first, second = ((half * here[:, 0]).sum(1) for half in halves)
        return first, second

    def _of_whole_blocks(self, words: Any, block: int) -> Tuple[Any, Any]:
        lanes = self._lanes(words, ROWS, None)
        numbers = self._blocks[: len(words)] * COLUMNS + block * COLUMNS + self._columns
        first = self._mixed(numbers, lanes, FIRST)
        second = self._mixed(numbers, lanes[::-1], SECOND)
        return first.reshape(-1).sum(0).reshape(1), second.reshape(-1).sum(0).reshape(1)

    def _lanes(self, words: Any, rows: int, here: Any) -> List[Any]:
        """Return the sums of each column, (blocks, 8) for each lane."""
        high = words >> 32
        lanes = []
        for keys, high_keys in zip(self._keys, self._high):
            product = words + keys[:rows]
            product &= _LOW
            other = high + high_keys[:rows]
            other &= _LOW
            product *= other
            if here is not None:
                product *= here
            lanes.append(product.sum(1))
        return lanes

    def _mixed(self, numbers: Any, lanes: List[Any], constants: Tuple[int, int, int]) -> Any:
        start, multiplier, last = (signed(constant) for constant in constants)
        value = numbers * start
        for lane in lanes:
            value = value ^ lane
            value ^= (value >> 32) & _LOW
            value *= multiplier
            value ^= (value >> 29) & (_WRAP >> 29)
        value *= last
        value ^= (value >> 32) & _LOW
        return value


def little_endian() -> bool:
    """Whether the words of this machine's memory are the words of the digest."""
    return sys.byteorder == "little"
