"""The `pinner` command: reads arguments, calls the room that does the work, prints."""

from __future__ import annotations

import argparse
import codecs
import contextlib
import io
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NoReturn

from pinner.inside import VERSION

USAGE, UNREADABLE = 64, 65
REFUSED = 96  # by `enforce`, before the work began
INTERRUPTED = 130

EXIT_CODES = """\
exit codes: 0 done · 1 bits differ · 2 nothing to compare · 3 pins broken · 4 lock refused, or
another stack · 5 the command failed · 64 usage · 65 unreadable input. `enforce` returns CMD's own
code; 96 if it refused before the work began; 97 if CMD ended with 0 but pins were broken."""

RECORD = """\
Runs CMD once and writes down what it chose, then N times in fresh processes under those choices,
and seals the lock only if these runs left the same bits. The observed run keeps your compile
caches; each validating run gets an empty TRITON_CACHE_DIR and TORCHINDUCTOR_CACHE_DIR, so that no
cache decides in the lock's place. A draft goes to FILE if nothing is there (or a draft), else to
FILE.draft.

Over a shared folder, for jobs that a scheduler starts (one pinner for each task, or one for all):
  srun pinner record --phase observe --dir SHARED -- CMD
  srun pinner record --phase validate --dir SHARED -- CMD     (at least twice)
  pinner record --phase seal --dir SHARED -o FILE"""

ENFORCE = """\
Runs CMD with the lock's choices forced. Signals go through, the exit code is CMD's. Ctrl-C reaches
CMD as it would without pinner; a second one within three seconds kills it and all it started. With
--evidence-stdout (and --verify of a lock recorded with it) CMD's standard output is a pipe."""

ENV = """\
Prints the variables by which processes that something else starts (Ray, Kubernetes, another host)
run under the lock. Their session is a new folder in DIR, which all of them must see and be able to
write. `pinner check FILE --session FOLDER` says afterwards whether the pins held."""


AUDIT = """\
Runs CMD once, observed, and says of each choice how it was made: by timing (and how near the
runner-up was: a near tie is a future flip, named first), by a heuristic, by a compile cache; which
settings are only recorded; what has no pin; and where the ranks differ. No lock is written. CMD's
own output goes to standard error, the audit to standard output. After a CMD that failed (5) it is
the audit of what had been decided by then."""


TRACE = """\
Runs CMD once as it is, then once more while writing digests of what goes on inside it, one log for
each process, to DIR. The trace is valid if both runs left the same evidence; DIR/trace.json says
so. With -l both run under the lock's choices, and where the lock has evidence the first run is not
needed. Levels, each with those before it: steps (streams, gradients, optimizer, collectives, random
states), modules, ops (each operation of the dispatcher), kernels (Triton launches, Inductor's
kernels)."""

VERIFY = """\
--runs N (the default, 2): runs CMD N times in fresh processes with empty compile caches and
compares their evidence bit for bit. Where it differs, the failing steps are run again under traces,
level by level, and the chain is printed: stream and step, module, operation, kernel.
--scale 1,2,4: runs CMD at each world size ({n} in CMD is the size) and says which step differs
first.
--resume: runs CMD whole; again until its K-th checkpoint is saved, where it is killed with SIGKILL;
and again in the same folder, where it must restore. {dir} in CMD, and PINNER_VERIFY_DIR, is that
folder: new and empty for each of the two histories. The streams after the restore are compared with
the whole run's, and what the checkpoint lacks is named. torch.save, torch.load and
torch.distributed.checkpoint are seen by themselves; pinner.checkpoint_saved(state) and
pinner.checkpoint_restored(state) say it for all else.
With -l all runs are enforced under the lock."""

COMPARE = """\
A and B: two folders of `pinner trace`, two folders of runs (--dir), or two locks with the evidence
they keep. Says where they part first, over all ranks, and how to read that. 0 only where all of
both was compared and is equal; 2 where one has no baseline, or was killed, and the rest is
equal."""


UPDATE = """\
Runs CMD under the lock and tunes only what is not in it, or does not hold any more: a config that
is not offered, a changed source, other machine code on the same stack. All else stays as it is.
Then the whole is validated by N fresh enforced runs, as `record` does, and what changed is said;
nothing is written unless these runs agree. Another stack is no update: record there."""

PRUNE = """\
Runs CMD under the lock, and removes the choices that neither it nor a run of --session used; each
is named, the others stay as they are. The lock's evidence was made with what goes: so what is left
is validated by N fresh runs of CMD, and sealed with their evidence, or nothing is written. Without
CMD nobody validates it: a draft goes to FILE.draft."""


TAX = """\
Runs both commands N times in turns, each in fresh processes, and prints the ratio of their step
times: the median over pairs, and bounds of it by order statistics. A step ends with that of the
first optimizer (without one: a fingerprint). The runs must have the same number of steps; --same
holds them to one batch. What was in force on both sides stands beside the ratio, and what the
baseline pays already is named. CMD may be `pinner enforce -- …`."""


DOCTOR = """\
Looks for what stands in the way of a run that repeats, and changes nothing: variables that are
missing, not accepted, contradictory, read by no library, or (with CMD) set too late; the stack and
the installed attention; the C compiler; and whether a lock fits. With CMD it runs that once, as it
is, and adds what was seen. Exit codes: 1 where there is more than notes, 4 where the lock does not
fit. For an image: run it in a container, with the image's Python."""

