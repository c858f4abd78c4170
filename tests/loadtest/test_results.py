"""The committed pages of results are what their measurements make of the JSON files beside them."""

from __future__ import annotations

import importlib.util
import json
import pkgutil
from collections.abc import Iterator

import pytest

import loadtest
from loadtest.peers import compare, inprocess
from loadtest.report import Measurement
from loadtest.report.files import RESULTS

OTHERWISE = {
    "adversary": "the folder of the command was left out by hand",
    "chaos": "has a heading of its own",
    "long_simulation": "the JSON file is of a form with fewer figures",
    "prefill_apart": "ends with a sentence about the machine",
    "simulator_error": "has its page in the README",
    "soak": "the folder of the command was left out by hand",
    "speculation": "the JSON file is of a form with fewer figures",
}
"""Why these differ; a new run makes them follow again."""


SEVERAL = {"inprocess", "speculation"}
"""Those with a page for each of several machines or models."""


def measurements() -> Iterator[Measurement]:
    yield from (compare.COMMAND, inprocess.COMMAND)
    for found in pkgutil.iter_modules(loadtest.__path__, "loadtest."):
        name = f"{found.name}.__main__" if found.ispkg else found.name
        if importlib.util.find_spec(name) is None:
            continue
        command = getattr(importlib.import_module(name), "COMMAND", None)
        if isinstance(command, Measurement):
            yield command


@pytest.mark.slow
def test_pages_follow_from_their_figures() -> None:
    differing, looked_at = set[str](), 0
    for command in measurements():
        for path in RESULTS.glob(f"{command.name}*.json"):
            if path.stem != command.name and command.name not in SEVERAL:
                continue
            looked_at += 1
            page = path.with_suffix(".md")
            if path.stem not in OTHERWISE:
                document = json.loads(path.read_text(encoding="utf-8"))
                if command.text(document) != page.read_text(encoding="utf-8"):
                    differing.add(path.stem)
    assert differing == set()
    assert looked_at > 40
