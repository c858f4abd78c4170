"""A runner's process: JSON lines in and out."""

from __future__ import annotations

import json
import os
import select
import time
from pathlib import Path
from typing import Any

from loadtest.peers.library.work import Run, Work
from loadtest.peers.peer import Peer, PeerFailed, PeerProcess

RUN_TIMEOUT = 120.0
"""Seconds after which a call is given up, and its system with it."""
_WARM_TOKENS = 4


class Child(PeerProcess):
    """Has loaded its model inside its `with` block."""

    def __init__(self, peer: Peer, log: Path) -> None:
        super().__init__(peer, peer.command, log, talks=True)
        self._name = peer.name
        self._unread = b""

    def wait_ready(self, deadline: float) -> None:
        self._answer(deadline)

    def warm_up(self, work: Work) -> None:
        prompts = work.prompts("warm-up", work.warm_streams)
        self.call(prompts, min(work.output_tokens, _WARM_TOKENS), RUN_TIMEOUT)

    def run(self, work: Work, turn: int) -> Run:
        return self.call(work.prompts(f"round {turn}"), work.output_tokens, RUN_TIMEOUT)

    def call(self, prompts: list[list[int]], output_tokens: int, timeout: float) -> Run:
        """Raises PeerFailed; after a timeout the process is of no use any more."""
        line = json.dumps({"prompts": prompts, "output_tokens": output_tokens}) + "\n"
        pipe = self._running().stdin
        try:
            pipe.write(line.encode())
            pipe.flush()
        except OSError as error:
            raise PeerFailed(f"{self._name} has gone: {error}\n{self.last_lines()}") from error
        return Run(**self._answer(time.monotonic() + timeout))

    def _answer(self, deadline: float) -> dict[str, Any]:
        descriptor = self._running().stdout.fileno()
        while b"\n" not in self._unread:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([descriptor], [], [], left)[0]:
                raise PeerFailed(f"{self._name} did not answer in time")
            chunk = os.read(descriptor, 65_536)
            if not chunk:
                raise PeerFailed(f"{self._name} has ended:\n{self.last_lines()}")
            self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        if error := answer.pop("error", None):
            raise PeerFailed(f"{self._name}: {error}")
        return answer

    def _running(self) -> Any:
        """The process, whose input and output are pipes."""
        if self._process is None:
            raise PeerFailed(f"{self._name} does not run")
        return self._process