STANDARDS = """\
record NAME: runs CMD N times in fresh processes and, where they leave the same bits, writes their
series (pinner.fingerprint, optimizer steps, taps) to DIR/NAME.toml, to be reviewed and committed.
Refused in CI. A tolerance is registered by its author in that file, for one stream, with a reason.
compare NAME: runs CMD once and compares it with the standard: 0 the same bits (or within registered
tolerances), 1 not, 2 no standard yet, or none that can be compared."""


class _Usage(Exception):
    """A command line that cannot be meant."""


class _Parser(argparse.ArgumentParser):
    """Ends with the exit code for usage, and one line that names what is wrong."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        say(f"{message}; see `{self.prog} --help`")
        sys.exit(USAGE)

    def _print_message(self, message: str, file: Any = None) -> None:
        """Help for a reader who stopped reading is no fault."""
        if message:
            _put("stderr" if file is sys.stderr else "stdout", message)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    _prepare_streams()
    arguments = _arguments(list(sys.argv[1:] if argv is None else argv))
    try:
        code: int = arguments.run(arguments)
        return code
    except KeyboardInterrupt:
        return _failed(arguments, INTERRUPTED, "interrupted", "interrupted")
    except _Usage as error:
        say(f"{error}; see `pinner {arguments.command} --help`")
        return USAGE
    except OSError as error:
        place = f": {error.filename}" if error.filename else ""
        code = REFUSED if arguments.command == "enforce" else UNREADABLE
        return _failed(arguments, code, _STATUS[code], f"{error.strerror or error}{place}")
    except Exception as error:
        known = _known(error, arguments.command)
        if known is None:
            raise
        return _failed(arguments, known, _STATUS[known], str(error))


_STATUS = {USAGE: "usage", UNREADABLE: "unreadable", REFUSED: "refused"}


def _failed(arguments: argparse.Namespace, code: int, status: str, text: str) -> int:
    """Says why there is no outcome, to programs too; a wrong command line is for people alone."""
    say(text)
    if status != _STATUS[USAGE]:
        _print_json(arguments, lambda: {"exit": code, "status": status, "text": text})
    return code


def say(text: str) -> None:
    """Prints to standard error; every line says who is talking. Never fails: nobody may listen,
    and the command's work goes on all the same."""
    lines = [f"pinner: {line}\n" for line in text.splitlines() or [""]]
    _put("stderr", "".join(lines))


def _print(text: str) -> bool:
    """Prints to standard output; False where it did not arrive, for whom that is all the work.

    What a command found stands by then, so this changes no exit code of a verdict. A reader who
    stopped reading wanted no more.
    """
    error = _put("stdout", text + "\n")
    if error is None or isinstance(error, BrokenPipeError):
        return True
    say(f"cannot write to standard output: {error.strerror or error}")
    return False


def _put(name: Literal["stdout", "stderr"], text: str) -> OSError | None:
    """Writes to a standard stream; returns why it could not be written."""
    stream = getattr(sys, name)
    try:
        stream.write(text)
        stream.flush()
    except OSError as error:
        # What is left in the buffer would fail again when Python ends, and become its exit code.
        with contextlib.suppress(OSError):
            setattr(sys, name, _text_stream(stream.fileno(), stream.encoding))
        return error
    return None


def _text_stream(descriptor: int, encoding: str) -> io.TextIOWrapper:
    return open(descriptor, "w", encoding=encoding, errors=_ERRORS, closefd=False)


_ERRORS = "pinner-as-it-came"


