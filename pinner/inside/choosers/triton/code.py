"""What a config became: a digest of the machine code, and the compile options in force.

The whole binary will not do: it holds line tables, so that a kernel two lines lower has another
one (measured on 3.6, 3.8 and 3.9). The sections that the processor executes are equal then.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from ... import values

_EXECUTABLE = 0x4  # SHF_EXECINSTR, ELF-64 object file format, figure 4-11
_BINARIES = ("cubin", "hsaco")

# Compile options outside the config that change bits (fields of CUDAOptions and HIPOptions).
_BIT_OPTIONS = (
    "allow_flush_denorm",
    "arch",
    "debug",
    "default_dot_input_precision",
    "enable_fp_fusion",
    "enable_reflect_ftz",
    "fpsan_homomorphic_casts",
    "instrumentation_mode",
    "max_num_imprecise_acc_default",
    "ptx_options",
    "ptx_version",
    "sanitize_overflow",
)


class Compiled(NamedTuple):
    """One compiled specialisation of a kernel.

    fields: constants by argument name, and num_warps, num_stages, … as the config names them.
    spec: 16 hex digits for the specialisation (argument types, alignment, constants).
    digest: ``sha256:…`` of the code sections; None where there is no binary.
    options: the options of `_BIT_OPTIONS` in force.
    """

    fields: Dict[str, Any]
    spec: str
    digest: Optional[str]
    options: Dict[str, Any]


def read_compiled(source: Any, kernel: Any) -> Compiled:
    """The facts of a `CompiledKernel` that `triton.compile` made of an `ASTSource`."""
    metadata = kernel.metadata
    constants = _constants(source)
    fields = dict(constants)
    for name in ("num_warps", "num_stages", "num_ctas", "maxnreg", "ir_override"):
        if getattr(metadata, name, None) is not None:
            fields[name] = getattr(metadata, name)
    return Compiled(
        fields, _specialisation(source, constants), _code_digest(kernel), _options(metadata)
    )


def is_made_by(compiled: Compiled, config: Dict[str, Any]) -> bool:
    """Whether this binary was compiled under this (encoded) config."""
    return all(
        name in compiled.fields
        and values.canonical(_encoded(compiled.fields[name])) == values.canonical(value)
        for name, value in config.items()
    )


def code_sections_digest(binary: bytes, kernel: str = "") -> str:
    """``sha256:…`` over name and bytes of every executable section of a 64-bit ELF file.

    kernel: a name to leave out of the names of sections, where a process made it up.
    """
    digest = hashlib.sha256()
    made_up = kernel.encode("utf-8")
    for section, content in sorted(_executable_sections(binary)):
        name = section.replace(made_up, b"") if made_up else section
        digest.update(b"%d %s %d\n" % (len(name), name, len(content)))
        digest.update(content)
    return "sha256:" + digest.hexdigest()


def _executable_sections(binary: bytes) -> List[Tuple[bytes, bytes]]:
    if binary[:5] != b"\x7fELF\x02":
        raise ValueError("expected a 64-bit ELF binary, found %r" % binary[:5])
    (table,) = struct.unpack_from("<Q", binary, 0x28)
    size, count, names_index = struct.unpack_from("<HHH", binary, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", binary, table + i * size) for i in range(count)]
    names_at = headers[names_index][4]
    found = []
    for name, _, flags, _, offset, length in headers:
        if flags & _EXECUTABLE:
            start = names_at + name
            end = binary.index(b"\0", start)
            found.append((binary[start:end], binary[offset : offset + length]))
    return found


def _code_digest(kernel: Any) -> Optional[str]:
    for kind in _BINARIES:
        binary = kernel.asm.get(kind)
        if isinstance(binary, bytes):
            return code_sections_digest(binary)
    return None


def _constants(source: Any) -> Dict[str, Any]:
    """Constant arguments by name; `ASTSource.constants` is keyed by the path of the argument."""
    names = list(source.fn.arg_names)
    constants = {}
    for path, value in source.constants.items():
        if isinstance(path, tuple) and len(path) == 1:
            constants[names[path[0]]] = value
        elif isinstance(path, str):
            constants[path] = value
    return constants


def _specialisation(source: Any, constants: Dict[str, Any]) -> str:
    parts = [
        sorted((str(name), str(kind)) for name, kind in source.signature.items()),
        sorted((name, values.canonical(_encoded(value))) for name, value in constants.items()),
        sorted((str(path), str(attribute)) for path, attribute in source.attrs.items()),
    ]
    return hashlib.sha256(repr(parts).encode("utf-8")).hexdigest()[:16]


def _options(metadata: Any) -> Dict[str, Any]:
    options = {}
    for name in _BIT_OPTIONS:
        value = getattr(metadata, name, None)
        if isinstance(value, (bool, int, float, str)):
            options[name] = value
    return options


def _encoded(value: Any) -> Any:
    try:
        return values.encode(value)
    except values.Unpinnable:
        return {"object": getattr(value, "__name__", type(value).__name__)}
