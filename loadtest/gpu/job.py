"""A part's process: `python -m loadtest.gpu.job NAME --output FOLDER --work FOLDER --seconds N`.

Rows are written as they come, so that what was measured stays when the process is ended.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import sys
import time
import traceback
from collections.abc import Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadtest.gpu.extent import DRY, GPU, Extent
from loadtest.gpu.parts import PARTS, Part

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

DONE, OUT_OF_TIME, FAILED, ABSENT = "done", "out of time", "failed", "not present"


class OutOfTime(Exception):
    """The part's time is up; its rows stay."""


class Absent(Exception):
    """A module that the part measures isn't there. The message names it."""


class Job:
    """What a part is given: its sizes, its time, and where its rows go.

    work: a folder for files of no lasting use.  model: the model that this part measures, if it is
    one of a model.
    """

    def __init__(
        self, part: Part, output: Path, work: Path, seconds: float, extent: Extent
    ) -> None:
        self.part = part
        self.output = output
        self.work = work
        self.extent = extent
        self._begun = time.monotonic()
        self._seconds = seconds
        self._document: dict[str, Any] = {
            "part": part.name,
            "status": "begun",
            "reason": "",
            "seconds": 0.0,
            "notes": [],
            "rows": [],
        }
        self._write()

    @property
    def model(self) -> str:
        """Raises IndexError in a trial with fewer models."""
        return self.extent.models[self.part.model]

    @property
    def device(self) -> torch.device:
        import torch

        return torch.device("cuda" if torch.cuda.is_available() else "cpu")

    @property
    def left(self) -> float:
        """Seconds."""
        return self._begun + self._seconds - time.monotonic()

    def need(self, seconds: float = 0.0) -> None:
        """Raises OutOfTime where less is left."""
        if self.left <= seconds:
            raise OutOfTime

    def row(self, **figures: Any) -> None:
        self._document["rows"].append(figures)
        print(json.dumps(figures), file=sys.stderr, flush=True)
        self._write()

    def note(self, text: str) -> None:
        self._document["notes"].append(text)
        print(text, file=sys.stderr, flush=True)
        self._write()

    @contextmanager
    def attempt(self, what: str) -> Iterator[None]:
        """What fails inside is noted, and the part goes on."""
        try:
            yield
        except (OutOfTime, Absent):
            raise
        except Exception as error:
            traceback.print_exc()
            self.note(f"{what} failed: {type(error).__name__}: {shortened(str(error))}")

    def end(self, status: str, reason: str = "") -> None:
        self._document |= {"status": status, "reason": reason}
        self._write()

    def _write(self) -> None:
        self._document["seconds"] = round(time.monotonic() - self._begun, 1)
        write_json(part_file(self.output, self.part.name), self._document)


def part_file(output: Path, name: str) -> Path:
    return output / "parts" / f"{name}.json"


def write_json(path: Path, document: Any) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    making = path.with_suffix(".making")
    making.write_text(json.dumps(document, indent=1) + "\n")
    os.replace(making, path)


def absent(names: Iterable[str]) -> list[str]:
    """Those of these modules that aren't there."""
    return [name for name in names if not _is_there(name)]


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:
        return False


def require(*names: str) -> None:
    """Raises Absent."""
    lacking = absent(names)
    if lacking:
        raise Absent(", ".join(lacking))


def shortened(text: str) -> str:
    """A message's first line, without this machine's folders."""
    line = (text.strip().splitlines() or [""])[0]
    for place in (str(Path(__file__).resolve().parents[2]), str(Path.home())):
        line = line.replace(place, "…")
    return line[:300]


def run(job: Job) -> None:
    """The part, and how it ended."""
    try:
        require(*job.part.needs)
        importlib.import_module(job.part.module).run(job)
    except OutOfTime:
        job.end(OUT_OF_TIME, "what is missing was not measured in the part's time")
    except Absent as error:
        job.end(ABSENT, str(error))
    except Exception as error:
        traceback.print_exc()
        job.end(FAILED, f"{type(error).__name__}: {shortened(str(error))}")
    else:
        job.end(DONE)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtest.gpu.job")
    parser.add_argument("name", choices=[part.name for part in PARTS])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--dry", action="store_true")
    flags = parser.parse_args()
    part = next(part for part in PARTS if part.name == flags.name)
    job = Job(part, flags.output, flags.work, flags.seconds, DRY if flags.dry else GPU)
    run(job)
    return 0


if __name__ == "__main__":
    sys.exit(main())