def _as_it_came(error: UnicodeError) -> tuple[str | bytes, int]:
    """Bytes of a name that is no text stay these bytes; other characters become escapes."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    number = ord(error.object[error.start])
    if 0xDC80 <= number <= 0xDCFF:
        return bytes([number - 0xDC00]), error.start + 1
    one = UnicodeEncodeError(
        error.encoding, error.object, error.start, error.start + 1, error.reason
    )
    return codecs.backslashreplace_errors(one)


def _prepare_streams() -> None:
    """Makes the standard streams ones that can be printed to, whatever pinner was started with.

    A descriptor that is closed is held, so that no file that pinner opens gets its number and is
    written to by the command. It is not inherited: the command finds it closed, as without pinner.
    """
    codecs.register_error(_ERRORS, _as_it_came)
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            _hold(descriptor)
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, _text_stream(number, "utf-8"))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_ERRORS)


def _hold(descriptor: int) -> None:
    opened = os.open(os.devnull, os.O_RDWR)
    if opened != descriptor:
        os.dup2(opened, descriptor, inheritable=False)
        os.close(opened)


def _known(error: Exception, command: str) -> int | None:
    """The exit code for an error that is no bug; None for one that is."""
    from pinner.launch.phases import NameNeeded
    from pinner.launch.session_dir import SessionError, SessionTaken
    from pinner.launch.taps import TapError
    from pinner.lockfile.errors import LedgerError, LockError
    from pinner.policy.rules import ProfileError

    if isinstance(error, NameNeeded):
        return USAGE
    if not isinstance(error, (SessionError, TapError, ProfileError, LedgerError, LockError)):
        return None
    if command == "enforce":
        return REFUSED
    return USAGE if isinstance(error, SessionTaken) else UNREADABLE


def _record(arguments: argparse.Namespace) -> int:
    from pinner.launch import phases, record
    from pinner.policy import apply

    _refuse_obstacles(arguments)
    sealing = arguments.phase == "seal"
    if sealing and arguments.cmd:
        raise _Usage("--phase seal runs nothing: expected no command after `--`")
    if arguments.phase and not arguments.dir:
        raise _Usage("--phase needs the folder that its launchers share: --dir SHARED")
    if not arguments.phase and (arguments.fresh or arguments.run_name):
        raise _Usage("--fresh and --run-name belong to --phase")
    if sealing and (arguments.profile or arguments.role):
        raise _Usage("--phase seal runs nothing: --profile and --role belong to the other phases")
    _check_out(arguments.out)
    job = _job(arguments, () if sealing else _command(arguments))
    try:
        policy = _policy(arguments)
    except apply.PolicyRefused as error:
        return _failed(arguments, USAGE, "refused", str(error))
    if policy is not None:
        for line in policy.lines():
            say(line)
        job = replace(job, policy=policy.settings())
    options = record.Options(
        job=job,
        out=arguments.out,
        runs=arguments.runs,
        on_conflict=arguments.on_conflict,
        expect=arguments.expect,
        folder=arguments.dir,
    )
    if arguments.phase:
        shared = phases.Shared(options, arguments.dir, arguments.run_name, arguments.fresh)
        outcome = phases.run_phase(arguments.phase, shared, os.environ, say)
    else:
        outcome = record.record(options, os.environ, say)
    if policy is not None:
        outcome = replace(outcome, details={**outcome.details, "policy": policy.as_json()})
    say(outcome.told or outcome.text)
    _print_json(arguments, outcome.to_json)
    return outcome.exit


def _policy(arguments: argparse.Namespace) -> Any:
    """The profile that was asked for, judged here; None without one. Raises `PolicyRefused`."""
    from pinner.policy import apply

    if arguments.profile is None:
        if arguments.role is not None:
            raise _Usage("--role chooses among a profile's rules: name the profile with --profile")
        return None
    return apply.policy_of(arguments.profile, arguments.role, os.environ)


def _enforce(arguments: argparse.Namespace) -> int:
    from pinner.launch import enforce

    options = enforce.Options(
        job=_job(arguments, _command(arguments)),
        lock=arguments.lock,
        on_miss=arguments.on_miss,
        allow=tuple(arguments.allow),
        allow_draft=arguments.allow_draft,
        verify=arguments.verify,
        report=arguments.report,
        expect=arguments.expect,
        folder=arguments.dir,
        agree=arguments.agree,
    )
    outcome = enforce.enforce(options, os.environ, say)
    for line in outcome.lines:
        if line not in outcome.said:
            say(line)
    _print_json(arguments, outcome.to_json)
    return outcome.exit


def _env(arguments: argparse.Namespace) -> int:
    from pinner.launch import enforce, environment

    _no_command(arguments)
    try:
        lock, digest = enforce.load(
            arguments.lock, allow_draft=arguments.allow_draft, allow=arguments.allow
        )
        enforce.check_watched(lock, arguments.cublaslt)
        policy = environment.role_policy(
            lock, os.environ, arguments.allow, role=arguments.role, profile=arguments.profile
        )
    except enforce.LockRefused as error:
        return _failed(arguments, 4, "refused", str(error))
    made = environment.elsewhere(
        lock,
        digest,
        arguments.dir or environment.default_folder(arguments.lock, os.environ),
        os.environ,
        on_miss=arguments.on_miss,
        allow=arguments.allow,
        evidence=arguments.verify,
        cublaslt=arguments.cublaslt,
        policy=policy,
    )
    text = _json(made.to_json()) if arguments.json else made.shell()
    return 0 if _print(text) else UNREADABLE


def _show(arguments: argparse.Namespace) -> int:
    from pinner.lockfile import show
    from pinner.lockfile.codec import read_lock

    _no_command(arguments)
    if arguments.textconv:
        return _textconv(arguments.lock)
    lock = read_lock(arguments.lock)
    if arguments.tunableop:
        return _tunableop(lock.cublaslt)
    text = _json(show.as_json(lock)) if arguments.json else show.show(lock)
    return 0 if _print(text) else UNREADABLE


def _textconv(path: Path) -> int:
    """For git, which shows no diff at all where this fails: a file that is no lock as it is."""
    from pinner.lockfile.codec import read_lock
    from pinner.lockfile.errors import LockError
    from pinner.lockfile.review import review_text

    try:
        text = review_text(read_lock(path))
    except LockError as error:
        text = f"not a lock: {error}\n{path.read_text(encoding='utf-8', errors='replace')}"
    return 0 if _print(text.removesuffix("\n")) else UNREADABLE


def _tunableop(entries: Sequence[Any]) -> int:
    from pinner.lockfile.tunableop import rows_of

    found = rows_of(entries)
    for why in found.left_out:
        say(f"no row for {why}")
    return 0 if _print("\n".join(found.rows)) else UNREADABLE


def _check(arguments: argparse.Namespace) -> int:
    from pinner.launch import check

    if arguments.session is not None:
        _no_command(arguments)
        found = check.check_session(arguments.lock, arguments.session, arguments.expect)
    else:
        found = check.check(
            arguments.lock,
            arguments.cmd or (),
            os.environ,
            look_at_stack=not arguments.no_stack,
        )
    if arguments.json:
        _print_json(arguments, found.to_json)
    else:
        _print("\n".join(found.lines))
    return found.exit


def _diff(arguments: argparse.Namespace) -> int:
    from pinner.lockfile.codec import read_lock
    from pinner.lockfile.diff import diff_locks

    _no_command(arguments)
    diff = diff_locks(read_lock(arguments.a), read_lock(arguments.b))
    if arguments.json:
        _print_json(arguments, diff.as_json)
    else:
        _print(diff.text(str(arguments.a), str(arguments.b)))
    return 0 if diff.empty else 1


def _compare(arguments: argparse.Namespace) -> int:
    from pinner.launch import comparing

    _no_command(arguments)
    options = comparing.Options(jobs=arguments.jobs or comparing.default_jobs())
    outcome = comparing.compare(arguments.a, arguments.b, options, say)
    if outcome.exit == UNREADABLE:
        return _failed(arguments, UNREADABLE, _STATUS[UNREADABLE], outcome.text)
    printed = _print(_json(outcome.to_json()) if arguments.json else outcome.text)
    return outcome.exit or (0 if printed else UNREADABLE)


def _merge(arguments: argparse.Namespace) -> int:
    from pinner.launch.merging import merge_folders

    _no_command(arguments)
    outcome = merge_folders(arguments.folder, arguments.out, arguments.on_conflict)
    say(outcome.text)
    _print_json(arguments, outcome.to_json)
    return outcome.exit


def _prune(arguments: argparse.Namespace) -> int:
    from pinner.launch import pruning

    if arguments.cmd is None and not arguments.session:
        raise _Usage("expected a command after `--`, or folders of runs with --session")
    _refuse_obstacles(arguments)
    command = () if arguments.cmd is None else _command(arguments)
    options = pruning.Options(
        _resealing(arguments, command), tuple(arguments.session), arguments.dry_run
    )
    outcome = pruning.prune(options, os.environ, say)
    say(outcome.told or outcome.text)
    _print_json(arguments, outcome.to_json)
    return outcome.exit


def _update(arguments: argparse.Namespace) -> int:
    from pinner.launch import updating

    _refuse_obstacles(arguments)
    resealing = _resealing(arguments, _command(arguments))
    recording = replace(resealing, on_conflict=arguments.on_conflict)
    outcome = updating.update(updating.Options(recording, arguments.draft), os.environ, say)
    say(outcome.told or outcome.text)
    _print_json(arguments, outcome.to_json)
    return outcome.exit


def _resealing(arguments: argparse.Namespace, command: Sequence[str]) -> Any:
    """How a lock that changes is validated, and written in its own place."""
    from pinner.launch import record

    _check_out(arguments.lock)
    return record.Options(
        job=_job(arguments, command),
        out=arguments.lock,
        runs=arguments.runs,
        expect=arguments.expect,
        folder=arguments.dir,
    )


def _audit(arguments: argparse.Namespace) -> int:
    from pinner.launch import auditing
    from pinner.launch.one_run import Job

    _refuse_obstacles(arguments)
    options = auditing.Options(
        job=Job(argv=tuple(_command(arguments)), cublaslt=arguments.cublaslt, output=2),
        expect=arguments.expect,
        folder=arguments.dir,
    )
    outcome = auditing.run_audit(options, os.environ, say)
    printed = True
    if arguments.json:
        printed = _print(_json(outcome.to_json()))
    elif outcome.audit is not None:
        printed = _print(outcome.audit.text())
    if outcome.text:
        say(outcome.text)
    return outcome.exit or (0 if printed else UNREADABLE)


def _tax(arguments: argparse.Namespace) -> int:
    from pinner.launch import taxing

    _no_command(arguments)
    options = taxing.Options(
        _words(arguments.baseline, "--baseline"),
        _words(arguments.deterministic, "--deterministic"),
        runs=arguments.runs,
        warmup=arguments.warmup,
        same=tuple(arguments.same),
    )
    outcome = taxing.measure(options, os.environ, say)
    if outcome.exit:
        return _failed(arguments, outcome.exit, outcome.status, "\n".join(outcome.lines))
    text = _json(outcome.to_json()) if arguments.json else "\n".join(outcome.lines)
    return 0 if _print(text) else UNREADABLE


def _words(command: str, option: str) -> tuple[str, ...]:
    """A command that an option holds as one text."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise _Usage(f"{option}: {error}") from None
    if not words:
        raise _Usage(f"{option}: expected a command, found none")
    return tuple(words)


