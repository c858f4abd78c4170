"""Checks and times candidates on the device: `python -m loadtest.gpu.tune.sweep`.

Lines are written as they come.  A process that is started after one that ended goes on behind what
that one has written; the candidate that it was at then has failed.
"""

from __future__ import annotations

import gc
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from loadtest.gpu.extent import DRY as DRY_EXTENT
from loadtest.gpu.extent import GPU as GPU_EXTENT
from loadtest.gpu.job import DONE, Job, part_file, shortened
from loadtest.gpu.parts import PARTS
from loadtest.gpu.parts import limits as limits_part
from loadtest.gpu.parts.cases import Bench, Case, Tiles
from loadtest.gpu.timing import Call, Timer
from loadtest.gpu.tune.advice import TIMED
from loadtest.gpu.tune.ahead import compiled, over_file
from loadtest.gpu.tune.candidates import Candidate, all_candidates
from loadtest.gpu.tune.flags import process_parser
from loadtest.gpu.tune.lines import Lines, lines_file
from loadtest.gpu.tune.settings import Setting
from penstock.children import die_with_parent

TOLERANCE = 0.01
"""Of a row's norm: bfloat16's rounding is a quarter of it, a missing tile more."""
SLOW = 1.3
"""Times the present choice's time, in the first shape, beyond which others aren't measured."""
PAUSE = 0.1
"""Seconds until it is looked again whether something has been compiled."""

WRONG, FAILED, UNCOMPILED = "wrong", "failed", "does not compile"
LOST = 3
"""Exit status where the device takes no more work from this process."""


class Wrong(Exception):
    """The result isn't the reference's. The message says by how much."""


class DeviceLost(Exception):
    """After a fault, every call of a process fails."""


class Shape:
    """A case on the device, with the present choice's call to be timed beside."""

    def __init__(self, case: Case, present: Tiles, device: torch.device, timer: Timer) -> None:
        self.bench: Bench = case.make(device)
        if self.bench.reference is None:
            raise ValueError(f"{case.shape} has nothing to be held against")
        self._wanted = self.bench.reference()
        work = self.bench.work(present)
        self.error = self.check(work())
        self._timer = timer
        self._present: Call = timer.ready(work)

    def check(self, result: object) -> float:
        """The largest of its rows' errors, as shares of their norms. Raises Wrong where it is too
        large."""
        if not isinstance(result, Tensor):
            raise TypeError(f"the call returned {type(result).__name__}")
        error = distance(self.bench.sample(result), self._wanted, exact=self.bench.exact)
        if not error <= (0 if self.bench.exact else TOLERANCE):
            raise Wrong(f"off by {error:.2g} of the reference")
        return error

    def time_present(self) -> dict[str, Any]:
        own = self._timer.in_turns([self._present])[0]
        figures = {"seconds": own.seconds, "present_seconds": own.seconds, "graph": own.graph}
        return {**figures, "error": self.error}

    def time(self, tiles: Tiles) -> dict[str, Any]:
        work = self.bench.work(tiles)
        error = self.check(work())
        now, own = self._timer.in_turns([self._present, self._timer.ready(work)])
        figures = {"seconds": own.seconds, "present_seconds": now.seconds, "graph": own.graph}
        return {**figures, "error": error}


def distance(ours: Tensor, wanted: Tensor, *, exact: bool) -> float:
    """NaN for NaN; inf for another shape."""
    if ours.shape != wanted.shape:
        return float("inf")
    if exact:
        return float((ours != wanted).float().mean())
    far = (ours.float() - wanted.float()).norm(dim=-1)
    return float((far / wanted.float().norm(dim=-1).clamp(min=1e-20)).max())


