"""When state is read and written down: the order of saves, restores and optimizer steps.

What is saved between two optimizer steps is one checkpoint, however many files it has. A call of
`pinner.checkpoint_saved` makes the checkpoint its own; in a program that calls it, files that no
call follows are no checkpoints.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import TYPE_CHECKING

from ... import ledger, session
from . import loaders, nested, snapshot

if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

WHOLE, KILLED, RESTORED = "whole", "killed", "restored"
ROLES = (WHOLE, KILLED, RESTORED)

_FIRST = 3  # tensors of a file that are compared with those of the model


class Checkpoint:
    """A checkpoint that is being saved: its number, what was held, and what is not done yet."""

    def __init__(self, number: int, how: str, steps: int) -> None:
        self.number = number
        self.how = how
        self.steps = steps
        self.unfinished = 0
        self.state: Optional[snapshot.State] = None


class Moments:
    """The saves, restores and steps of this process.

    role: which of the three runs this is. at: the number of the checkpoint that is looked at.
    """

    def __init__(self, role: str, at: int) -> None:
        self.role = role
        self.at = at
        self.steps = 0
        self._saves = 0
        self._called = False
        self._open: List[Checkpoint] = []
        self._awaited = RESTORED if role == RESTORED else None
        self._told = False
        self._lock = threading.RLock()

    def saved(self, passed: Any) -> None:
        """The program says that it has saved, and what."""
        with self._lock:
            self._called = True
            checkpoint = self._take_own()
            if checkpoint.number == self.at and self.role != RESTORED:
                checkpoint.state = snapshot.take(passed)
                self._awaited = "saved"
            checkpoint.how = "call"
            self._finish(checkpoint)

    def restored(self, passed: Any) -> None:
        """The program says that it has restored all that it restores, and what."""
        with self._lock:
            state = snapshot.take(passed) if self.role == RESTORED else {}
            self._goes_on_from("call", state)

    def before_files(self) -> None:
        """Files are about to be written: they may replace those of a checkpoint that is done."""
        with self._lock:
            if not self._called and self._joinable() is None:
                self._close()

    def file_saved(self, content: Any, how: str) -> Optional[Checkpoint]:
        """A library has saved, or begun to save, `content`; None if that is no checkpoint."""
        with self._lock:
            if self._joinable() is None and not _is_checkpoint(content):
                return None
            return self._opened(how)

    def file_loaded(self, how: str) -> None:
        """A library has read a file; what comes of it shows at the next step."""
        with self._lock:
            if not self._told:
                self._goes_on_from(how, {})

    def begun(self, checkpoint: Checkpoint) -> None:
        """A part of a checkpoint goes on in the background."""
        with self._lock:
            checkpoint.unfinished += 1

    def finished(self, checkpoint: Checkpoint) -> None:
        """That part is on the disk."""
        with self._lock:
            checkpoint.unfinished -= 1

    def step_begins(self) -> None:
        """An optimizer is about to change parameters."""
        with self._lock:
            self._close()
            if self._awaited is not None:
                self._write("begins", after=self._awaited, number=self.at, state=snapshot.take())
                self._awaited = None

    def step_ends(self) -> None:
        """It has changed them."""
        with self._lock:
            self.steps += 1
            self._write("step", batches=loaders.batches())

    def end(self) -> None:
        """The process ends by itself."""
        with self._lock:
            self._close()
            self._write("end", state=snapshot.random_only())

    def _goes_on_from(self, how: str, state: snapshot.State) -> None:
        """Count steps from here: those before only made room for what was then loaded."""
        self._told = True
        if self.role == RESTORED:
            self.steps = 0
            self._awaited = RESTORED
        self._write("restored", how=how, state=state)

    def _take_own(self) -> Checkpoint:
        """Return the checkpoint that a call means: the one whose files were saved just before."""
        checkpoint = self._joinable() or Checkpoint(0, "call", self.steps)
        self._open = []
        checkpoint.number = self._saves + 1
        return checkpoint

    def _joinable(self) -> Optional[Checkpoint]:
        last = self._open[-1] if self._open else None
        return last if last is not None and last.steps == self.steps else None

    def _opened(self, how: str) -> Checkpoint:
        checkpoint = self._joinable()
        if checkpoint is None:
            number = self._saves + len(self._open) + 1
            checkpoint = Checkpoint(number, how, self.steps)
            self._open.append(checkpoint)
            if number == self.at and self.role != RESTORED:
                checkpoint.state = snapshot.take()
                self._awaited = "saved"
        return checkpoint

    def _close(self) -> None:
        """A step begins, or the end has come: what was saved before is a checkpoint by now."""
        if self._called:
            self._open = [each for each in self._open if each.unfinished]
            return
        while self._open and not self._open[0].unfinished:
            self._finish(self._open[0])

    def _finish(self, checkpoint: Checkpoint) -> None:
        if checkpoint in self._open:
            self._open.remove(checkpoint)
        self._saves = max(self._saves, checkpoint.number)
        self._write(
            "saved",
            number=checkpoint.number,
            how=checkpoint.how,
            steps=checkpoint.steps,
            state=checkpoint.state or {},
        )
        if self.role == KILLED and checkpoint.number == self.at:
            self._hold(checkpoint.number)

    def _hold(self, number: int) -> None:
        """Wait to be killed: no later step may show. Ends with the session's folder."""
        self._write("held", number=number)
        active = session.current()
        while active is not None and os.path.isdir(active.folder):
            time.sleep(0.2)
        os._exit(137)

    def _write(self, at: str, **fields: Any) -> None:
        line = {"t": "resume", "at": at, "steps": self.steps}
        line.update(fields)
        ledger.write(line)


def _is_checkpoint(content: Any) -> bool:
    """Whether a tensor of this process's modules or optimizers, or a copy, is in `content`."""
    torch: Any = sys.modules["torch"]
    held: Dict[Any, List[Any]] = {}
    for tensor in snapshot.held(torch):
        held.setdefault((tensor.dtype, tuple(tensor.shape)), []).append(tensor)
    looked = 0
    for _, value in nested.leaves(content):
        if not isinstance(value, torch.Tensor) or value.numel() < 2:
            continue
        alike = held.get((value.dtype, tuple(value.shape)), ())
        if any(_same_memory(value, each) for each in alike):
            return True
        if alike and looked < _FIRST:
            looked += 1
            digest = nested.of(value)
            if any(nested.of(each) == digest for each in alike):
                return True
    return False


def _same_memory(first: Any, second: Any) -> bool:
    try:
        return bool(first.data_ptr() == second.data_ptr() and first.data_ptr())
    except RuntimeError:  # a wrapper without memory of its own
        return False
