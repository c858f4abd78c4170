"""The command line of the processes of one tuning run."""

from __future__ import annotations

import argparse
from pathlib import Path

from loadtest.gpu.tune.families import NAMES


def process_parser(module: str) -> argparse.ArgumentParser:
    """module: of this package."""
    parser = argparse.ArgumentParser(prog=f"python -m loadtest.gpu.tune.{module}")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--kernels", nargs="+", default=NAMES)
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--parent", type=int, help="ends with this process")
    return parser
