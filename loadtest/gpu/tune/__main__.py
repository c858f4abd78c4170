"""`python -m loadtest.gpu.tune [OUT]`: times other tile sizes of the Triton kernels on this
machine's GPU beside the present ones, and says which to change.  Nothing is changed by it.

Standard library only, as in start.py: what is missing is installed before anything is imported.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from loadtest.gpu.start import start
from loadtest.gpu.tune import NAMES

SECONDS = 240.0


def main() -> int:
    """Exit status: 0; 1 where nothing was timed; 2 where something can't be installed."""
    flags = parser().parse_args()
    own = ["--parent", str(os.getpid()), "--kernels", *flags.kernels]
    return start(flags, "loadtest.gpu.tune.supervise", own)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m loadtest.gpu.tune", description=__doc__)
    made.add_argument("output", type=Path, nargs="?", help="default: loadtest/results/gpu")
    made.add_argument("--seconds", type=float, default=SECONDS, help="for everything")
    made.add_argument("--kernels", nargs="+", choices=NAMES, default=NAMES, help="default: all")
    made.add_argument("--wheels", type=Path, help="folder that wheels.sh has filled")
    made.add_argument("--dry", action="store_true", help="a trial without a GPU, of tiny sizes")
    return made


if __name__ == "__main__":
    sys.exit(main())
