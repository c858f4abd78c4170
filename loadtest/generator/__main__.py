"""`python -m loadtest.generator`: the load generator's command."""

from __future__ import annotations

import sys

from loadtest.generator.command import main

if __name__ == "__main__":
    sys.exit(main())