def _doctor(arguments: argparse.Namespace) -> int:
    from pinner.launch import doctoring
    from pinner.launch.one_run import Job

    if arguments.cmd is not None:
        _refuse_obstacles(arguments)
    command = () if arguments.cmd is None else tuple(_command(arguments))
    lock = arguments.lock or (_DEFAULT if _DEFAULT.exists() else None)
    options = doctoring.Options(
        job=Job(argv=command, cublaslt=arguments.cublaslt, output=2),
        profile=arguments.profile,
        role=arguments.role,
        lock=lock,
    )
    outcome = doctoring.examine(options, os.environ, say)
    printed = _print(_json(outcome.to_json()) if arguments.json else outcome.text)
    if outcome.failed:
        say(outcome.failed)
    return outcome.exit or (0 if printed else UNREADABLE)


def _trace(arguments: argparse.Namespace) -> int:
    from pinner.launch import enforce, tracing

    _refuse_obstacles(arguments)
    _check_keeping(arguments)
    first, last = arguments.from_step, arguments.to_step
    if first is not None and last is not None and first > last:
        raise _Usage(f"no step lies from {first} to {last}: exchange --from-step and --to-step")
    if arguments.modules is not None and arguments.level == "steps":
        raise _Usage("--level steps holds no modules: leave --modules out, or look deeper")
    if arguments.keep_bytes and arguments.defer:
        raise _Usage("--keep-bytes reads every tensor at once: leave --defer out")
    options = tracing.Options(
        job=_job(arguments, _command(arguments)),
        out=arguments.out,
        level=arguments.level,
        first=arguments.from_step,
        last=arguments.to_step,
        modules=arguments.modules,
        lock=arguments.lock,
        check=not arguments.no_check,
        defer=arguments.defer,
        keep=arguments.keep_limit if arguments.keep_bytes else None,
        expect=arguments.expect,
    )
    try:
        outcome = tracing.trace(options, os.environ, say)
    except enforce.LockRefused as error:
        return _failed(arguments, 4, "refused", str(error))
    say(outcome.text)
    _print_json(arguments, outcome.to_json)
    return outcome.exit


