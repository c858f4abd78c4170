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

from loadtest.gpu.extent import DRY, GPU
from loadtest.gpu.job import Job, part_file, shortened
from loadtest.gpu.job import run as run_part
from loadtest.gpu.parts import PARTS
from loadtest.gpu.parts.cases import Case, Tiles
from loadtest.gpu.timing import Timer
from loadtest.gpu.tune.advice import TIMED
from loadtest.gpu.tune.ahead import compiled, over_file
from loadtest.gpu.tune.processes import Lines, lines_file, parser
from loadtest.gpu.tune.settings import Candidate, Setting
from loadtest.gpu.tune.table import all_candidates
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
        self.case, self._timer = case, timer
        self._bench = case.make(device)
        if self._bench.reference is None:
            raise ValueError(f"{case.shape} has nothing to be held against")
        self._wanted = self._bench.reference()
        work = self._bench.work(present)
        self._present_error = self._check(work())
        self._present = timer.ready(work)

    def time(self, candidate: Candidate) -> dict[str, Any]:
        """Figures of a row. Raises Wrong."""
        calls, error = [self._present], self._present_error
        if not candidate.present:
            work = self._bench.work(candidate.tiles)
            error = self._check(work())
            calls.append(self._timer.ready(work))
        timed = self._timer.in_turns(calls)
        return {
            "seconds": timed[-1].seconds,
            "present_seconds": timed[0].seconds,
            "graph": timed[-1].graph,
            "error": error,
        }

    def _check(self, result: object) -> float:
        """The largest of its rows' errors, as shares of their norms. Raises Wrong where it is too
        large."""
        if not isinstance(result, Tensor):
            raise TypeError(f"the call returned {type(result).__name__}")
        exact = self._bench.exact
        error = distance(self._bench.sample(result), self._wanted, exact=exact)
        if not error <= (0 if exact else TOLERANCE):
            raise Wrong(f"off by {error:.2g} of the reference")
        return error


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
        self._shapes: dict[str, list[Shape]] = {}  # by setting
        self._at = ""  # the shape in which something is called now

    def run(self, candidates: list[Candidate]) -> None:
        """In order, as they are compiled, until all are done or the time is over. Nothing more of
        a setting whose present choice fails."""
        presents = {each.setting.name: each for each in candidates if each.present}
        broken_off = self._lines.broken_off
        for candidate in candidates:
            if candidate.number == broken_off:
                self._fail(candidate, FAILED, "the process ended, or stood still, in its turn")
                self._lines.add(done=candidate.number)
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
            self._try(ready, presents[ready.setting.name])

    def _is_ready(self, candidate: Candidate, left: list[Candidate]) -> bool:
        """Present choices come first."""
        waits = any(each.present and each.setting is candidate.setting for each in left)
        return (candidate.present or not waits) and self._found(candidate.number) is not None

    def _try(self, candidate: Candidate, present: Candidate) -> None:
        found = self._found(candidate.number) or {}
        setting = candidate.setting
        if found.get("reason"):
            self._fail(candidate, UNCOMPILED, found["reason"])
            self._lines.add(done=candidate.number)
            return
        if setting.name not in self._shapes:
            # What goes wrong here is the present choice's fault.
            self._turn(present, lambda: self._build(setting))
        if setting.name in self._shapes:
            resources = found.get("kernels", {}).get(setting.kernel, {})
            self._turn(candidate, lambda: self._time(candidate, resources), **resources)

    def _turn(self, candidate: Candidate, work: Callable[[], None], **resources: int) -> None:
        """Does the work in the candidate's name."""
        self._lines.add(trying=candidate.number)
        try:
            work()
        except Exception as error:
            traceback.print_exc()
            status = WRONG if isinstance(error, Wrong) else FAILED
            self._fail(candidate, status, shortened(error), self._at, **resources)
            self._still_there()
        finally:
            self._lines.add(done=candidate.number)

    def _build(self, setting: Setting) -> None:
        made = []
        for case in setting.cases:
            self._at = case.shape
            made.append(Shape(case, setting.present, self._device, self._timer))
        self._shapes[setting.name] = made

    def _time(self, candidate: Candidate, resources: dict[str, int]) -> None:
        for place, shape in enumerate(self._shapes[candidate.setting.name]):
            case, self._at = shape.case, shape.case.shape
            figures = shape.time(candidate)
            self._lines.add(
                **candidate.facts(), shape=case.shape, status=TIMED,
                bytes=case.size, flops=case.flops, **figures, **resources,
            )  # fmt: skip
            if place == 0 and figures["seconds"] > SLOW * figures["present_seconds"]:
                return

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


def measure_limits(work: Path, *, dry: bool) -> None:
    """As the GPU measurements do."""
    [limits] = (part for part in PARTS if part.name == "limits")
    if not part_file(work, limits.name).is_file():
        run_part(Job(limits, work, work, 60.0, DRY if dry else GPU))


def main() -> int:
    own = parser("sweep")
    own.add_argument("--ahead", action="store_true", help="candidates are compiled beside")
    flags = own.parse_args()
    if flags.parent is not None:
        die_with_parent(flags.parent)
    ends = time.monotonic() + flags.seconds
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    candidates = all_candidates(flags.kernels, dry=flags.dry)
    # A graph's capture collects garbage first: what is here now isn't gone through again.
    gc.collect()
    gc.freeze()

    def found(number: int) -> dict[str, Any] | None:
        done = compiled(flags.work, number)
        over = not flags.ahead or over_file(flags.work).exists()
        return {} if done is None and over else done

    measure_limits(flags.work, dry=flags.dry)
    lines = Lines(lines_file(flags.work))
    if not lines.rows:
        shared = {each.setting.name: each.setting.shared for each in candidates}
        lines.add(candidates=[each.facts() for each in candidates], shared=shared)
    sweep = Sweep(lines, device, Timer(device, 1 if flags.dry else 15), found, ends)
    try:
        with torch.inference_mode():
            sweep.run(candidates)
    except DeviceLost:
        return LOST
    return 0


if __name__ == "__main__":
    sys.exit(main())
