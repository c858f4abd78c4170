"""A compiler that compiles nothing twice: of the kernels with a fault in them only those files that
it is in.

    PENSTOCK_COMPILER=g++ PENSTOCK_KEPT_OBJECTS=FOLDER python -m tests.mutants.compiler ARGUMENTS
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

KEPT, COMPILER = "PENSTOCK_KEPT_OBJECTS", "PENSTOCK_COMPILER"
"""Variables of the environment."""


def main(arguments: list[str]) -> int:
    """Returns the compiler's exit status. What isn't `-c SOURCE -o OBJECT` is the compiler's
    own."""
    command = [os.environ[COMPILER], *arguments]
    if "-c" not in arguments or "-o" not in arguments:
        return subprocess.run(command, check=False).returncode
    made = Path(arguments[arguments.index("-o") + 1])
    kept = Path(os.environ[KEPT]) / f"{_digest(command, made)}.o"
    if not kept.exists():
        done = subprocess.run(command, check=False)
        if done.returncode:
            return done.returncode
        with tempfile.NamedTemporaryFile(dir=kept.parent, delete=False) as unfinished:
            unfinished.write(made.read_bytes())
        os.replace(unfinished.name, kept)
    shutil.copyfile(kept, made)
    return 0


def _digest(command: list[str], made: Path) -> str:
    """Of all that the object follows from: the text without its macros, and the flags. A macro that
    the text doesn't use makes no difference."""
    asked = ["-E" if each == "-c" else each for each in command]
    at = asked.index("-o")
    del asked[at : at + 2]
    text = subprocess.run(asked, capture_output=True, check=False).stdout
    flags = [each for each in asked if not each.startswith("-D")]
    return hashlib.sha256(repr(flags).encode() + text).hexdigest()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
