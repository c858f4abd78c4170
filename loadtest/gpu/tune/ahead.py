"""Compiles candidates before they are needed: `python -m loadtest.gpu.tune.ahead`.

A process for each core takes the next candidate that none has taken, and calls its kernels with
tensors that have shapes and no memory.  Triton compiles what the real call would launch, and keeps
it in its cache, where the process with the GPU finds it.  No GPU is touched, nor needed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadtest.gpu.job import shortened, write_json
from loadtest.gpu.tune.processes import parser
from penstock.children import die_with_parent

if TYPE_CHECKING:
    from loadtest.gpu.tune.settings import Candidate

WARP = 32


def compiled_file(work: Path, number: int) -> Path:
    """What came of a candidate's compiling: kernels, and reason where it failed."""
    return work / "compiled" / f"{number}.json"


def over_file(work: Path) -> Path:
    """Is there once no process compiles any more."""
    return work / "compiled" / "over"


class Compiler:
    """Stands in for launches, in this process: Triton's own way to a compiled kernel, which ends
    before it is loaded.  arch: as 90 for compute capability 9.0."""

    def __init__(self, arch: int) -> None:
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.runtime.jit import JITFunction

        self.built: dict[int, tuple[str, Any]] = {}
        triton.runtime.driver.set_active(_NoDevice(GPUTarget("cuda", arch, WARP)))
        compile_only = JITFunction.run

        def run(kernel: Any, *args: Any, **options: Any) -> Any:
            built = compile_only(kernel, *args, **{**options, "warmup": True})
            self.built[id(built)] = kernel.fn.__name__, built
            return built

        # The one place that stands between this project's launches and Triton: there is no other
        # way to have a whole launch compiled and not run.
        JITFunction.run = run

    def compile(self, candidate: Candidate) -> dict[str, Any]:
        """All shapes of a candidate. Figures of each kernel by its name, the largest of those
        that shapes differ in."""
        import torch

        self.built.clear()
        with torch.inference_mode():
            for case in candidate.setting.cases:
                case.make(torch.device("meta")).work(candidate.tiles)()
        found: dict[str, dict[str, int]] = {}
        for name, built in self.built.values():
            usage, before = resources(built.asm["cubin"]), found.get(name, {})
            own = {
                "registers": usage["REG"],
                "spilled": usage["LOCAL"] + usage["STACK"],
                "shared": built.metadata.shared,
            }
            found[name] = {each: max(value, before.get(each, 0)) for each, value in own.items()}
        return found


class _NoDevice:
    """What Triton asks its driver before a launch."""

    def __init__(self, target: Any) -> None:
        self.get_current_target = lambda: target
        self.get_current_device = lambda: 0
        self.get_current_stream = lambda device: 0


def resources(cubin: bytes) -> dict[str, int]:
    """As the compiler's own tool has them: bytes, and registers of a thread."""
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool), "--dump-resource-usage", file.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    line = next(line for line in said.splitlines() if "REG:" in line)
    pairs = (pair.split(":") for pair in line.split() if ":" in pair)
    return {name: int(value) for name, value in pairs if value.isdigit()}


def take(work: Path, number: int) -> bool:
    """Whether it is this process that compiles it."""
    path = compiled_file(work, number).with_suffix(".taken")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def compile_all(candidates: list[Candidate], work: Path, arch: int, ends: float) -> None:
    """Those that none has taken. ends: as time.monotonic() has it; none is begun after."""
    compiler = Compiler(arch)
    for candidate in candidates:
        if time.monotonic() >= ends:
            return
        if not take(work, candidate.number):
            continue
        try:
            done = {"kernels": compiler.compile(candidate), "reason": ""}
        except Exception as error:
            done = {"kernels": {}, "reason": shortened(error)}
        write_json(compiled_file(work, candidate.number), done)


def compiled(work: Path, number: int) -> dict[str, Any] | None:
    """None: not yet."""
    path = compiled_file(work, number)
    return json.loads(path.read_text()) if path.is_file() else None


def main() -> int:
    own = parser("ahead")
    own.add_argument("--arch", type=int, required=True)
    flags = own.parse_args()
    ends = time.monotonic() + flags.seconds
    if flags.parent is not None:
        die_with_parent(flags.parent)
    from loadtest.gpu.tune.table import all_candidates

    compile_all(all_candidates(flags.kernels, dry=False), flags.work, flags.arch, ends)
    return 0


if __name__ == "__main__":
    sys.exit(main())
