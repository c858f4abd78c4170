"""Compiles for sm_90 what a call would launch, on a machine without a GPU.

`python -m tests.kernels.triton.compile_for_hopper [--once] [--ada] [--floats] [NAME…]` prints, for
each kernel of each call in `calls.py`, registers, spilled bytes, shared memory, instructions of
tensor cores, waits for them and copies to shared memory; of loops over a KV cache, how many entries
of the block table they read each turn.  It fails where something doesn't compile or asks for more
than an SM has.  --once: each kernel is compiled until each of its features was on once and off
once, and with each number of warps, stages and columns, not for every set of them, type and size.
--ada: for compute capability 8.9, whose SMs have less than half of the shared memory.  --floats:
also which instructions with floats each innermost loop of tensor cores' products has, and how many
rounded quotients PTX asks for, and instructions that flush subnormal numbers.
--instructions: also how many instructions of each kind a warp has in the shortest of these loops,
and in that of a kernel without such products.  Not under TRITON_INTERPRET.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction, mangle_type

from penstock_kernels.triton import early, shared_memory
from penstock_kernels.triton.shared_memory import SharedMemory

HOPPER, ADA = GPUTarget("cuda", 90, 32), GPUTarget("cuda", 89, 32)
ADA_MEMORY = SharedMemory(99 << 10, direct=False)
WAIT = re.compile(r"cp\.async\.wait_group\s+(\d+)")
COPY = re.compile(r"cp\.async\.c[ag]\.shared\.global [^;]*\], (0x\w+)")
TABLE = re.compile(r"async_copy_global_to_local .*-> <(\d+)xi32,")
OPTIONS = ("num_warps", "num_stages", "maxnreg", "launch_pdl", "enable_fp_fusion")
IN_MEMORY = re.compile(r"\b(?:ld|st|atom|red|cp\.async)\b[.\w:]*\.global\b")
PREFETCH = re.compile(r"prefetch\.global\.L2 \[(%\w+)\]")
REGISTER = re.compile(r"%\w+")
LABEL = re.compile(r"^(\.L_x_\d+):")
BRANCH = re.compile(r"BRA.*`\((\.L_x_\d+)\)")
FLOAT = re.compile(r"\*/\s+(?:@!?U?P\d+ )?([HI]G?MMA|FMUL|FFMA|FADD|FMNMX|MUFU|FSEL|F2FP)\b")
INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\d+ )?([A-Z][A-Z0-9_]*)")
DOUBLE = re.compile(r"\*/\s+(?:@!?U?P\d+ )?D(?:ADD|MUL|FMA|SETP)\b")
WEIGHTS = {"weight", "levels"}
"""Parameters whose memory may be fetched ahead."""
MMA = re.compile(r"\b[HI]G?MMA\b")
EARLY = re.compile(r"griddepcontrol\.(wait|launch_dependents)")


class Compiler:
    """Stands in for launches. Mutates nothing that a launch would. once: see above."""

    def __init__(
        self,
        *,
        once: bool = False,
        floats: bool = False,
        instructions: bool = False,
        target: GPUTarget = HOPPER,
        memory: SharedMemory = shared_memory.HOPPER,
    ) -> None:
        self._once, self._floats, self._instructions = once, floats, instructions
        self._target, self._memory = target, memory
        self.seen: set[object] = set()
        self.failed: list[str] = []

    def run(self, kernel: JITFunction, *args: Any, **kwargs: Any) -> None:
        for reserved in ("grid", "warmup"):
            kwargs.pop(reserved)
        options = {name: kwargs.pop(name) for name in OPTIONS if name in kwargs}
        bound = dict(zip(kernel.arg_names, args, strict=False)) | kwargs
        signature, constants, attributes = {}, {}, {}
        for place, parameter in enumerate(kernel.params):
            value = bound[parameter.name]
            special = not parameter.do_not_specialize
            one = special and isinstance(value, int) and value == 1
            if parameter.is_constexpr or value is None or one:
                signature[parameter.name] = "constexpr"
                constants[parameter.name] = value
                continue
            signature[parameter.name] = mangle_type(value)
            whole = value.data_ptr() if isinstance(value, torch.Tensor) else value
            if special and isinstance(whole, int) and whole % 16 == 0:
                attributes[(place,)] = [["tt.divisibility", 16]]
        name = kernel.fn.__name__
        launched = tuple(sorted(options.items()))
        new: set[object] = {(name, repr(signature), repr(constants), repr(attributes), launched)}
        if self._once:
            new = {(name, launched)}
            new |= {(name, each, bool(value)) for each, value in constants.items()}
            new.add((name, constants.get("COLUMNS")))
        if new <= self.seen:
            return
        self.seen |= new
        source = ASTSource(kernel, signature, constants, attributes)
        built = triton.compile(source, target=self._target, options=options)
        self.report(kernel.fn.__name__, built, signature)

    def report(self, name: str, built: Any, signature: dict[str, str]) -> None:
        usage = resources(built.asm["cubin"])
        shared = built.metadata.shared
        wgmma = built.asm["ptx"].count("wgmma.mma_async")
        mma = built.asm["ptx"].count("mma.sync")
        # How many of a thread's copies to shared memory a loop lets go on while it computes.
        flying = max(map(int, WAIT.findall(built.asm["ptx"])), default=0)
        sizes = Counter(int(size, 16) for size in COPY.findall(built.asm["ptx"]))
        copies = " + ".join(f"{count} x {size}" for size, count in sorted(sizes.items()))
        entries = max(map(int, TABLE.findall(built.asm["ttgir"])), default=0)
        print(
            f"  {name}: {usage['REG']} registers, {usage['LOCAL'] + usage['STACK']} bytes spilled, "
            f"{shared} shared, {built.metadata.num_warps} warps, wgmma {wgmma}, mma {mma}, "
            f"waits {built.asm['ptx'].count('wgmma.wait_group')}, copies {copies or 0} bytes, "
            f"copies in flight {flying}, table entries {entries}, "
            f"lines ahead {len(PREFETCH.findall(built.asm['ptx']))}"
            + ", launched early" * built.metadata.launch_pdl
            + (self.floats(built) if self._floats else "")
            + (f", loop {loop_instructions(built.asm['cubin'])}" if self._instructions else ""),
            flush=True,
        )
        self.check_early(name, built.asm["ptx"], launched=built.metadata.launch_pdl)
        self.check_ahead(
            name, built, [each for each in signature if signature[each] != "constexpr"]
        )
        if shared > self._memory.size:
            self.failed.append(f"{name} wants {shared} bytes of shared memory")

    def floats(self, built: Any) -> str:
        code = built.asm["ptx"]
        quotients, flushes = code.count("div.rn.f32"), code.count(".ftz")
        return (
            f", quotients {quotients}, flushes {flushes}, floats {loop_floats(built.asm['cubin'])}"
        )

    def check_early(self, name: str, code: str, *, launched: bool) -> None:
        """A kernel that is launched early waits before all that it does in memory, and lets the
        next one begin. Others do neither."""
        orders, first = EARLY.findall(code), IN_MEMORY.search(code)
        if orders != (["wait", "launch_dependents"] if launched else []):
            self.failed.append(f"{name} is launched early: {launched}; it has {orders}")
        elif first is None or (launched and first.start() < code.index("griddepcontrol.wait")):
            self.failed.append(f"{name} is in memory before it has waited")

    def check_ahead(self, name: str, built: Any, parameters: list[str]) -> None:
        """What is fetched ahead is asked for before the wait, and is of weights alone."""
        code = built.asm["ptx"]
        places = list(PREFETCH.finditer(code))
        if not places:
            return
        if any(place.start() > code.index("griddepcontrol.wait") for place in places):
            self.failed.append(f"{name} fetches ahead after it has waited")
        found = pointers_behind(code, parameters)
        for place in places:
            if not found[place[1]] or not found[place[1]] <= WEIGHTS:
                self.failed.append(f"{name} fetches {found[place[1]]} ahead")


def pointers_behind(code: str, parameters: list[str]) -> dict[str, set[str]]:
    """Returns from which of the parameters that are pointers each register was computed. What
    follows from branches is left out."""
    pointers = {int(place) for place in re.findall(r"\.param \.u64 \.ptr \S.*_param_(\d+)", code)}
    moves: list[tuple[str, set[str], list[str]]] = []  # into which, of which pointers, from which
    for line in code.splitlines():
        target, _, sources = re.sub(r"^\s*@!?%\w+", "", line).partition(",")
        if written := REGISTER.findall(target):
            named = {int(n) for n in re.findall(r"_param_(\d+)", sources)} & pointers
            own = {parameters[place] for place in named}
            moves.append((written[0], own, REGISTER.findall(sources)))
    found: dict[str, set[str]] = defaultdict(set)
    changed = True
    while changed:
        changed = False
        for target, own, registers in moves:
            behind = own.union(*(found[each] for each in registers))
            changed |= not behind <= found[target]
            found[target] |= behind
    return found


def loop_floats(cubin: bytes) -> list[dict[str, int]]:
    """How many instructions with floats each innermost loop has that multiplies by tensor cores, in
    the order of their sizes."""
    counts = [Counter(FLOAT.findall(loop)) for loop in loops(cubin) if MMA.search(loop)]
    return [dict(sorted(count.items())) for count in counts]


def loop_instructions(cubin: bytes) -> str:
    """How many instructions the shortest loop has that multiplies by tensor cores, or the shortest
    at all, in all and of the commonest kinds, and how many with float64 all loops have; "none"
    without a loop."""
    found = loops(cubin)
    loop = next((each for each in found if MMA.search(each)), next(iter(found), ""))
    kinds = Counter(INSTRUCTION.findall(loop))
    named = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common(8))
    doubles = sum(len(DOUBLE.findall(each)) for each in found)
    return f"of {kinds.total()} instructions ({named}), float64 {doubles}" if kinds else "none"


def loops(cubin: bytes) -> list[str]:
    """The code of a kernel's innermost loops, the shortest first. What waits for itself, in a loop
    of one instruction, is none."""
    lines = said_of("nvdisasm", "-c", cubin).splitlines()
    begins = {label[1]: at for at, line in enumerate(lines) if (label := LABEL.match(line))}
    found = [
        (begins[back[1]], at)
        for at, line in enumerate(lines)
        if (back := BRANCH.search(line)) and begins.get(back[1], at) < at - 1
    ]
    inner = [
        (begin, end)
        for begin, end in found
        if not any(begin <= a and b <= end and (a, b) != (begin, end) for a, b in found)
    ]
    return sorted(("\n".join(lines[begin : end + 1]) for begin, end in inner), key=len)


def said_of(tool: str, flag: str, cubin: bytes) -> str:
    """What one of the tools that Triton brings says of compiled code."""
    path = Path(triton.__file__).parent / "backends/nvidia/bin" / tool
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(path), flag, file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def resources(cubin: bytes) -> dict[str, int]:
    """What a kernel takes, as the compiler's own tool has it: bytes, and registers of a thread."""
    said = said_of("cuobjdump", "--dump-resource-usage", cubin)
    line = next(line for line in said.splitlines() if "REG:" in line)
    pairs = (pair.split(":") for pair in line.split() if ":" in pair)
    return {name: int(value) for name, value in pairs if value.isdigit()}


def main(names: list[str]) -> int:
    from tests.kernels.triton.calls import CALLS

    once, ada = "--once" in names, "--ada" in names
    floats, instructions = "--floats" in names, "--instructions" in names
    names = [name for name in names if not name.startswith("--")]
    compiler = Compiler(once=once, floats=floats, instructions=instructions)
    if ada:
        shared_memory.shared_memory = lambda device: ADA_MEMORY
        early.can_launch_early = lambda device: False
        compiler = Compiler(once=once, target=ADA, memory=ADA_MEMORY)
    JITFunction.run = lambda kernel, *args, **kwargs: compiler.run(kernel, *args, **kwargs)
    chosen: dict[str, Callable[[], object]] = {
        name: call for name, call in CALLS.items() if not names or name in names
    }
    for name, call in chosen.items():
        print(name, flush=True)
        call()
    for line in compiler.failed:
        print("FAILED", line)
    return 1 if compiler.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
