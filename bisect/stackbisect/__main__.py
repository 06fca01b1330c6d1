"""`python -m stackbisect` is the stackbisect command."""

import sys

from stackbisect.cli import main

sys.exit(main())
