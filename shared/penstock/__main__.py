"""`python -m penstock`: the same as the `penstock` command."""

from __future__ import annotations

import sys

from penstock.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
