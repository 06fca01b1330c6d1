"""The digest of a value together with those of its rows, or of its packed values and their scales.

The whole digest decides whether two values are the same. What stands beside it only tells where
they are not, so each of those digests is cut to a few digits, and many rows share one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..faults import EvidenceError
from .digest import digest, digest_many, digest_scaled

if TYPE_CHECKING:
    from typing import Any, Dict, List, Sequence

    from .digest import Digest

MOST_ROWS = 4096
ROW_DIGITS = 8
PART_DIGITS = 16


def detailed(value: Any, rows: bool = False, scales: Any = None) -> Digest:
    """Return the digest of `value` and what it is, as `digest.digest`, with more in the latter.

    rows: "rows" of the result has {"count", "each", "digests"}: each ROW_DIGITS digits of the last
        are the digest of so many rows along the first axis
    scales: a tensor, or several, that belong to the packed values in `value`; the digest is then of
        all of them, and "parts" has PART_DIGITS digits of each

    Raises EvidenceError for what has no bytes to read, and no rows where these are asked for.
    """
    held = [] if scales is None else list(scales) if _is_many(scales) else [scales]
    text, what = digest_scaled(value, held) if held else digest(value)
    if held:
        parts = digest_many([value, *held])
        what["parts"] = [_short(part, PART_DIGITS) for part in parts]
    if rows:
        what["rows"] = _rows(value, held)
    return text, what


def _is_many(scales: Any) -> bool:
    return isinstance(scales, (list, tuple))


def _rows(value: Any, scales: Sequence[Any]) -> Dict[str, Any]:
    """The digests of the rows; those of scales that have as many rows belong to them."""
    if not len(getattr(value, "shape", ())):
        raise EvidenceError("expected a tensor or an array with rows, found one without axes")
    count = int(value.shape[0])
    each = max(1, -(-count // MOST_ROWS))
    held = [value, *(one for one in scales if len(one.shape) and one.shape[0] == count)]
    pieces = [one[at : at + each] for at in range(0, count, each) for one in held]
    found = digest_many(pieces)
    return {"count": count, "each": each, "digests": _joined(found, len(held))}


def _joined(found: List[str], together: int) -> str:
    """The short digests of rows, each of as many tensors as were taken together."""
    texts = [_short(text, ROW_DIGITS) for text in found]
    if together == 1:
        return "".join(texts)
    groups = [texts[at : at + together] for at in range(0, len(texts), together)]
    return "".join("%0*x" % (ROW_DIGITS, _mixed(group)) for group in groups)


def _mixed(texts: Sequence[str]) -> int:
    """One number for several: the order counts, and equal ones do not cancel."""
    mixed = 0
    for text in texts:
        mixed = (mixed * 0x9E3779B1 + int(text, 16) + 1) % (1 << 4 * ROW_DIGITS)
    return mixed


def _short(text: str, digits: int) -> str:
    return text.rpartition(":")[2][:digits]
