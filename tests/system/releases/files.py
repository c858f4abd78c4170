"""Files of real releases, which aren't part of the repository: the folder that PENSTOCK_RELEASES
names has them, under these names and with these bytes."""

from __future__ import annotations

import functools
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

VARIABLE = "PENSTOCK_RELEASES"


@dataclass(frozen=True)
class Release:
    """path: below the folder; what it names may be a folder's file.  origin: on the hub.  sha256:
    of the file, which bounds of tests hold for."""

    path: str
    origin: str
    sha256: str

    def file(self) -> Path:
        """Where it lies. Skips the test where it isn't there, or is another one."""
        folder = os.environ.get(VARIABLE)
        if not folder:
            pytest.skip(f"{VARIABLE} names no folder with {self.path} ({self.origin})")
        found = Path(folder) / self.path
        if not found.is_file():
            pytest.skip(f"{VARIABLE}'s folder lacks {self.path} ({self.origin})")
        if _digest(found) != self.sha256:
            pytest.fail(f"{found} isn't the file that was measured: sha256 {self.sha256}")
        return found


@functools.cache
def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


GEMMA = Release(
    "gemma-3-270m-q4_k_m.gguf",
    "google/gemma-3-270m in Q4_K_M",
    "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
)
QWEN_CODER = Release(
    "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
    "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
)
WHISPER = Release(
    "whisper-base-ct2/model.bin",
    "Systran/faster-whisper-base: openai/whisper-base for CTranslate2",
    "d01c3014881c9c6f3133c182f3d2887eb6ca1c789a7538c5c007196857a0a6a9",
)
MPNET = Release(
    "all-mpnet-base-v2/all-mpnet-base-v2/model.safetensors",
    "sentence-transformers/all-mpnet-base-v2",
    "78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658",
)
