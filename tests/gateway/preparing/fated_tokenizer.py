"""A tokenizer under which its process meets a fate, where a text asks for it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.gateway.byte_tokenizer import ByteTokenizer


def _spin() -> None:
    while True:
        pass


def _swell() -> None:
    """Takes address space and, as bytes of zeros are pages that nobody has touched, hardly a
    processor's time: the limit of time isn't met first, however slow the machine."""
    held = []
    while True:
        held.append(bytes(64 << 20))


def _wait() -> None:
    signal.pause()


FATES: dict[str, Callable[[], None]] = {
    "<kill>": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "<crash>": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "<stop>": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "<spin>": _spin,
    "<swell>": _swell,
    "<wait>": _wait,
}


class FatedTokenizer(ByteTokenizer):
    """gateway: the process that meets none.  met: a file that each fate leaves a byte in.
    times: how often each comes; later the text is tokenised."""

    def __init__(self, met: Path, times: int = 1_000_000) -> None:
        self._gateway = os.getpid()
        self._met = met
        self._times = times

    def encode(self, text: str, **options: Any):  # type: ignore[override]
        if os.getpid() != self._gateway:
            for mark, fate in FATES.items():
                if mark in text and self._comes():
                    fate()
        return super().encode(text, **options)

    def _comes(self) -> bool:
        with self._met.open("ab") as file:
            file.write(b"x")
        return self._met.stat().st_size <= self._times
