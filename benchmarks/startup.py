"""Start-up of Python under injection, and `import pinner`, against a bare start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import pairs
from pinner import shipped

ROUNDS = 30


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        session = Path(folder)
        for name in ("ledger", "faults"):
            (session / name).mkdir()
        (session / "session.json").write_text(json.dumps({"version": 1, "mode": "observe"}))
        bare = {k: v for k, v in os.environ.items() if not k.startswith("PINNER_")}
        bare.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed pinner has its byte code
        path = os.pathsep.join([str(shipped.inject_dir()), bare.get("PYTHONPATH", "")])
        injected = dict(bare, PYTHONPATH=path.rstrip(os.pathsep), PINNER_SESSION=str(session))

        def start(environment: dict[str, str], code: str) -> None:
            subprocess.run([sys.executable, "-c", code], env=environment, check=True)

        print("a Python process that does nothing else")
        pairs.report(
            pairs.in_turn(
                {
                    "bare": lambda: start(bare, "pass"),
                    "under injection": lambda: start(injected, "pass"),
                    "bare, import pinner": lambda: start(bare, "import pinner"),
                    "bare, import json (for comparison)": lambda: start(bare, "import json"),
                },
                ROUNDS,
            )
        )


if __name__ == "__main__":
    main()