class Sweep:
    """found: what compiling ahead says of a candidate's number, None: not yet."""

    def __init__(
        self,
        lines: Lines,
        device: torch.device,
        timer: Timer,
        found: Callable[[int], dict[str, Any] | None],
        ends: float,
    ) -> None:
        self._lines = lines
        self._device = device
        self._timer = timer
        self._found = found
        self._ends = ends
        self._shapes: dict[tuple[str, int], Shape] = {}
        self._presents: dict[str, Candidate] = {}

    def run(self, candidates: list[Candidate]) -> None:
        """In order, as they are compiled, until all are done or the time is over. Nothing more of
        a setting whose present choice fails."""
        self._presents = {each.setting.name: each for each in candidates if each.present}
        self._settle_broken_off(candidates)
        left = [each for each in candidates if each.number not in self._lines.done]
        while time.monotonic() < self._ends:
            dropped = self._lines.dropped
            left = [each for each in left if each.setting.name not in dropped]
            if not left:
                return
            ready = next((each for each in left if self._is_ready(each, left)), None)
            if ready is None:
                time.sleep(PAUSE)
                continue
            left.remove(ready)
            self._try(ready)

    def _is_ready(self, candidate: Candidate, left: list[Candidate]) -> bool:
        """Present choices come first."""
        waits = any(each.present and each.setting is candidate.setting for each in left)
        return (candidate.present or not waits) and self._found(candidate.number) is not None

    def _settle_broken_off(self, candidates: list[Candidate]) -> None:
        building = self._lines.building
        for candidate in candidates:
            if candidate.number in self._lines.broken_off:
                blamed = self._presents[candidate.setting.name] if building else candidate
                self._fail(blamed, FAILED, "the process ended, or stood still, in its turn")
                self._lines.add(done=candidate.number)

    def _try(self, candidate: Candidate) -> None:
        found = self._found(candidate.number) or {}
        self._lines.add(trying=candidate.number)
        try:
            if found.get("reason"):
                self._fail(candidate, UNCOMPILED, found["reason"])
            else:
                resources = found.get("kernels", {}).get(candidate.setting.kernel, {})
                self._measure(candidate, resources)
        finally:
            self._lines.add(done=candidate.number)

    def _measure(self, candidate: Candidate, resources: dict[str, int]) -> None:
        for place, case in enumerate(candidate.setting.cases):
            blamed = self._presents[candidate.setting.name]
            try:
                shape = self._shape(candidate.setting, place)
                blamed = candidate
                of_present = candidate.present
                figures = shape.time_present() if of_present else shape.time(candidate.tiles)
            except Exception as error:
                traceback.print_exc()
                status = WRONG if isinstance(error, Wrong) else FAILED
                reason = f"{type(error).__name__}: {shortened(str(error))}"
                used = resources if blamed is candidate else {}
                self._fail(blamed, status, reason, case.shape, **used)
                self._still_there()
                return
            self._lines.add(
                **candidate.facts(), shape=case.shape, status=TIMED, weight=case.weight,
                bytes=case.size, flops=case.flops, **figures, **resources,
            )  # fmt: skip
            if place == 0 and figures["seconds"] > SLOW * figures["present_seconds"]:
                return

    def _shape(self, setting: Setting, place: int) -> Shape:
        key = (setting.name, place)
        if key not in self._shapes:
            case = setting.cases[place]
            self._lines.add(building=case.shape)
            try:
                self._shapes[key] = Shape(case, setting.present, self._device, self._timer)
            finally:
                self._lines.add(built=case.shape)
        return self._shapes[key]

    def _fail(
        self, candidate: Candidate, status: str, reason: str, shape: str = "", **more: int
    ) -> None:
        self._lines.add(**candidate.facts(), shape=shape, status=status, reason=reason, **more)

    def _still_there(self) -> None:
        """Raises DeviceLost. Memory that a failed call holds is given back."""
        if self._device.type != "cuda":
            return
        try:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        except Exception as error:
            raise DeviceLost from error


def hear_compiling(lines: Lines) -> None:
    """A line for each kernel that isn't found compiled: all should be, where they are compiled
    ahead."""
    import triton

    def heard(*, src: Any, cache_hit: bool, **_: Any) -> None:
        if not cache_hit:
            lines.add(missed=src.name)

    triton.knobs.compilation.listener = heard


def measure_limits(work: Path, timer: Timer, *, dry: bool) -> None:
    """As the part of the GPU measurements does, in less time."""
    if part_file(work, "limits").is_file():
        return
    extent = DRY_EXTENT if dry else GPU_EXTENT
    job = Job(PARTS[0], work, work, 60.0, extent)
    limits_part.bandwidth(job, timer)
    for side in extent.matrix[:2]:
        limits_part.products(job, timer, side)
    job.end(DONE)


def main() -> int:
    parser = process_parser("sweep")
    parser.add_argument("--ahead", action="store_true", help="candidates are compiled beside")
    flags = parser.parse_args()
    if flags.parent is not None:
        die_with_parent(flags.parent)
    ends = time.monotonic() + flags.seconds
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    candidates = all_candidates(flags.kernels, dry=flags.dry)
    timer = Timer(device, 1 if flags.dry else 15)
    # A graph's capture collects garbage first: what is here now isn't gone through again.
    gc.collect()
    gc.freeze()

    def found(number: int) -> dict[str, Any] | None:
        done = compiled(flags.work, number)
        over = not flags.ahead or over_file(flags.work).exists()
        return {} if done is None and over else done

    with torch.inference_mode():
        measure_limits(flags.work, timer, dry=flags.dry)
        lines = Lines(lines_file(flags.work))
        if not lines.rows:
            moves = {each.setting.name: each.setting.moves for each in candidates}
            lines.add(candidates=[each.facts() for each in candidates], moves=moves)
        hear_compiling(lines)
        try:
            Sweep(lines, device, timer, found, ends).run(candidates)
        except DeviceLost:
            return LOST
    return 0


if __name__ == "__main__":
    sys.exit(main())
