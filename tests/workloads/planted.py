"""A program that sets all that the profile `deterministic` asks of it, but for what is planted.

PLANT=NAME,NAME  late-hash (PYTHONHASHSEED), late-nccl (NCCL_ALGO after the process group),
                 early-cublas (in time: no fault), switch (cuDNN's benchmark is on),
                 operation (one of its own)
CODE=N           ends with code N
"""

from __future__ import annotations

import os
import sys

PLANTED = os.environ.get("PLANT", "").split(",")
if "late-hash" in PLANTED:
    os.environ["PYTHONHASHSEED"] = "1"

import torch  # noqa: E402 - what is set before it is part of the plan
import torch.distributed  # noqa: E402


def set_switches() -> None:
    """All that the profile asks for."""
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = "switch" in PLANTED
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = (False, False)
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = (False, False)


def main() -> None:
    """Plants the rest."""
    set_switches()
    if "early-cublas" in PLANTED:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":16:8"
    if "late-nccl" in PLANTED:
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        os.environ["NCCL_ALGO"] = "CollnetChain"
    if "operation" in PLANTED:
        library = torch.library.Library("acme", "DEF")
        library.define("fused(Tensor x) -> Tensor")
    sys.exit(int(os.environ.get("CODE", "0")))


if __name__ == "__main__":
    main()
