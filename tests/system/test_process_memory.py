"""What the processes of a running system have mapped and imported: torch belongs to workers that
compute with it, and nothing comes back that a process needs only for some requests."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from penstock import LLM, SamplingParams
from testing import preloaded
from testing.serving import Server, wait_until


def mapped_files(pid: int) -> set[str]:
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {line.split(maxsplit=5)[5] for line in lines if len(line.split(maxsplit=5)) == 6}


def torch_files(pid: int) -> list[str]:
    return sorted(file for file in mapped_files(pid) if "torch" in file.lower())


@pytest.mark.parametrize("title", ["gateway 0", "engine"])
def test_no_libtorch_is_mapped(server: Server, title: str) -> None:
    server.complete()  # whatever is loaded on first use has been loaded
    assert torch_files(server.child(title)) == []


def test_nor_in_the_supervisor(server: Server) -> None:
    assert torch_files(server.process.pid) == []


def test_a_worker_that_computes_with_torch_has_it() -> None:
    options = {"attention_backend": "reference", "max_model_len": 256, "num_kv_blocks": 32}
    others = set(psutil.Process().children(recursive=True))
    with preloaded.executed(), LLM(**options) as llm:
        llm.generate(["Once"], SamplingParams(max_tokens=1), use_tqdm=False)
        (worker,) = (
            child.pid
            for child in set(psutil.Process().children(recursive=True)) - others
            if child.cmdline()[:1] and child.cmdline()[0].startswith("penstock: worker")
        )
        assert any("libtorch" in file for file in torch_files(worker))


def test_a_worker_of_a_gguf_file_on_a_cpu_has_none(plain: Server) -> None:
    assert torch_files(plain.child("worker 0")) == []


def test_a_worker_on_a_cpu_keeps_neither_triton_nor_the_file_that_it_packed(server: Server) -> None:
    def kept() -> list[str]:
        files = mapped_files(server.child("worker 0"))
        return [file for file in files if "triton" in file.lower() or file.endswith(".gguf")]

    wait_until(lambda: not kept(), message=kept)


# What is imported when a process is ready. A package that is missing here was seen to take memory
# in a process that didn't use it: say where it is imported, and import it there.

EVERYWHERE = {"msgspec", "setproctitle"}
COMPILED = {
    "supervisor": EVERYWHERE,
    "engine": EVERYWHERE | {"zmq"},
    "gateway 0": EVERYWHERE
    | {"httptools", "pydantic_core", "tokenizers", "uvloop", "websockets", "zmq"},
    "worker 0": EVERYWHERE | {"numpy", "penstock_kernels", "zmq"},
    "template": EVERYWHERE | {"markupsafe"},
}
"""Packages with libraries that a process may have mapped after an ordinary answer."""
IMPORTED = {
    "engine": EVERYWHERE | {"typing_extensions", "zmq"},
    "fork-server": EVERYWHERE
    | {"annotated_doc", "annotated_types", "anyio", "click", "fastapi", "httptools"}
    | {"opentelemetry", "prometheus_client", "pydantic", "pydantic_core", "python_multipart"}
    | {"sniffio", "starlette", "tokenizers", "typing_extensions", "typing_inspection", "uvicorn"}
    | {"uvloop", "websockets", "zmq"},
    "worker": EVERYWHERE | {"numpy", "torch", "torchgen", "tqdm", "typing_extensions", "zmq"},
}
"""Packages that a process may have imported when it waits for its model."""
NOT_RUN = {
    "torch._dynamo",
    "torch._inductor",
    "torch._prims",
    "torch.masked.maskedtensor",
    "torch.optim.optimizer",
    "torch.profiler.profiler",
    "torch.utils.data.dataloader",
}
"""Modules of torch that nothing here asks for."""

PROGRAM = """
import json, sys
import penstock.cli.main
from penstock.cli.processes import OwnRole
OwnRole().imports(sys.argv[1])
files = {name: getattr(module, "__file__", None) or "" for name, module in sys.modules.items()}
print(json.dumps(files))
"""


def package_of(file: str) -> str | None:
    """The package in which a file lies; None: one of Python's own, of the system's, or of ours."""
    parts = Path(file).parts
    if "penstock_kernels" in parts:
        return "penstock_kernels"
    if "site-packages" not in parts:
        return None
    name = parts[parts.index("site-packages") + 1].split(".")[0]
    return {"pyzmq": "zmq"}.get(name, name)


@pytest.fixture(scope="module")
def plain() -> Iterator[Server]:
    """A server as it is started, after one answer. Its processes are executed."""
    with preloaded.executed():
        running = Server()
    try:
        running.complete()
        yield running
    finally:
        running.close()


@pytest.mark.parametrize("title", COMPILED)
def test_only_what_is_used_is_mapped(plain: Server, title: str) -> None:
    pid = plain.process.pid if title == "supervisor" else plain.child(title)
    libraries = [file for file in mapped_files(pid) if ".so" in Path(file).name]
    assert {package_of(file) for file in libraries} - {None} <= COMPILED[title]


def test_a_librarys_supervisor_reads_no_tokenizer() -> None:
    """It asks the engine core itself whether that is ready."""
    others = set(psutil.Process().children())
    with preloaded.executed(), LLM(max_model_len=512, num_kv_blocks=128):
        (supervisor,) = (
            child
            for child in set(psutil.Process().children()) - others
            if child.cmdline()[0].rstrip() == "penstock: supervisor"
        )
        libraries = [file for file in mapped_files(supervisor.pid) if ".so" in Path(file).name]
    assert {package_of(file) for file in libraries} - {None} <= COMPILED["supervisor"] | {"zmq"}


def test_grammars_are_loaded_when_one_comes(plain: Server) -> None:
    def loaded() -> bool:
        worker = plain.child("worker 0")
        return any("llguidance" in file for file in mapped_files(worker))

    assert not loaded()
    assert not any("grammar" in title for title in plain.children())
    text = plain.complete(structured_outputs={"regex": "[ab]{8}"}, max_tokens=16)
    assert len(text) == 8
    assert set(text) <= set("ab")
    assert loaded()


@pytest.mark.parametrize("role", IMPORTED)
def test_only_what_is_used_is_imported(role: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, role], capture_output=True, text=True, check=True
    )
    files: dict[str, str] = json.loads(done.stdout)
    packages = {package_of(file) for file in files.values()} - {None}
    ours = {each for each in packages if each.startswith(("_", "penstock"))}
    assert packages - ours <= IMPORTED[role]
    assert not files.keys() & NOT_RUN
