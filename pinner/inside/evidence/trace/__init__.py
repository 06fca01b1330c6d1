"""Traces: digests of what goes on inside a run, as one append-only log for each process.

What is hooked, and why there (torch 2.13; what an older torch lacks is left out by name):

- Operations: a dispatch mode that is put on the stack with `torch._C._push_on_torch_dispatch_stack`
  and says `ignore_compile_internals`. Entering it with `with` would set the flag by which dynamo
  of older torch skips a frame, and the compiled function would run eagerly: other bits.
- Autograd's threads: the engine sets the caller's `ThreadLocalState` in each of its threads, and
  the dispatch stack is part of it. Threads of Python inherit nothing, so `threading.Thread` is
  hooked.
- Modules: `torch.nn.Module.__call__`, not the global module hooks. Those are seen by dynamo, which
  then traces them, and they turn off fast paths of `torch.nn`: both change bits. Gradients are
  taken by hooks on tensors: a full backward hook makes a module's output a view, which an in-place
  operation after it may not touch.
- Compiled regions: where Inductor's compiled graph is called, forward and backward. Inside one the
  mode lets everything pass.
- Everything waits for its producer by reading on the stream that the consumer would read on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import submodule

if TYPE_CHECKING:
    from typing import Any


def __getattr__(name: str) -> Any:
    """Load a module of this package when it is first asked for (see `pinner.inside`)."""
    return submodule(__name__, name)
