"""Load of many kinds on a server of its own that records its steps: what these cost is fitted to
the recording."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from penstock.config.settings import ServeConfig
from penstock.config.tree import replace_settings
from penstock.errors import InvalidRequest, StartupError
from penstock_bench.load.options import Length, LoadOptions
from penstock_bench.load.run import run

START_SECONDS, STOP_SECONDS = 600.0, 60.0
READY = re.compile(r"Penstock is ready: (\S+) on (https?://\S+)$")

LONE_REQUESTS = 12
"""Requests of the first part, which have the server to themselves."""

SEVERAL = ((2, 4, 8, 16, 32, 64), (3, 5, 7, 13, 24, 48), (2, 6, 10, 20, 40, 64))
"""Streams at a time, in each part of each round. What else the machine did in one of the rounds
then weighs little. Not only powers of two: kernels compute rows in groups, and a step of five or
seven sequences takes a tenth longer than those of four and eight tell."""

SHORT = 16
"""Most tokens of a short prompt."""

MANY = 100_000
"""Requests that no part comes to the end of."""

SHORTEST, LONGEST = 10, 3600


class LoadShape(NamedTuple):
    """input_tokens, output_tokens: as `bench serve` takes them.  seconds: of all parts."""

    input_tokens: str
    output_tokens: str
    seconds: int
    seed: int = 0


class LoneRequests(NamedTuple):
    """model: its name.  lone, lone_ttft: requests that had the server to themselves, and their
    mean time to the first token, seconds."""

    model: str
    lone: int
    lone_ttft: float


def load_and_record(
    config: ServeConfig, model: str | None, folder: Path, shape: LoadShape
) -> LoneRequests:
    """Starts a server that records in the folder's `recordings`, loads it, and stops it. Raises
    StartupError, InvalidRequest, OptionError, TargetError."""
    if not SHORTEST <= shape.seconds <= LONGEST:
        raise InvalidRequest(
            f"--seconds must be in {SHORTEST} to {LONGEST}, not {shape.seconds}", param="seconds"
        )
    record = {
        "record_dir": str(folder / "recordings"),
        "record_max_mib": 4096,
        "speculative_config": "off",
    }
    settings = folder / "settings.json"
    settings.write_bytes(msgspec.json.encode(replace_settings(config, record)))
    with _server(settings, model, folder / "log") as (name, url):
        return load(name, url, shape)


def load(model: str, url: str, shape: LoadShape) -> LoneRequests:
    """Loads a server that serves the model and records. Raises InvalidRequest, OptionError,
    TargetError."""
    lone, *_ = [run(each, progress=False).summary.ttft_ms for each in parts(url, shape)]
    if lone is None:
        raise InvalidRequest("no request got a token; a longer --seconds may help", param="seconds")
    return LoneRequests(model, lone.count, lone.mean / 1000)


def parts(url: str, shape: LoadShape) -> list[LoadOptions]:
    """All parts have the same time: one stream, and each of a round's parts with those of the other
    rounds that are in its place.

    While many streams send long prompts, a slow machine computes hardly anything else, and what
    batches of decodes take would remain unknown: these are most of what it computes at a rate that
    it can bear. So in every other part prompts are short; in the next round they are in the others.
    """
    each = shape.seconds / (1 + len(SEVERAL[0]))
    found = [_part(url, 1, each, 0, shape)]
    for number, streams in enumerate(SEVERAL):
        for at, count in enumerate(streams):
            short = (at + number) % 2 == 1
            found.append(_part(url, count, each / len(SEVERAL), len(found), shape, short=short))
    return found


def _part(
    url: str, streams: int, seconds: float, number: int, shape: LoadShape, *, short: bool = False
) -> LoadOptions:
    """number: of the part, each of which has other prompts."""
    prompts = Length.parse(shape.input_tokens)
    return LoadOptions(
        url=url,
        concurrency=streams,
        requests=LONE_REQUESTS if streams == 1 else MANY,
        max_time=seconds,
        warmup=0,
        input_tokens=Length("uniform", 1, min(SHORT, prompts.high)) if short else prompts,
        output_tokens=Length.parse(shape.output_tokens),
        temperature=1.0,  # Greedy answers repeat themselves.
        seed=shape.seed + number,
    )


@contextmanager
def _server(settings: Path, model: str | None, log: Path) -> Iterator[tuple[str, str]]:
    """Gives its model's name and URL."""
    command = [sys.executable, "-m", "penstock", "serve", *([model] if model else [])]
    command += ["--config", str(settings), "--host", "127.0.0.1", "--port", "0"]
    with open(log, "wb") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True
        )
    late = threading.Timer(START_SECONDS, process.terminate)
    late.start()
    try:
        for line in process.stdout or ():
            match = READY.match(line.rstrip())
            if match is not None:
                late.cancel()
                yield match[1], match[2]
                return
        said = log.read_text(encoding="utf-8", errors="replace").strip()[-2000:]
        raise StartupError(f"the server to be measured didn't start:\n{said}")
    finally:
        late.cancel()
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
