"""`python -m pinner`."""

from __future__ import annotations

import sys

from pinner.cli import main

sys.exit(main())