def _verify(arguments: argparse.Namespace) -> int:
    from pinner.launch import verify, verify_resume
    from pinner.launch.verify_run import Asked

    _refuse_obstacles(arguments)
    _check_verify(arguments)
    asked = Asked(
        job=_job(arguments, _command(arguments)),
        lock=arguments.lock,
        allow=tuple(arguments.allow),
        allow_draft=arguments.allow_draft,
        expect=arguments.expect,
        folder=arguments.dir,
    )
    if arguments.resume:
        restore_with = tuple(shlex.split(arguments.restore_with or ""))
        resuming = verify_resume.Options(asked, arguments.at or 1, restore_with)
        outcome = verify_resume.verify(resuming, os.environ, say)
    elif arguments.scale:
        outcome = verify.scale(asked, arguments.scale, os.environ, say)
    else:
        options = verify.Options(
            asked,
            arguments.runs or 2,
            chase=not arguments.no_trace,
            tries=arguments.tries,
            keep=arguments.keep_limit if arguments.keep_bytes else None,
        )
        outcome = verify.verify(options, os.environ, say)
    say(outcome.text)
    _print_json(arguments, outcome.to_json)
    return outcome.exit


def _standards(arguments: argparse.Namespace) -> int:
    from pinner.launch import standards
    from pinner.launch.verify_run import Asked
    from pinner.standards.form import NAME

    _refuse_obstacles(arguments)
    if not NAME.fullmatch(arguments.name):
        raise _Usage(f"expected a name of letters, digits, '.', '_', '-', found {arguments.name!r}")
    recording = arguments.action == "record"
    if not recording and (arguments.runs or arguments.streams or arguments.replace):
        raise _Usage("--runs, --streams and --replace belong to `standards record`")
    asked = Asked(
        job=_job(arguments, _command(arguments)),
        lock=arguments.lock,
        allow=tuple(arguments.allow),
        expect=arguments.expect,
        folder=arguments.dir,
    )
    options = standards.Options(
        asked,
        arguments.name,
        folder=arguments.standards,
        runs=arguments.runs or 2,
        streams=arguments.streams,
        replaces=arguments.replace,
    )
    make = standards.record if recording else standards.compare
    outcome = make(options, os.environ, say)
    say(outcome.text)
    _print_json(arguments, outcome.to_json)
    return outcome.exit


def _check_verify(arguments: argparse.Namespace) -> None:
    """Refuses options that mean nothing beside each other."""
    if not arguments.resume and (arguments.at or arguments.restore_with):
        raise _Usage("--at and --restore-with belong to --resume")
    _check_keeping(arguments)
    if arguments.keep_bytes and (arguments.resume or arguments.scale or arguments.no_trace):
        raise _Usage("--keep-bytes belongs to the traces that follow a divergence of --runs")
    if arguments.scale and not any("{n}" in word for word in arguments.cmd or ()):
        raise _Usage("--scale needs the place of the world size in the command: {n}")


def _check_keeping(arguments: argparse.Namespace) -> None:
    if arguments.keep_limit is None:
        arguments.keep_limit = _KEEP_LIMIT
    elif not arguments.keep_bytes:
        raise _Usage("--keep-limit belongs to --keep-bytes")


def _job(arguments: argparse.Namespace, command: Sequence[str]) -> Any:
    from pinner.launch.one_run import Job
    from pinner.launch.outside import OutsideEvidence

    return Job(
        argv=tuple(command),
        outside=OutsideEvidence(tuple(arguments.evidence_file), tuple(arguments.evidence_stdout)),
        taps=tuple(arguments.tap),
        cublaslt=arguments.cublaslt,
        output=2 if arguments.json else None,
    )


def _arguments(words: list[str]) -> argparse.Namespace:
    """What the command line says. Ends the process where it says nothing that can be meant."""
    words, command = _split(words)
    parser = _parser()
    arguments, rest = parser.parse_known_args(words)
    arguments.cmd = command
    if rest and command is None and arguments.command in _RUNS and not rest[0].startswith("-"):
        parser.error(
            f"put `--` before the command: pinner {arguments.command} [options] -- "
            f"{shlex.join(rest)}"
        )
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return arguments


_RUNS = (
    "record",
    "enforce",
    "update",
    "prune",
    "audit",
    "doctor",
    "trace",
    "verify",
    "standards",
)


