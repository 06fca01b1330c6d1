"""Says how a bisection goes: with rich on a terminal, in plain lines elsewhere."""

from __future__ import annotations

import time
from typing import TextIO

from stackbisect.probe import Candidate, ProbeResult
from stackbisect.report import last_lines, short
from stackbisect.search.probing import Try
from stackbisect.search.verdict import Verdict

_COLOURS = {
    "good": "green",
    "bad": "red",
    "third": "magenta",
    "unstable": "yellow",
    "untestable": "yellow",
}


class Plain:
    """One line for each thing that happens."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._told = 0.0

    def begins(self, candidate: Candidate, number: int, step: Try, left: int) -> None:
        """A probe begins."""
        self.says(_begins(candidate, number, step, left))

    def ends(self, candidate: Candidate, result: ProbeResult, verdict: Verdict | None) -> None:
        """A probe ended."""
        self.says(f"  {_ends(result, verdict)}")
        for line in _output(result):
            self.says(f"  | {line}")

    def says(self, text: str) -> None:
        """Write one line."""
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
        """An image is pulled for the probe that runs."""
        self.says(f"  {text}")

    def close(self) -> None:
        """Nothing is held."""


class Rich:
    """A line for each probe that ended, and a moving one for the probe that runs."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console

        self._console = Console(file=stream, highlight=False, soft_wrap=True)
        self._status = self._console.status("")
        self._doing = ""

    def begins(self, candidate: Candidate, number: int, step: Try, left: int) -> None:
        """A probe begins."""
        self._doing = f"probe {number}  {candidate.label}"
        self._show(f"{self._doing}  ({step.why}; at most {left} to come)")

    def ends(self, candidate: Candidate, result: ProbeResult, verdict: Verdict | None) -> None:
        """A probe ended."""
        from rich.markup import escape

        colour = _COLOURS[verdict.kind] if verdict is not None else "cyan"
        self._status.stop()
        self._console.print(f"{escape(self._doing)}  [{colour}]{escape(_ends(result, verdict))}[/]")
        for line in _output(result):
            self._console.print(f"  [dim]{escape(line)}[/]")

    def says(self, text: str) -> None:
        """Write one line."""
        self._status.stop()
        self._console.print(text, markup=False)

    def reads(self, done: int, of: int) -> None:
        """Images are looked up."""
        self._show(f"looking up images: {done} of {of}")
        if done == of:
            self._status.stop()

    def pulls(self, text: str) -> None:
        """An image is pulled for the probe that runs."""
        from rich.markup import escape

        self._status.update(escape(f"{self._doing}  {text}"))

    def close(self) -> None:
        """Give the terminal back."""
        self._status.stop()

    def _show(self, text: str) -> None:
        from rich.markup import escape

        self._status.update(escape(text))
        self._status.start()


def for_stream(stream: TextIO) -> Plain | Rich:
    """What suits a stream."""
    if not stream.isatty():
        return Plain(stream)
    try:
        return Rich(stream)
    except ImportError:
        return Plain(stream)


def _begins(candidate: Candidate, number: int, step: Try, left: int) -> str:
    again = f", try {step.attempt}" if step.attempt > 1 else ""
    return f"probe {number}: {candidate.label}{again} ({step.why}; at most {left} to come)"


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
