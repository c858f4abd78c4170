"""Builds the CPU kernels' library alone, by the setup.py of the repository: for this machine's
processor, unless PENSTOCK_INSTRUCTION_SETS names others."""

from __future__ import annotations

import os
import runpy
from pathlib import Path

from setuptools import setup

if __name__ == "__main__":
    build = runpy.run_path(str(Path(__file__).resolve().parents[1] / "setup.py"))
    os.environ.setdefault("PENSTOCK_INSTRUCTION_SETS", "best")
    setup(ext_modules=[build["extension"]()], cmdclass=build["COMMANDS"])
