"""Processes of the libraries that take turns."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from loadtest.peers.servers import peers_dir
from loadtest.report import ROOT, SetupError

RUNNER = Path(__file__).with_name("runner.py")
OURS = "penstock"
"""How names of our own begin."""
NAMES = {
    "penstock": "Penstock",
    "penstock_float32": "Penstock, float32",
    "penstock_http": "Penstock, over HTTP",
    "sentence_transformers": "sentence-transformers",
    "fastembed": "fastembed",
}
BASE = "sentence_transformers"
"""The library that others are held against."""
ENVIRONMENT = "vectors"
"""Folder under PEERS_DIR of the environment that has the others."""


def python_of(environment: str) -> str:
    """The interpreter of an environment under PEERS_DIR. Raises SetupError."""
    python = peers_dir() / environment / "bin" / "python"
    if not python.exists():
        raise SetupError(f"{python} is missing: bash loadtest/peers/install.sh {environment}")
    return str(python)


@dataclass
class Library:
    """A library's process. rates: texts a second, round by round."""

    name: str
    model: Path
    threads: int
    rates: list[float] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    arrays: list[np.ndarray] = field(default_factory=list)
    """What the last texts gave, float32, each in one dimension."""
    environment: str = ENVIRONMENT
    _process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Library:
        log = ROOT / "loadtest" / "out" / f"vectors-{self.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        given = [self.name, str(self.model), str(self.threads)]
        variables = {**os.environ, "OMP_NUM_THREADS": str(self.threads), "HF_HUB_OFFLINE": "1"}
        with log.open("w") as stderr:
            self._process = subprocess.Popen(
                [self._python(), str(RUNNER), *given],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env=variables,
            )
        self.versions = self._line()["versions"]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait(60)

    @property
    def last(self) -> np.ndarray:
        """Vectors of the last texts, [texts, width] float32."""
        return np.stack(self.arrays)

    def _python(self) -> str:
        return sys.executable if self.name.startswith(OURS) else python_of(self.environment)

    def _line(self) -> dict[str, Any]:
        process = self._process
        if process is None or process.stdout is None:
            raise RuntimeError("the process has not been started")
        line = process.stdout.readline()
        if not line:
            raise SetupError(f"{self.name} left: see loadtest/out/vectors-{self.name}.log")
        found: dict[str, Any] = json.loads(line)
        return found

    def embed(self, texts: list[str]) -> float:
        """Sets `arrays`. Returns the seconds."""
        process = self._process
        if process is None or process.stdin is None:
            raise RuntimeError("the process has not been started")
        print(json.dumps({"texts": texts}), file=process.stdin, flush=True)
        answer = self._line()
        self.arrays = [np.frombuffer(base64.b64decode(each), "<f4") for each in answer["vectors"]]
        return float(answer["seconds"])
