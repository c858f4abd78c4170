"""Processes of other systems, in their own environments, that are asked by pipe or over HTTP."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from loadtest.report import SetupError

LLAMACPP = Path(__file__).with_name("llamacpp_server.py")


def answer_of(
    name: str, command: Sequence[object], asked: Any, seconds: float, unset: Sequence[str] = ()
) -> Any:
    """The last line of JSON that a process writes to stdout. asked: what it reads as JSON from
    stdin. unset: variables of our environment that it doesn't get. Raises SetupError where it
    fails."""
    done = subprocess.run(
        [*map(str, command)],
        env={name: value for name, value in os.environ.items() if name not in unset},
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    if done.returncode:
        raise SetupError(f"{name} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


@contextlib.contextmanager
def llamacpp_server(python: Path, *arguments: object) -> Iterator[str]:
    """llama.cpp's server meanwhile: its address. arguments: see llamacpp_server.py."""
    with subprocess.Popen(
        [python, "-E", LLAMACPP, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            address = process.stdout.readline().strip() if process.stdout else ""
            if not address:
                raise SetupError("llama.cpp's server didn't start")
            yield address
        finally:
            process.kill()
