"""Block scales of a low-precision weight, rebuilt on resume from another copy of that weight.

Prints the digests of the packed values and scales of an NVFP4 and an MXFP8 weight that a run
goes on with. SCALES says where they come from:

trained  the run was never stopped: quantised from the optimizer's fp32 master weight
rebuilt  resumed: quantised again from what the checkpoint has, the bf16 weight (the default)
saved    resumed: values and scales were in the checkpoint

Only torch is needed. The numbers are exact (integers, powers of two, IEEE division and rounding),
so that every machine prints the same digests.
"""

from __future__ import annotations

import hashlib
import io
import os

import torch

ROWS, COLUMNS = 256, 512
LARGEST_E2M1, LARGEST_E4M3 = 6.0, 448.0
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
BETWEEN = (E2M1[1:] + E2M1[:-1]) / 2
TO_LOWER = torch.tensor([True, False, True, False, True, False, True])  # ties go to even codes


def nvfp4(weight):
    """Quantise to NVFP4: 16 values share a scale in E4M3, all of them one in fp32.

    Returns values (blocks, 8) as uint8, two E2M1 values a byte, the first in the low bits; block
    scales (blocks,) as float8_e4m3fn; the tensor's scale () as float32.
    """
    blocks = weight.float().reshape(-1, 16)
    tensor_scale = blocks.abs().max() / (LARGEST_E2M1 * LARGEST_E4M3)
    largest = blocks.abs().amax(1)
    scales = (largest / LARGEST_E2M1 / tensor_scale).to(torch.float8_e4m3fn)
    divisor = scales.float() * tensor_scale
    divisor = torch.where(divisor == 0, torch.ones(()), divisor)
    size = (blocks.abs() / divisor[:, None])[..., None]
    codes = torch.where(TO_LOWER, size > BETWEEN, size >= BETWEEN).sum(-1)
    codes = (codes + 8 * torch.signbit(blocks)).to(torch.uint8)
    return codes[:, 0::2] | codes[:, 1::2] << 4, scales, tensor_scale


def from_nvfp4(values, scales, tensor_scale):
    """The weight that NVFP4 values and scales stand for, in fp32: (blocks, 16)."""
    codes = torch.stack([values & 15, values >> 4], -1).reshape(len(values), 16).long()
    signed = E2M1[codes & 7] * torch.where(codes > 7, -1.0, 1.0)
    return signed * (scales.float() * tensor_scale)[:, None]


def mxfp8(weight):
    """Quantise to MXFP8: 32 values in E4M3 share a power of two (E8M0).

    Returns values (blocks, 32) as float8_e4m3fn and the exponents (blocks,) as uint8, plus 127.
    """
    blocks = weight.float().reshape(-1, 32)
    exponents = torch.frexp(blocks.abs().amax(1)).exponent - 1 - 8  # 8: that of 448
    scaled = torch.ldexp(blocks, -exponents[:, None]).clamp(-LARGEST_E4M3, LARGEST_E4M3)
    return scaled.to(torch.float8_e4m3fn), (exponents + 127).clamp(0, 254).to(torch.uint8)


def quantised(weight):
    """Values and scales by name, in both formats."""
    values, scales, tensor_scale = nvfp4(weight)
    mx_values, mx_scales = mxfp8(weight)
    return {
        "nvfp4.values": values,
        "nvfp4.block_scales": scales,
        "nvfp4.tensor_scale": tensor_scale,
        "mxfp8.values": mx_values,
        "mxfp8.scales": mx_scales,
    }


def master_weight():
    """An fp32 weight whose bits no bf16 number has: (ROWS, COLUMNS)."""
    draw = torch.Generator().manual_seed(0)
    whole = torch.randint(-(2**20), 2**20, (ROWS, COLUMNS), generator=draw)
    return whole.float() / 2**20


def outputs():
    """What the run goes on with."""
    source = os.environ.get("SCALES") or "rebuilt"
    master = master_weight()
    trained = quantised(master)
    if source == "trained":
        return trained
    file = io.BytesIO()
    torch.save({"weight": master.bfloat16(), **(trained if source == "saved" else {})}, file)
    file.seek(0)
    checkpoint = torch.load(file)
    weight = checkpoint.pop("weight")
    return checkpoint if source == "saved" else quantised(weight)


def digest(tensor):
    """SHA-256 over dtype, shape and the bytes in C order."""
    shape = ",".join(str(size) for size in tensor.shape)
    found = hashlib.sha256(f"{str(tensor.dtype)[6:]}[{shape}]\0".encode())
    found.update(bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist()))
    return "sha256:" + found.hexdigest()


def differing(name, mine, theirs):
    """In words, which of a tensor's scales are others."""
    bits = [each.reshape(-1).view(torch.uint8) for each in (mine, theirs)]
    rows = torch.nonzero(bits[0] != bits[1]).flatten().tolist()
    if not rows:
        return f"{name}: all {len(bits[0]):,} scales are those of the run that was not stopped"
    pair = " and ".join(f"0x{int(each[rows[0]]):02x}" for each in bits)
    return f"{name}: {len(rows)} of {len(bits[0]):,} scales differ, first block {rows[0]}: {pair}"


if __name__ == "__main__":
    found = outputs()
    for name, tensor in found.items():
        print("digest", name, digest(tensor))
    wanted = quantised(master_weight())
    for name in ("nvfp4.block_scales", "mxfp8.scales"):
        print(differing(name, wanted[name], found[name]))
