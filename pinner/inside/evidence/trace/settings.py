"""What a trace was asked for: where it goes, how deep it looks, and the window it covers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ...faults import StartFault

if TYPE_CHECKING:
    from typing import Any, Dict, Optional, Pattern

LEVELS = ("steps", "modules", "ops", "kernels")


class Settings:
    """The `trace` of a session.

    folder: absolute folder of the trace; each process makes its own log in it
    level: one of LEVELS; each contains those before it
    first, last: the steps of the window, both included; None where it is open
    modules: what a scope must match (`re.search`); None where all of them are traced
    defer: digests of tensors on a device are read when the step ends
    keep: how many bytes of tensors may be kept for each rank; None where none are
    capture: the event whose call is captured (capture.py); None where none is
    """

    __slots__ = (
        "capture",
        "defer",
        "first",
        "folder",
        "keep",
        "last",
        "level",
        "modules",
        "pattern",
    )

    def __init__(self, fields: Dict[str, Any]) -> None:
        self.folder: str = fields["folder"]
        self.level: str = fields.get("level", "ops")
        self.first: Optional[int] = fields.get("from")
        self.last: Optional[int] = fields.get("to")
        self.modules: Optional[str] = fields.get("modules")
        self.keep: Optional[int] = fields.get("keep")
        self.capture: Optional[Dict[str, Any]] = fields.get("capture")
        self.defer: bool = fields.get("defer", False) and self.keep is None
        if self.level not in LEVELS:
            raise StartFault(
                "trace: expected a level of %s, found %r" % (", ".join(LEVELS), self.level)
            )
        self.pattern: Optional[Pattern[str]] = None
        if self.modules is not None:
            self.pattern = re.compile(self.modules)

    def at_least(self, level: str) -> bool:
        """Whether the trace goes as deep as `level`."""
        return LEVELS.index(self.level) >= LEVELS.index(level)

    def step_in_window(self, step: int) -> bool:
        """Whether events of this step are written."""
        if self.first is not None and step < self.first:
            return False
        return self.last is None or step <= self.last

    def scope_in_window(self, scope: str) -> bool:
        """Whether events of this module scope are written."""
        return self.pattern is None or self.pattern.search(scope) is not None

    def window(self) -> Dict[str, Any]:
        """The window as the log's first line has it."""
        return {"from": self.first, "to": self.last, "modules": self.modules}
