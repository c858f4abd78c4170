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
    differing, looked_at = set[str](), set[str]()
    for command in measurements():
        path = RESULTS / f"{command.name}.json"
        if path.is_file():
            looked_at.add(command.name)
            saved = json.loads(path.read_text(encoding="utf-8"))
            if command.page(saved) != path.with_suffix(".md").read_text(encoding="utf-8"):
                differing.add(command.name)
    assert differing == set()
    assert looked_at >= {"comparison", "gateway", "inprocess", "speculation"}
