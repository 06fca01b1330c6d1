"""Runs Python programs in forks of a process that has imported torch and done nothing with it.

One line of JSON on standard input for each: {"cwd", "argv", "environ", "unset", "log", "stdout"};
one on standard output when it has ended: its exit code. A session among the variables is begun as
the injection would have.
"""

import atexit
import json
import os
import runpy
import sys
import traceback
from pathlib import Path

import torch
import torch._dynamo  # noqa: F401 - a dispatch mode wants it: what the forks need not wait for


def main():
    for line in sys.stdin:
        asked = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _child(asked)
        _, status = os.waitpid(pid, 0)
        print(json.dumps(os.waitstatus_to_exitcode(status)), flush=True)


def _child(asked):
    code = 0
    try:
        os.chdir(asked["cwd"])
        _redirect(asked["stdout"], asked["log"])
        for name in asked["unset"]:
            os.environ.pop(name, None)
        os.environ.update(asked["environ"])
        if "PINNER_SESSION" in os.environ:
            from pinner.inside import start

            start.begin(os.environ)
        _run(asked["argv"])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _redirect(stdout, log):
    """Standard output to its file and both to the log, as far as a test looks: not interleaved."""
    out = os.open(stdout, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    err = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(out, 1)
    os.dup2(err, 2)


def _run(argv):
    if argv[0] == "-c":
        sys.argv = ["-c", *argv[2:]]
        sys.path.insert(0, "")
        exec(compile(argv[1], "<string>", "exec"), {"__name__": "__main__"})
        return
    sys.argv = argv
    sys.path.insert(0, str(Path(argv[0]).resolve().parent))
    runpy.run_path(argv[0], run_name="__main__")


main()