def _split(words: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """pinner's own arguments, and the command after the first `--`; None where there is no `--`."""
    if "--" not in words:
        return list(words), None
    place = list(words).index("--")
    return list(words[:place]), list(words[place + 1 :])


def _command(arguments: argparse.Namespace) -> list[str]:
    command: list[str] | None = arguments.cmd
    if not command:
        raise _Usage("expected the command to run after `--`, found none")
    return command


def _refuse_obstacles(arguments: argparse.Namespace) -> None:
    """A command of which no process could take part is told so before it runs for hours."""
    from pinner.launch.command_line import obstacles

    for obstacle in obstacles(arguments.cmd or ()):
        if obstacle.certain:
            raise _Usage(f"the command cannot be observed: {obstacle.text}")


def _check_out(out: Path) -> None:
    """A lock that cannot be written is told before the runs, not after them."""
    folder = out.absolute().parent
    if not os.access(folder, os.W_OK | os.X_OK) or out.is_dir():
        raise _Usage(f"-o {out}: expected a file in a folder that can be written")


def _no_command(arguments: argparse.Namespace) -> None:
    if arguments.cmd is not None:
        raise _Usage(f"{arguments.command} runs nothing: expected no `--`")


def _print_json(arguments: argparse.Namespace, value: Callable[[], Any]) -> None:
    if arguments.json:
        _print(_json(value()))


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, sort_keys=True)


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not re.fullmatch(r"\d+", text) or int(text) < least:
            raise argparse.ArgumentTypeError(
                f"expected a number of at least {least}, found {text!r}"
            )
        return int(text)

    return number


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise argparse.ArgumentTypeError(f"expected a number of seconds, found {text!r}")
    return seconds


def _expression(text: str) -> str:
    try:
        re.compile(text.encode())
    except re.error as error:
        raise argparse.ArgumentTypeError(f"not a regular expression: {text!r}: {error}") from None
    return text


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="pinner",
        description="Writes down the run-time choices of a deterministic run, and forces them.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"pinner {VERSION}")
    commands = parser.add_subparsers(
        title="commands", dest="command", required=True, metavar="COMMAND", parser_class=_Parser
    )
    _add_record(_add(commands, "record", _record, "record a lock from runs of CMD", RECORD))
    _add_enforce(_add(commands, "enforce", _enforce, "run CMD under a lock", ENFORCE))
    _add_env(_add(commands, "env", _env, "print the variables for launchers elsewhere", ENV))
    show = _add(commands, "show", _show, "show what is in a lock")
    show.add_argument("lock", metavar="LOCK", nargs="?", type=Path, default=_DEFAULT)
    show.add_argument(
        "--tunableop",
        action="store_true",
        help="cuBLASLt's choices as rows of PyTorch's TunableOp file (torch 2.14; format only)",
    )
    show.add_argument(
        "--textconv", action="store_true", help="as text for `git diff` (docs/lockfile.md)"
    )
    _add_check(_add(commands, "check", _check, "check a lock, and whether it fits a stack"))
    diff = _add(commands, "diff", _diff, "say how two locks differ")
    diff.add_argument("a", metavar="A", type=Path)
    diff.add_argument("b", metavar="B", type=Path)
    _add_audit(_add(commands, "audit", _audit, "say how a run makes its choices", AUDIT))
    _add_tax(_add(commands, "tax", _tax, "say what determinism costs", TAX))
    _add_doctor(_add(commands, "doctor", _doctor, "say what keeps a run from repeating", DOCTOR))
    _add_trace(_add(commands, "trace", _trace, "write down what goes on inside a run", TRACE))
    _add_verify(_add(commands, "verify", _verify, "show that runs repeat bit for bit", VERIFY))
    _add_standards(
        _add(commands, "standards", _standards, "record a recipe's series, or compare", STANDARDS)
    )
    compare = _add(commands, "compare", _compare, "say where two runs part first", COMPARE)
    compare.add_argument("a", metavar="A", type=Path)
    compare.add_argument("b", metavar="B", type=Path)
    compare.add_argument(
        "--jobs", metavar="N", type=_at_least(1), help="ranks at one time (default: one a core)"
    )
    _add_update(_add(commands, "update", _update, "record anew what a lock lacks", UPDATE))
    _add_prune(_add(commands, "prune", _prune, "remove choices that no run uses", PRUNE))
    merge = _add(commands, "merge", _merge, "make a draft lock from folders of ledgers")
    merge.add_argument("folder", metavar="DIR", nargs="+", type=Path)
    _add_out(merge)
    return parser


_DEFAULT = Path("pinner.lock.toml")


def _add(
    commands: Any,
    name: str,
    run: Callable[[argparse.Namespace], int],
    summary: str,
    description: str | None = None,
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=description or summary[0].upper() + summary[1:] + ".",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage=_USAGES.get(name),
    )
    parser.set_defaults(run=run)
    parser.add_argument(
        "--json",
        action="store_true",
        help="one object on standard output; all else, CMD's output too, goes to standard error",
    )
    return parser


_USAGES = {
    "record": "pinner record [options] -- CMD",
    "enforce": "pinner enforce [options] -- CMD",
    "update": "pinner update [options] -- CMD",
    "prune": "pinner prune [options] -- CMD",
    "tax": "pinner tax --baseline CMD --deterministic CMD [options]",
    "audit": "pinner audit [options] -- CMD",
    "doctor": "pinner doctor [options] [-- CMD]",
    "trace": "pinner trace -o DIR [options] -- CMD",
    "verify": "pinner verify [--runs N | --scale 1,2,4 | --resume] [options] -- CMD",
    "check": "pinner check LOCK [options] [-- PYTHON]",
    "standards": "pinner standards record|compare NAME [options] -- CMD",
}


