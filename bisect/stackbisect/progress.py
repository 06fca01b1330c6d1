"""Says how a bisection goes: with rich on a terminal, in plain lines elsewhere."""

from __future__ import annotations

import threading
import time
from typing import Any, TextIO

from stackbisect.probe import ProbeResult
from stackbisect.report import last_lines
from stackbisect.search.verdict import Verdict
from stackbisect.stage import Ask
from stackbisect.wording import short

_COLOURS = {
    "good": "green",
    "bad": "red",
    "third": "magenta",
    "unstable": "yellow",
    "untestable": "yellow",
}

_GIVEN_UP = "stopped: it can change nothing any more"


class Plain:
    """One line for each thing that happens. What is pulled is told from any thread."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._told = 0.0
        self._latest: int | None = None

    def begins(self, number: int, ask: Ask, left: int) -> None:
        """A probe begins."""
        self._latest = number
        self.says(f"probe {number}: {_begins(ask, left)}")

    def ends(self, number: int, ask: Ask, result: ProbeResult, verdict: Verdict | None) -> None:
        """A probe ended; it is named where its line was not the last one."""
        which = "" if self._latest == number else f"probe {number}, {ask.candidate.label}: "
        self._latest = None
        self.says(f"  {which}{_ends(result, verdict)}")
        for line in _output(result):
            self.says(f"  | {line}")

    def given_up(self, number: int, ask: Ask) -> None:
        """A probe was stopped."""
        self._latest = None
        self.says(f"  probe {number}, {ask.candidate.label}: {_GIVEN_UP}")

    def says(self, text: str) -> None:
        """Write one line."""
        with self._lock:
            self._stream.write(f"stackbisect: {text}\n")
            self._stream.flush()

    def reads(self, done: int, of: int) -> None:
        """Images are looked up; said now and then."""
        now = time.monotonic()
        if done == 0:
            self._told = now
        elif now - self._told > 10:
            self._told = now
            self.says(f"looked up {done} of {of} images")

    def pulls(self, text: str) -> None:
        """An image is pulled for a probe."""
        self.says(f"  {text}")

    def close(self) -> None:
        """Nothing is held."""


class Rich:
    """A line for each probe that ended, and a moving one for each that runs."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(file=stream, highlight=False, soft_wrap=True)
        self._lock = threading.RLock()  # what is pulled is told from any thread
        self._live: Live | None = None
        self._running: dict[int, Any] = {}
        self._note = ""

    def begins(self, number: int, ask: Ask, left: int) -> None:
        """A probe begins."""
        from rich.spinner import Spinner
        from rich.text import Text

        text = Text(f"probe {number}  {_begins(ask, left)}")
        with self._lock:
            self._running[number] = Spinner("dots", text)
        self._show("")

    def ends(self, number: int, ask: Ask, result: ProbeResult, verdict: Verdict | None) -> None:
        """A probe ended."""
        from rich.markup import escape

        colour = _COLOURS[verdict.kind] if verdict is not None else "cyan"
        self._is_over(number)
        which = f"probe {number}  {ask.candidate.label}"
        self._console.print(f"{escape(which)}  [{colour}]{escape(_ends(result, verdict))}[/]")
        for line in _output(result):
            self._console.print(f"  [dim]{escape(line)}[/]")

    def given_up(self, number: int, ask: Ask) -> None:
        """A probe was stopped."""
        self._is_over(number)
        self.says(f"probe {number}  {ask.candidate.label}  {_GIVEN_UP}")

    def says(self, text: str) -> None:
        """Write one line."""
        self._console.print(text, markup=False)

    def reads(self, done: int, of: int) -> None:
        """Images are looked up."""
        self._show(f"looking up images: {done} of {of}" if done < of else "")

    def pulls(self, text: str) -> None:
        """An image is pulled for a probe."""
        self._show(text)

    def close(self) -> None:
        """Give the terminal back."""
        with self._lock:
            self._running.clear()
        self._show("")

    def _is_over(self, number: int) -> None:
        with self._lock:
            self._running.pop(number, None)
        self._show("")

    def _show(self, note: str) -> None:
        """Show what runs now, and a note below it."""
        with self._lock:
            self._note = note
            self._draw()

    def _draw(self) -> None:
        """The terminal is held only while there is something to show."""
        from rich.console import Group
        from rich.live import Live
        from rich.text import Text

        lines = [*self._running.values(), *([Text(self._note)] if self._note else [])]
        if not lines:
            if self._live is not None:
                self._live.stop()
            self._live = None
            return
        if self._live is None:
            self._live = Live(console=self._console, transient=True, refresh_per_second=8)
            self._live.start()
        self._live.update(Group(*lines))


def for_stream(stream: TextIO) -> Plain | Rich:
    """What suits a stream."""
    if not stream.isatty():
        return Plain(stream)
    try:
        return Rich(stream)
    except ImportError:
        return Plain(stream)


def _begins(ask: Ask, left: int) -> str:
    again = f", try {ask.attempt}" if ask.attempt > 1 else ""
    to_come = f"; at most {left} to come" if left else ""
    return f"{ask.candidate.label}{again} ({ask.why}{to_come})"


def _ends(result: ProbeResult, verdict: Verdict | None) -> str:
    seconds = f"{result.ended - result.started:.1f} s"
    if verdict is None:
        digest = result.evidence.digest
        return f"bits {short(digest)} · {seconds}" if digest else f"ended · {seconds}"
    words = [verdict.kind, *([verdict.reason] if verdict.reason else []), seconds]
    return " · ".join(words)


def _output(result: ProbeResult) -> list[str]:
    """The end of a failed command's output, where its reason is not enough."""
    if result.status == "ran" and result.exit_code not in (0, None):
        return last_lines(result)
    return []
