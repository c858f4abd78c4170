"""A part's process: `python -m loadtest.gpu.job NAME --output FOLDER --work FOLDER --seconds N`.

Rows are written as they come, so that what was measured stays when the process is ended.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
import traceback
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadtest.gpu.extent import DRY, GPU, Extent
from loadtest.gpu.model_folder import write_model
from loadtest.gpu.parts import EVERY_PART, Part
from loadtest.gpu.shapes import MODELS
from loadtest.report.facts import without_folders
from penstock.model.config import ModelConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

BEGUN, DONE, OUT_OF_TIME, FAILED = "begun", "done", "out of time", "failed"
ABSENT, NOT_BEGUN = "not present", "not begun"
OPTIONAL = ("transformers", "humming")
"""Modules without which a part is not present, and has not failed."""


class OutOfTime(Exception):
    """The part's time is up; its rows stay."""


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
        self._faults: list[str] = []
        self._document = new_document(part)
        self._write()

    @property
    def model(self) -> str:
        return self.extent.models[self.part.model]

    @property
    def config(self) -> ModelConfig:
        """The model's."""
        return MODELS[self.model]

    def model_folder(self) -> Path:
        """Writes the model's folder, without weights: `load_format dummy` needs none."""
        return write_model(self.work / self.model, self.config)

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

    def fault(self, text: str) -> None:
        """A note of what is wrong: the part has failed, whatever else it measures."""
        self._faults.append(text)
        self.note(text)

    def note(self, text: str) -> None:
        self._document["notes"].append(text)
        print(text, file=sys.stderr, flush=True)
        self._write()

    @contextmanager
    def attempt(self, what: str, *, own: bool = True) -> Iterator[None]:
        """What fails inside is noted, and the part goes on; in the end it has failed. own: False
        for what is none of this project's: it is only noted."""
        try:
            yield
        except OutOfTime:
            raise
        except Exception as error:
            traceback.print_exc()
            text = f"{what} failed: {shortened(error)}"
            self.fault(text) if own else self.note(text)
            if lost(error):
                raise

    def end(self, status: str, reason: str = "") -> None:
        if self._faults and status != ABSENT:
            more = f" (and {len(self._faults) - 1} more)" if len(self._faults) > 1 else ""
            late = f"; {reason}" if reason and reason not in self._faults[0] else ""
            status, reason = FAILED, f"{self._faults[0]}{more}{late}"
        self._document |= {"status": status, "reason": reason}
        self._write()

    def _write(self) -> None:
        self._document["seconds"] = round(time.monotonic() - self._begun, 1)
        write_json(part_file(self.output, self.part.name), self._document)


def lost(error: Exception) -> bool:
    """Whether the device's context is gone: every further call would say the same."""
    text = str(error)
    return any(each in text for each in ("CUDA error", "illegal memory", "device-side assert"))


def new_document(part: Part) -> dict[str, Any]:
    known = {"part": part.name, "status": BEGUN, "reason": "", "seconds": 0.0}
    return {**known, "notes": [], "rows": []}


def part_file(output: Path, name: str) -> Path:
    return output / "parts" / f"{name}.json"


def write_json(path: Path, document: Any) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    making = path.with_suffix(".making")
    making.write_text(json.dumps(document, indent=1) + "\n")
    os.replace(making, path)


def shortened(error: Exception) -> str:
    """Returns the error's name, and its message's first line without this machine's folders."""
    line = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {without_folders(line)[:300]}"


def run(job: Job) -> None:
    """The part, and how it ended."""
    try:
        importlib.import_module(job.part.module).run(job)
    except OutOfTime:
        job.end(OUT_OF_TIME, "what is missing was not measured in the part's time")
    except Exception as error:
        traceback.print_exc()
        absent = isinstance(error, ModuleNotFoundError) and error.name in OPTIONAL
        job.end(ABSENT if absent else FAILED, shortened(error))
    else:
        job.end(DONE)


def process_parser(module: str) -> argparse.ArgumentParser:
    """What all processes are told."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--dry", action="store_true")
    return parser


def main() -> int:
    parser = process_parser("loadtest.gpu.job")
    parser.add_argument("name", choices=EVERY_PART)
    parser.add_argument("--output", type=Path, required=True)
    flags = parser.parse_args()
    part = EVERY_PART[flags.name]
    run(Job(part, flags.output, flags.work, flags.seconds, DRY if flags.dry else GPU))
    return 0


if __name__ == "__main__":
    sys.exit(main())
