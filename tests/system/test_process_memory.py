"""What the processes of a running system have mapped: torch belongs to the worker alone."""

from __future__ import annotations

from pathlib import Path

import pytest

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


def test_the_worker_has_it(server: Server) -> None:
    assert any("libtorch" in file for file in torch_files(server.child("worker 0")))


def test_a_worker_on_a_cpu_keeps_neither_triton_nor_the_file_that_it_packed(server: Server) -> None:
    def kept() -> list[str]:
        files = mapped_files(server.child("worker 0"))
        return [file for file in files if "triton" in file.lower() or file.endswith(".gguf")]

    wait_until(lambda: not kept(), message=kept)
