"""The lockfile's text: it is read back as written, diffs stay small, all else is refused."""

from __future__ import annotations

import difflib
import hashlib
import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomli
from hypothesis import given, settings
from hypothesis import strategies as st

from pinner.inside.values import canonical
from pinner.lockfile import from_toml
from pinner.lockfile.codec import dumps, loads, read_lock, write_lock
from pinner.lockfile.errors import LockError
from pinner.lockfile.schema import Evidence, Lock, Stack, StreamRecord, TritonFallback
from pinner.lockfile.show import as_json
from tests import locks

FULL = dumps(locks.full_lock())
EVERY = dumps(locks.every_chooser())
_PARTS = ("triton", "inductor", "cublaslt", "settings")


def _sorted(items: Iterable[Any]) -> Any:
    return tuple(sorted(items, key=lambda each: each.identity))


def _content(lock: Lock) -> str:
    """All of a lock as text, with types told apart and entries in the order of the file."""
    in_order = replace(
        lock,
        triton=_sorted(lock.triton),
        inductor=_sorted(lock.inductor),
        cublaslt=_sorted(lock.cublaslt),
        settings=_sorted(lock.settings),
        evidence=replace(
            lock.evidence,
            streams=tuple(sorted(lock.evidence.streams, key=lambda each: (each.name, each.rank))),
        ),
    )
    return canonical(as_json(in_order))


@settings(deadline=None)
@given(locks.locks())
def test_what_is_written_is_read_back(lock: Lock) -> None:
    text = dumps(lock)
    assert _content(loads(text, "x")) == _content(lock)
    assert dumps(loads(text, "x")) == text


@settings(deadline=None)
@given(locks.locks())
def test_the_text_is_toml_for_other_readers_too(lock: Lock) -> None:
    tomllib = pytest.importorskip("tomllib")
    text = dumps(lock)
    assert canonical(tomllib.loads(text)) == canonical(tomli.loads(text))


@settings(deadline=None)
@given(locks.locks(), st.randoms(use_true_random=False))
def test_the_text_does_not_depend_on_the_order_of_entries(
    lock: Lock, shuffler: random.Random
) -> None:
    parts = {name: list(getattr(lock, name)) for name in _PARTS}
    for part in parts.values():
        shuffler.shuffle(part)
    shuffled: dict[str, Any] = {name: tuple(part) for name, part in parts.items()}
    assert dumps(replace(lock, **shuffled)) == dumps(lock)


def test_every_key_that_differs_in_type_alone_is_an_entry_of_its_own() -> None:
    keys: list[Any] = [True, 1, 1.0, "1", [1], {"dtype": "1"}, {"none": True}, 0.0, -0.0, False, 0]
    lock = locks.lock(*(locks.entry(key={"K": key}) for key in keys))
    read = loads(dumps(lock), "x")
    assert {entry.key_text for entry in read.triton} == {canonical({"K": key}) for key in keys}


def test_the_form_of_an_entry() -> None:
    text = dumps(locks.lock(locks.entry(64)))
    assert (
        "[[triton]]\n"
        'kernel = "fla.modules.layernorm:layer_norm_fwd_kernel"\n'
        f'source = "{locks.SOURCE}"\n'
        'key = { N = 64, "x:dtype" = "float32" }\n'
        "config = { BT = 32, num_warps = 4, num_stages = 3 }\n"
        "alternatives = 9\n"
        "\n"
        "[end]\n"
        "entries = 1\n"
    ) in text
    assert text.startswith("# ")


def test_a_new_entry_adds_lines_and_changes_the_count_only() -> None:
    before = dumps(locks.full_lock((32, 128))).splitlines()
    after = dumps(locks.full_lock((32, 64, 128))).splitlines()
    removed = [line for line in difflib.ndiff(before, after) if line.startswith("- ")]
    assert removed == ["- entries = 2"]


def test_a_changed_config_is_one_line_of_a_diff() -> None:
    lock = locks.lock(locks.entry(32), locks.entry(64))
    changed = locks.lock(locks.entry(32, config={"BT": 16}), locks.entry(64))
    pairs = zip(dumps(lock).splitlines(), dumps(changed).splitlines(), strict=True)
    assert sum(one != other for one, other in pairs) == 1


