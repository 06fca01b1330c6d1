"""Compiles a kernel and its copy as a repro has it, for sm_90, on a machine without a GPU.

usage: copied_kernel.py FOLDER : prints, as JSON, the digests of the code of the kernel in train.py
of this folder, of its copy, and of a copy in which one constant is another.
Run in its own process: the interpreter and the compiler cannot share one.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)
os.environ["TRITON_DISABLE_LINE_INFO"] = "1"
os.environ["TRITON_ALWAYS_COMPILE"] = "1"  # Triton 3.4 has constants not in the key of its cache

import torch

from pinner.inside.evidence.trace import capture_triton
from stackbisect.repro import kernel_text, triton_case
from tests.fakes import noop_driver, timers


def compiled(kernel: Any) -> str:
    """The digest of what is compiled for a launch."""
    x, y = torch.ones(16), torch.zeros(16)
    made = kernel[(1,)](x, y, B=16, num_warps=2)
    return hashlib.sha256(made.asm["ptx"].encode()).hexdigest()


def main(folder: str) -> None:
    """Compile all three."""
    noop_driver.install(timers.Counted(timers.shuffled(1)))
    sys.path.insert(0, folder)
    train = importlib.import_module("train")
    given = {"x_ptr": torch.ones(16), "y_ptr": torch.zeros(16), "B": 16, "num_warps": 2}
    taken = capture_triton.launch(train.kernel, (), given, lambda name, tensor: 0)
    taken["grid"] = [1, 1, 1]
    kernel = triton_case.kernel(json.loads(json.dumps(taken)), None)
    assert isinstance(kernel, triton_case.Kernel), kernel
    assert not kernel.interpreted
    text: kernel_text.Text = kernel.text
    head = ("import torch", "import triton", "import triton.language as tl")
    copy = "\n".join([*head, *text.imports, "", text.body, ""])
    planted = copy.replace("0.25", "0.375")
    for name, lines in (("copied", copy), ("planted", planted)):
        Path(folder, f"{name}.py").write_text(lines)
    names = (("train", "kernel"), ("copied", text.kernel), ("planted", text.kernel))
    found = [compiled(getattr(importlib.import_module(name), each)) for name, each in names]
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
