"""What this machine can do for a worker, and why not: `penstock doctor`."""

from __future__ import annotations

import platform
import shutil
import sys
from collections.abc import Callable

from penstock.config.settings import ModelImpl
from penstock_worker.machine import environment_checks
from penstock_worker.machine.environment_checks import Advice
from penstock_worker.machine.finding import Finding
from penstock_worker.machine.memory import free_memory
from penstock_worker.machine.model_check import examine_model
from penstock_worker.machine.numa import describe as describe_nodes


def examine(
    model: str | None = None,
    model_impl: ModelImpl = "auto",
    *,
    language_model_only: bool = False,
    mmproj: str | None = None,
) -> list[Finding]:
    """Every check, in the order in which a person wants to read them; of a model, if one is named.
    model_impl: whose code describes its layers.  language_model_only: what it sees with is left
    out.  mmproj: of a .gguf file, the one with that. Never raises."""
    if model is not None:
        return examine_model(
            model, model_impl, language_model_only=language_model_only, mmproj=mmproj
        )
    checks: dict[str, Callable[[], str]] = {
        "python": lambda: f"{platform.python_version()} on {platform.machine()}",
        "processor": environment_checks.processor,
        "gpu": environment_checks.gpu,
        "torch": _torch,
        "triton": environment_checks.triton,
        "worker libraries": lambda: environment_checks.libraries(
            environment_checks.WORKER_LIBRARIES
        ),
        "gateway libraries": lambda: environment_checks.libraries(
            environment_checks.FRONT_LIBRARIES
        ),
        "cpu kernels": _cpu_kernels,
        "threads": _threads,
        "numa nodes": describe_nodes,
        "memory": lambda: f"{free_memory() / (1 << 30):.1f} GiB free",
        "huge pages": environment_checks.huge_pages,
        "open files": environment_checks.open_files,
        "port": environment_checks.port,
        "model cache": environment_checks.cache,
        "default model": _default_model,
    }
    return [_run(name, check) for name, check in checks.items()]


def _run(name: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding(name, True, check())
    except Advice as advice:
        return Finding(name, True, str(advice), "note")
    except Exception as error:
        return Finding(name, False, str(error), "missing")


def _torch() -> str:
    import torch

    if torch.cuda.is_available():
        return f"{torch.__version__}, CUDA {torch.version.cuda}"
    if shutil.which("nvidia-smi") is not None:
        raise Advice(f"{torch.__version__}, which can't use the GPU; the CPU is used")
    return f"{torch.__version__}, no CUDA device"


def _cpu_kernels() -> str:
    from penstock_kernels.cpu.library import PATH, instruction_set

    try:
        return f"{instruction_set()}, from {PATH.name}"
    except ImportError as error:
        found = next((name for name in ("g++", "c++", "clang++") if shutil.which(name)), None)
        compiler = f"{found} is there" if found else "no C++ compiler was found"
        raise ImportError(f"{error} ({compiler}); the slow reference backend is used") from error


def _threads() -> str:
    from penstock_worker.machine.cpu import usable_threads

    return f"{usable_threads()} usable"


def _default_model() -> str:
    from penstock.config.settings import ModelSettings
    from penstock.prepare import prepare

    return str(prepare(ModelSettings().model))


def show(findings: list[Finding]) -> str:
    """A line for each, for a terminal, and one that sums up."""
    width = max(len(finding.name) for finding in findings)
    marks = {"ok": "ok  ", "note": "note", "missing": "MISS"}
    lines = [f"{marks[one.level]} {one.name:<{width}}  {one.text}" for one in findings]
    missing = [one.name for one in findings if not one.ok]
    last = (
        f"To fix: {', '.join(missing)}."
        if missing
        else "Nothing to fix: Penstock can run on this machine."
    )
    return "\n".join([*lines, "", last])


if __name__ == "__main__":
    sys.stdout.write(show(examine()) + "\n")