def test_characters_a_reviewer_cannot_see_are_escaped() -> None:
    note = "safe\u202e \u0007\u2028\U000e0041"
    text = dumps(locks.lock(locks.entry(note=note)))
    assert r'note = "safe\u202E \u0007\u2028\U000E0041"' in text
    assert loads(text, "x").triton[0].note == note


def test_line_ends_of_another_system_are_read() -> None:
    assert _content(loads(FULL.replace("\n", "\r\n"), "x")) == _content(locks.full_lock())


def test_a_comment_and_another_order_of_fields_are_fine() -> None:
    text = FULL.replace("alternatives = 9\n", "").replace(
        "[[triton]]\n", "# checked by hand\n[[triton]]\nalternatives = 9\n"
    )
    assert _content(loads(text + "# the end\n\n", "x")) == _content(locks.full_lock())


# (what is replaced, by what, what the message must say, field)
BROKEN = [
    ("version = 1", "version = 2", "expected at most 1, found 2", "version"),
    ("version = 1", "version = true", "expected an integer, found a boolean", "version"),
    ("version = 1", "", "found no such field", "version"),
    ("sealed = true", "sealed = 1", r"expected a boolean, found an integer \(1\)", "sealed"),
    ("sealed = true", "sealed = true\nsealled = true", "did you mean 'sealed'", "sealled"),
    ("runs = 2", "runs = -1", "at least 0, found -1", "runs"),
    ("world_size = 1", "world_size = 0", "at least 1", "world_size"),
    ("world_size = 1", "world_size = 1\nhosts = 0", "at least 1", "hosts"),
    (
        "alternatives = 9",
        "alternatives = 9.0",
        "expected an integer, found a float",
        "alternatives",
    ),
    ("alternatives = 9", "alternatves = 9", "no such field but 'alternatves'", "alternatives"),
    ("alternatives = 9", "alternatives = 9\ncode_run = 'rm'", "unknown field", "code_run"),
    ("kernel = ", "kernl = ", "expected a string, found no such field but 'kernl'", "kernel"),
    ("{ none = true }", "{ none = false }", "expected { none = true }", "key"),
    ("{ none = true }", "{ dtype = 16 }", "expected { none = true }", "key"),
    ("{ none = true }", "{}", "found the names nothing", "key"),
    ("-0.0", "1979-05-27", "found a date", "key"),
    ("options = { enable_fp_fusion = true }", "options = [1]", "expected a table", "options"),
    ('specs = [\n    "0000000000000000",', "specs = [", "expected 2, one for each", "specs"),
    ('torch = "2.13.0"', 'torch = ["2.13.0"]', "expected a string, number or boolean", "torch"),
    ('profile = "default"', "profile = 1979-05-27", "found a date", "profile"),
    ("steps = 2\n", "steps = '2'\n", "expected an integer", "steps"),
    ("configs = [", "configs = [\n 1,", "expected a table of values", "configs"),
    ("entries = 3", "entries = 4", r"expected 4 \[\[triton\]\] tables, found 3", "entries"),
    ("N = 64", "N = 32", "the same kernel, source and key as entry 2", "key"),
    ("\n[end]", "\n[[cublaslt]]\na = 1\n[end]", "expected a table, found no such", "problem"),
    ("\n[end]", "\n[other]\n[end]", "unknown field", "other"),
]


@pytest.mark.parametrize(("old", "new", "says", "field"), BROKEN)
def test_what_is_not_in_the_schema_is_refused_with_its_field_and_line(
    old: str, new: str, says: str, field: str
) -> None:
    assert old in FULL
    with pytest.raises(LockError, match=says) as caught:
        loads(FULL.replace(old, new, 1), "my.lock.toml")
    assert caught.value.field == field
    assert str(caught.value).startswith("my.lock.toml:")


