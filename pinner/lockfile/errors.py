"""The errors for files that cannot be trusted: refused with a place and a cause, no traceback."""

from __future__ import annotations

from pinner.inside.faults import PinnerError


class LockError(PinnerError):
    """A lockfile that cannot be read or written. Commands end with 65 (enforce: 96)."""

    def __init__(
        self,
        text: str,
        *,
        source: str = "",
        line: int | None = None,
        entry: str = "",
        field: str = "",
    ) -> None:
        self.text = text
        self.source = source
        self.line = line
        self.entry = entry
        self.field = field
        super().__init__(self._message())

    def _message(self) -> str:
        place = self.source
        if self.line is not None:
            place += f":{self.line}"
        parts = [place, self.entry, self.field, self.text]
        return ": ".join(part for part in parts if part)


class LedgerError(PinnerError):
    """A ledger with a line that is no record, other than a torn last one."""
