"""`python -m loadtest.generator`: the load generator, as `penstock bench serve` has it."""

from __future__ import annotations

import sys

from penstock.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["bench", "serve", *sys.argv[1:]]))