# The same for the tables of the other choosers.
BROKEN_OTHERS = [
    ('kernel = "gemm:addmm"', "kernel = 1", "expected a string", "kernel"),
    ('kernel = "gemm:addmm"', 'kernel = "gemm:addmm"\nblob = "ab"', "unknown field", "blob"),
    ('source = "sha256:e', 'source = "sha256:E', "64 hexadecimal digits", "source"),
    ("m = 64", "m = 32", "the same kernel, source and key as entry 1", "key"),
    ("m = 64, n = 64", "m = 32, n = 64", "the same problem as entry 1", "problem"),
    ("problem = ", "key = ", "expected a table, found no such field", "problem"),
    ("algo = {", 'algo = { blob = "ab",', "found it among them", "algo"),
    ("algo = {", "algo = { x = 1979-05-27,", "found a date", "algo"),
    ("splitk = 1", "splitk = -1", "splitk: expected an integer from 0 to 4294967295", "algo"),
    ("splitk = 1", "splitk = 4294967296", "found 4294967296", "algo"),
    ("splitk = 1", "splitk = true", "found True", "algo"),
    ("splitk = 1", 'splitk = "4"', "found '4'", "algo"),
    ("splitk = 1", "split_k = 1", "split_k: expected one of the fields", "algo"),
    ("cluster = 0", "cluster = 65536", "cluster: expected an integer from 0 to 65535", "algo"),
    ('blob = "ab', 'blob = "', "expected 128 hexadecimal digits, found a string", "blob"),
    ('blob = "ab', 'blob = "AB', "expected 128 hexadecimal digits", "blob"),
    ("alternatives = 8", "alternatives = 0", "at least 1, found 0", "alternatives"),
    ('value = "Ring"\n', "", "expected a value, found no such field", "value"),
    ('value = "Ring"', "value = { rank = 3 }", "found the names rank", "value"),
    ('held = "forced"', 'held = "force"', "one of forced, recorded, no; found 'force'", "held"),
    ('name = "NCCL_PROTO"', 'name = "NCCL_ALGO"', "same chooser and name as entry 2", "name"),
    ('name = "NCCL_PROTO"', 'name = "NCCL_PROTO"\nrank = 1', "unknown field", "rank"),
    (
        "entries = 10",
        "entries = 11",
        r"expected 11 \[\[triton\]\] \+ \[\[inductor\]\] \+ \[\[cublaslt\]\] \+ "
        r"\[\[setting\]\] tables, found 10",
        "entries",
    ),
]


@pytest.mark.parametrize(("old", "new", "says", "field"), BROKEN_OTHERS)
def test_what_is_not_in_the_schema_of_the_others_is_refused_too(
    old: str, new: str, says: str, field: str
) -> None:
    head, others = EVERY[: EVERY.index("[[inductor]]\n")], EVERY[EVERY.index("[[inductor]]\n") :]
    assert old in others
    broken = head + others.replace(old, new, 1)
    with pytest.raises(LockError, match=says) as caught:
        loads(broken, "my.lock.toml")
    assert caught.value.field == field
    assert caught.value.line is not None
    assert caught.value.line > head.count("\n")


def test_a_lock_of_triton_alone_reads_as_before_there_were_others() -> None:
    """The digest is of this lock as the version before them wrote it."""
    before = "af550f260d8fecb9560d0465b8cd6ab5d8e394718d8b68277345fdd03bdb8c80"
    assert hashlib.sha256(FULL.encode()).hexdigest() == before


def test_the_form_of_the_other_choosers_entries() -> None:
    text = dumps(
        locks.lock(
            inductor=(locks.operation(config={"backend": "extern", "kernel": "addmm"}),),
            cublaslt=(locks.problem(splitk=4),),
            settings=(locks.setting(note="in force"),),
        )
    )
    assert text.endswith(
        "[[inductor]]\n"
        'kernel = "gemm:addmm"\n'
        'key = { dtype = "float32", m = 64 }\n'
        'config = { backend = "extern", kernel = "addmm" }\n'
        "alternatives = 2\n"
        "\n"
        "[[cublaslt]]\n"
        'problem = { atype = "bf16", m = 64, n = 64, transa = true }\n'
        "algo = { cluster = 0, custom = 0, id = 66, inner = 0, reduction = 0, splitk = 4, "
        "stages = 35, swizzle = 0, tile = 20, workspace = 0 }\n"
        f'blob = "{"ab" * 64}"\n'
        "alternatives = 8\n"
        "\n"
        "[[setting]]\n"
        'chooser = "nccl"\n'
        'name = "NCCL_ALGO"\n'
        'value = "Ring"\n'
        'held = "recorded"\n'
        'note = "in force"\n'
        "\n"
        "[end]\n"
        "entries = 3\n"
    )
    assert "[end] counts all these tables." in text


