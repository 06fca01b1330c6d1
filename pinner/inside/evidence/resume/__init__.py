"""What a process holds when a checkpoint is saved and after it is restored, named and digested.

`pinner verify --resume` runs a program three times: whole, killed after its k-th checkpoint, and
restored from that checkpoint. Here is what these processes write to their ledgers, as lines
`{"t": "resume", "at": …}`:

saved     checkpoint number `number` is on its way to the disk; `state` at the k-th one
restored  the program said that it is restored, or read a file of torch
begins    the first optimizer step after the k-th checkpoint, or after the start of a restored run,
          is about to be made: the same place of the program in both, whatever order it restores in
step      an optimizer step was made: the clock of the run, and the batch that was last drawn
held      a run that is to be killed waits here for that
end       the random streams at the normal end

A `state` is {name: {"kind": …, "leaves": {leaf: digest}}}. Everything is read and nothing changed:
no random number is drawn, no lazy state is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import submodule

if TYPE_CHECKING:
    from typing import Any


def __getattr__(name: str) -> Any:
    """Load a module of this package when it is first asked for (see `pinner.inside`)."""
    return submodule(__name__, name)