def _add_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--out", metavar="FILE", type=Path, default=_DEFAULT)
    _add_on_conflict(parser)


def _add_on_conflict(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--on-conflict",
        choices=("fastest", "rank0", "fail"),
        default="fastest",
        help="which config stands for a key that ranks decided differently (default: fastest)",
    )


def _add_evidence(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--evidence-file",
        metavar="GLOB",
        action="append",
        default=[],
        help="files that CMD writes are evidence (relative to here; may be given again)",
    )
    parser.add_argument(
        "--evidence-stdout",
        metavar="REGEX",
        action="append",
        default=[],
        type=_expression,
        help="matches in CMD's standard output are evidence: the first group, or all",
    )
    parser.add_argument(
        "--tap",
        metavar="FILE",
        action="append",
        default=[],
        help="metric taps: a TOML file, or the name of one that ships with pinner",
    )
    _add_expect(parser)


def _add_expect(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--expect", metavar="N", type=_at_least(1), help="how many ranks must take part here"
    )


def _add_cublaslt(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cublaslt",
        choices=("auto", "on", "off"),
        default="auto",
        help="watch cuBLASLt: where it can be (auto, the default), or else refuse (on), or never",
    )


def _add_record(parser: argparse.ArgumentParser) -> None:
    _add_out(parser)
    parser.add_argument(
        "--runs", metavar="N", type=_at_least(2), default=2, help="validating runs (default: 2)"
    )
    _add_profile(parser, "what variables and switches may be: a TOML file, or one of pinner's own")
    _add_evidence(parser)
    _add_cublaslt(parser)
    _add_dir(parser, "the runs' folders stay")
    parser.add_argument("--phase", choices=("observe", "validate", "seal"))
    parser.add_argument(
        "--run-name",
        metavar="NAME",
        help="what the launchers of one run call it (default: Slurm's)",
    )
    parser.add_argument(
        "--fresh", action="store_true", help="put an earlier observed run in SHARED aside"
    )