def test_an_error_of_syntax_in_another_section_names_its_entry() -> None:
    broken = EVERY.replace('name = "NCCL_PROTO"', 'name == "NCCL_PROTO"')
    with pytest.raises(LockError, match="expected TOML") as caught:
        loads(broken, "x")
    assert caught.value.entry == "[[setting]] entry 3"


def test_an_error_names_the_line_and_the_entry() -> None:
    broken = FULL.replace("N = 64", "N = 1979-05-27")
    with pytest.raises(LockError) as caught:
        loads(broken, "my.lock.toml")
    line = next(n for n, text in enumerate(broken.splitlines(), 1) if "N = 1979" in text)
    assert caught.value.line == line
    assert caught.value.entry == f"[[triton]] entry 3 ({locks.KERNEL})"


def test_an_error_of_syntax_names_the_line_and_the_entry() -> None:
    broken = FULL.replace("N = 64", "N == 64")
    with pytest.raises(LockError, match="expected TOML") as caught:
        loads(broken, "my.lock.toml")
    assert broken.splitlines()[(caught.value.line or 0) - 1].startswith("key = { N == 64")
    assert caught.value.entry == "[[triton]] entry 3"


def test_a_table_after_the_end_is_refused() -> None:
    moved = FULL.replace("[end]\nentries = 3\n", "")
    with pytest.raises(LockError, match="to be the last thing"):
        loads("[end]\nentries = 3\n" + moved, "x")


@pytest.mark.parametrize("text", ["", "\n", "{}", "version = 1\n", "[[triton]]\n", "\0", "x = 1"])
def test_texts_that_are_no_lock_are_refused(text: str) -> None:
    with pytest.raises(LockError):
        loads(text, "x")


@pytest.mark.parametrize("value", ["[" * 5000 + "]" * 5000, "9" * 5000, "1e999999999999", "0x"])
def test_values_no_parser_expects_are_refused_or_read_but_never_crash(value: str) -> None:
    try:
        loads(FULL.replace("-0.0", value), "x")
    except LockError:
        return
    assert value.startswith("1e")


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_damage_anywhere_is_a_lock_error_or_harmless(data: st.DataObject) -> None:
    raw = bytearray(FULL.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    text = raw.decode("utf-8", errors="replace")
    try:
        lock = loads(text, "x")
    except LockError:
        return
    assert len(lock.triton) == 3


_PLAIN = locks.lock()
_HEAD = tuple(locks.digest(f"{number:02x}") for number in range(16))


def _stream(**fields: Any) -> StreamRecord:
    return replace(StreamRecord("loss", 0, 20, locks.digest("a"), _HEAD), **fields)


def _with(stream: StreamRecord) -> Lock:
    return locks.lock(evidence=Evidence("sha256", stream.steps, (stream,)))


@pytest.mark.parametrize(
    ("lock", "says"),
    [
        (locks.lock(locks.entry(1), locks.entry(1)), "same kernel, source and key"),
        (locks.lock(fallbacks=(TritonFallback("m:k", ({},)),)), "without any"),
        (
            locks.lock(locks.entry(), fallbacks=(TritonFallback(locks.KERNEL, ({},)),) * 2),
            "twice",
        ),
        (locks.lock(locks.entry(), fallbacks=(TritonFallback(locks.KERNEL, ()),)), "at least one"),
        (
            locks.lock(locks.entry(), fallbacks=(TritonFallback(locks.KERNEL, ({}, {})),)),
            "one of them twice",
        ),
        (locks.lock(locks.entry(code=(locks.digest("a"),))), "expected 1, one for each digest"),
        (locks.lock(locks.entry(code=("sha256:1",), specs=("s",))), "64 hexadecimal digits"),
        (locks.lock(locks.entry(source="m:k")), "64 hexadecimal digits"),
        (_with(_stream(digest="sha256:" + "A" * 64)), "64 hexadecimal digits"),
        (_with(_stream(head=("a",) * 16)), "64 hexadecimal digits"),
        (_with(_stream(head=("nh128:" + "a" * 31,) * 16)), "`nh128:` and 32, found"),
        (_with(_stream(digest="nh128:" + "a" * 32)), "64 hexadecimal digits"),
        (_with(_stream(head=_HEAD[:15])), "first 16 of 20 steps, found 15"),
        (_with(_stream(steps=3)), "first 3 of 3 steps, found 16"),
        (_with(_stream(at=(1, 2))), "expected 16, one for each digest in head, found 2"),
        (_with(_stream(at=tuple(range(16)))), "found none"),
        (_with(_stream(numbers=locks.digest("1"))), "found one"),
        (locks.lock(evidence=Evidence()), "the evidence of validating runs in a sealed lock"),
        (replace(_PLAIN, run=replace(_PLAIN.run, runs=0)), "at least 1 validating run"),
        (locks.lock(locks.entry(key={"N": None})), "found a NoneType: encode it first"),
        (locks.lock(locks.entry(key={"N": "\ud800"})), "lone surrogate"),
        (locks.lock(locks.entry(key={"N": {"a": 1}})), "expected { none = true }"),
        (locks.lock(stack=Stack({"a": [1]}, {})), "string, number or boolean"),  # type: ignore[dict-item]
        (locks.lock(version=2), "expected at most 1"),
        (locks.lock(locks.operation()), "expected entries of triton .* found one of inductor"),
        (locks.lock(inductor=(locks.entry(),)), "expected entries of inductor"),
        (locks.lock(inductor=(locks.operation(), locks.operation())), "keep one"),
        (locks.lock(inductor=(locks.operation(""),)), "expected KIND:NAME"),
        (locks.lock(inductor=(locks.operation("gemm:"),)), "expected KIND:NAME"),
        (locks.lock(inductor=(locks.operation(config={}),)), "expected what was chosen"),
        (
            locks.lock(cublaslt=(replace(locks.problem(), kernel="mm"),)),
            "expected a problem of kernel 'matmul'",
        ),
        (
            locks.lock(cublaslt=(replace(locks.problem(), options={"a": 1}),)),
            "without source, code and options",
        ),
        (
            locks.lock(cublaslt=(replace(locks.problem(), config=locks.ALGO),)),
            "with a blob",
        ),
        (locks.lock(cublaslt=(locks.problem(blob="ab"),)), "128 hexadecimal digits"),
        (locks.lock(cublaslt=(locks.problem(splitk=1 << 32),)), "splitk: expected an integer"),
        (locks.lock(settings=(locks.setting(value={"a": 1}),)), "expected { none = true }"),
        (locks.lock(settings=(locks.setting(held="set"),)), "expected one of forced"),
        (locks.lock(settings=(locks.setting(), locks.setting(value=1))), "keep one"),
    ],
)
def test_a_lock_that_could_not_be_read_back_is_not_written(lock: Lock, says: str) -> None:
    with pytest.raises(LockError, match=says):
        dumps(lock)


def test_steps_may_have_digests_of_another_algorithm() -> None:
    stream = _stream(head=tuple(f"nh128:{number:032x}" for number in range(16)))
    assert loads(dumps(_with(stream)), "x").evidence.streams == (stream,)


def test_a_file_is_written_and_read(tmp_path: Path) -> None:
    path = tmp_path / "pinner.lock.toml"
    write_lock(path, locks.full_lock())
    assert path.read_text(encoding="utf-8") == FULL
    assert _content(read_lock(path)) == _content(locks.full_lock())


@pytest.mark.parametrize("name", ["absent.toml", "."])
def test_a_file_that_cannot_be_opened_is_a_lock_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(LockError, match="cannot read the lockfile") as caught:
        read_lock(tmp_path / name)
    assert (caught.value.source, caught.value.line) == (str(tmp_path / name), None)


def test_a_missing_file_says_what_makes_one(tmp_path: Path) -> None:
    with pytest.raises(LockError, match="`pinner record` makes one"):
        read_lock(tmp_path / "absent.toml")


def test_the_reader_does_without_the_fast_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    tomllib = pytest.importorskip("tomllib")
    monkeypatch.setattr(from_toml, "toml", tomllib)
    assert _content(loads(FULL, "x")) == _content(locks.full_lock())
    with pytest.raises(LockError, match="expected TOML"):
        loads(FULL.replace("N = 64", "N == 64"), "x")