def _add_dir(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--dir", metavar="DIR", type=Path, help=f"where {what} (default: nowhere)")


def _add_resealing(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-l", "--lock", metavar="FILE", type=Path, default=_DEFAULT)
    parser.add_argument(
        "--runs", metavar="N", type=_at_least(2), default=2, help="validating runs (default: 2)"
    )
    _add_evidence(parser)
    _add_cublaslt(parser)
    _add_dir(parser, "the runs' folders stay")


def _add_update(parser: argparse.ArgumentParser) -> None:
    _add_resealing(parser)
    _add_on_conflict(parser)
    parser.add_argument(
        "--draft", action="store_true", help="keep what cannot be sealed, as FILE.draft"
    )


def _add_prune(parser: argparse.ArgumentParser) -> None:
    _add_resealing(parser)
    parser.add_argument("--dry-run", action="store_true", help="only say what would go")
    parser.add_argument(
        "--session",
        metavar="DIR",
        action="append",
        default=[],
        type=Path,
        help="what this run used stays, too: a folder of `enforce --dir` (may be given again)",
    )


def _add_profile(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--profile", metavar="NAME", help=text)
    parser.add_argument(
        "--role", choices=("trainer", "rollout"), help="whose rules of the profile hold"
    )


def _add_lock(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-l", "--lock", metavar="FILE", type=Path, default=_DEFAULT)
    parser.add_argument(
        "--on-miss",
        choices=("fallback", "error", "tune"),
        default="fallback",
        help="what becomes of a key that is not locked (tune: in one process only)",
    )
    parser.add_argument(
        "--allow",
        metavar="FIELD",
        action="append",
        default=[],
        help="a hard fact of the stack that may differ (may be given again)",
    )
    parser.add_argument("--allow-draft", action="store_true", help="take a lock that is not sealed")
    parser.add_argument(
        "--verify", action="store_true", help="compare evidence with the lock's at the same steps"
    )
    _add_cublaslt(parser)


def _add_enforce(parser: argparse.ArgumentParser) -> None:
    _add_lock(parser)
    _add_evidence(parser)
    parser.add_argument("--report", metavar="FILE", type=Path, help="write the coverage as JSON")
    parser.add_argument(
        "--agree",
        metavar="SECONDS",
        type=_seconds,
        nargs="?",
        const=120.0,
        help="ranks compare lock, pins, profile and stack in init_process_group; all of them end "
        "within SECONDS (default: 120) where one differs or is not there",
    )
    _add_dir(parser, "the run's folder stays")


def _add_audit(parser: argparse.ArgumentParser) -> None:
    _add_cublaslt(parser)
    _add_expect(parser)
    _add_dir(parser, "the run's folder stays")


def _add_tax(parser: argparse.ArgumentParser) -> None:
    for name in ("--baseline", "--deterministic"):
        parser.add_argument(name, metavar="CMD", required=True, help="one text, quoted")
    parser.add_argument(
        "--runs", metavar="N", type=_at_least(1), default=6, help="of each command (default: 6)"
    )
    parser.add_argument(
        "--warmup", metavar="N", type=_at_least(0), default=3, help="steps dropped (default: 3)"
    )
    parser.add_argument(
        "--same",
        metavar="STREAM",
        action="append",
        default=[],
        help="whose first value must be equal in all runs, such as the batch (may be given again)",
    )


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    _add_profile(parser, "whose rules hold (default: the lock's, else deterministic)")
    parser.add_argument(
        "-l", "--lock", metavar="FILE", type=Path, help=f"default: {_DEFAULT}, where there is one"
    )
    _add_cublaslt(parser)


def _add_trace(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o", "--out", metavar="DIR", type=Path, required=True, help="a new or empty folder"
    )
    parser.add_argument(
        "--level",
        choices=("steps", "modules", "ops", "kernels"),
        default="ops",
        help="how deep to look (default: ops)",
    )
    parser.add_argument("--from-step", metavar="N", type=_at_least(0), help="the first step traced")
    parser.add_argument("--to-step", metavar="N", type=_at_least(0), help="the last step traced")
    parser.add_argument(
        "--modules", metavar="REGEX", type=_expression, help="only modules whose path matches"
    )
    parser.add_argument("-l", "--lock", metavar="FILE", type=Path, help="run under this lock")
    parser.add_argument(
        "--no-check", action="store_true", help="no untraced run: whether the trace counts is open"
    )
    parser.add_argument(
        "--defer",
        action="store_true",
        help="read the digests of tensors on a GPU when the step ends, not one by one",
    )
    _add_keeping(parser, "keep the tensors of the window, too, for `pinner compare` to look into")
    _add_cublaslt(parser)
    _add_evidence(parser)


def _add_verify(parser: argparse.ArgumentParser) -> None:
    way = parser.add_mutually_exclusive_group()
    way.add_argument(
        "--runs", metavar="N", type=_at_least(2), help="how many independent runs (default: 2)"
    )
    way.add_argument(
        "--scale", metavar="N,N…", type=_sizes, help="compare world sizes; {n} in CMD is the size"
    )
    way.add_argument(
        "--resume", action="store_true", help="compare with a run that was killed and restored"
    )
    parser.add_argument(
        "--at", metavar="K", type=_at_least(1), help="the checkpoint to go on from (default: 1)"
    )
    parser.add_argument(
        "--restore-with", metavar="CMD", help="the command that restores, where it is another one"
    )
    parser.add_argument(
        "--no-trace", action="store_true", help="do not follow a divergence to its operation"
    )
    parser.add_argument(
        "--tries",
        metavar="K",
        type=_at_least(1),
        default=3,
        help="pairs of traced runs until a divergence counts as lost (default: 3)",
    )
    _add_keeping(parser, "keep the tensors of the failing step, and say which elements differ")
    parser.add_argument("-l", "--lock", metavar="FILE", type=Path, help="run under this lock")
    parser.add_argument(
        "--allow",
        metavar="FIELD",
        action="append",
        default=[],
        help="a hard fact of the stack that may differ (may be given again)",
    )
    parser.add_argument("--allow-draft", action="store_true", help="take a lock that is not sealed")
    _add_cublaslt(parser)
    _add_evidence(parser)
    _add_dir(parser, "the runs' folders stay")


def _add_standards(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("record", "compare"))
    parser.add_argument("name", metavar="NAME")
    parser.add_argument(
        "--standards",
        metavar="DIR",
        type=Path,
        default=Path("standards"),
        help="the folder of the standards (default: standards)",
    )
    parser.add_argument(
        "--runs", metavar="N", type=_at_least(2), help="recording runs that must agree (default: 2)"
    )
    parser.add_argument(
        "--streams", metavar="REGEX", type=_expression, help="record only streams that match"
    )
    parser.add_argument(
        "--replace", action="store_true", help="record anew what is there; its tolerances stay"
    )
    parser.add_argument("-l", "--lock", metavar="FILE", type=Path, help="run under this lock")
    parser.add_argument(
        "--allow",
        metavar="FIELD",
        action="append",
        default=[],
        help="a hard fact of the lock's stack that may differ (may be given again)",
    )
    _add_cublaslt(parser)
    _add_evidence(parser)
    _add_dir(parser, "the runs' folders stay")


_KEEP_LIMIT = 2 << 30
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def _add_keeping(parser: argparse.ArgumentParser, purpose: str) -> None:
    parser.add_argument("--keep-bytes", action="store_true", help=purpose)
    parser.add_argument(
        "--keep-limit",
        metavar="BYTES",
        type=_bytes,
        help="how much of the disk they may take for each rank, such as 500M (default: 2G)",
    )


def _bytes(text: str) -> int:
    found = re.fullmatch(r"([1-9]\d*)([KMGT]?)(i?B)?", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"expected a size such as 500M or 2G, found {text!r}")
    return int(found[1]) * _UNITS[found[2]]


def _sizes(text: str) -> list[int]:
    if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)+", text):
        raise argparse.ArgumentTypeError(f"expected world sizes such as 1,2,4, found {text!r}")
    return [int(word) for word in text.split(",")]


def _add_env(parser: argparse.ArgumentParser) -> None:
    _add_lock(parser)
    _add_profile(parser, "the file of the lock's profile, for another role than the lock's")
    parser.add_argument(
        "--dir", metavar="DIR", type=Path, help="default: $PINNER_DIR, or .pinner beside the lock"
    )


def _add_check(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("lock", metavar="LOCK", nargs="?", type=Path, default=_DEFAULT)
    parser.add_argument(
        "--no-stack", action="store_true", help="only whether it is whole and sealed"
    )
    parser.add_argument(
        "--session", metavar="FOLDER", type=Path, help="judge what ran with `pinner env` variables"
    )
    parser.add_argument("--expect", metavar="N", type=_at_least(1), help=argparse.SUPPRESS)
