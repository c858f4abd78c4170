"""Methods of worker extensions: which there are, and what becomes of one that misbehaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from penstock.config.plugins import WORKER_EXTENSIONS
from penstock.errors import StartupError
from penstock.protocol.call_values import decode_value, encode_value
from penstock.protocol.common import MAX_CALL_BYTES
from penstock.protocol.from_worker import CallDone, CallFailed
from penstock.protocol.to_worker import WorkerCall
from penstock_worker import extensions
from penstock_worker.extensions import ExtensionMethods, WorkerContext
from testing.examples import write_package
from tests.said import said

MODULE = """
import sys

from penstock_worker import extensions

class Sound:
    def __init__(self, context):
        self._watched = extensions.faulthandler.watched
        self._rank = context.rank
    def rank(self): return self._rank
    def was_watched(self): return [self._watched, extensions.faulthandler.watched]
    def leaves(self): sys.exit(3)
    def large(self): return bytes(LARGE)
    def _private(self): return 1

class Same:
    def __init__(self, context): pass
    def rank(self): return "another's"

class Leaves:
    def __init__(self, context): sys.exit(3)
    def left(self): return 1

class Raises(Leaves):
    def __init__(self, context): raise ValueError("no luck")

function = print
"""


class Watch:
    """Instead of the interpreter's, which would end this process."""

    watched: float | None = None

    def dump_traceback_later(self, seconds: float, *, exit: bool) -> None:
        assert exit
        self.watched = seconds

    def cancel_dump_traceback_later(self) -> None:
        self.watched = None


@pytest.fixture(autouse=True)
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    watch = Watch()
    monkeypatch.setattr(extensions, "faulthandler", watch)
    return watch


@pytest.fixture(autouse=True)
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = MODULE.replace("LARGE", str(MAX_CALL_BYTES))
    (tmp_path / "pst_methods.py").write_text(text)
    named = {"a_sound": "Sound", "b_same": "Same", "leaves": "Leaves", "raises": "Raises"}
    points = {name: f"pst_methods:{value}" for name, value in named.items()}
    points["function"] = "pst_methods:function"
    write_package(tmp_path, "pst-methods", "1.0", {WORKER_EXTENSIONS: points})
    monkeypatch.syspath_prepend(str(tmp_path))


def installed(wanted: str = "all") -> ExtensionMethods:
    context = WorkerContext(2, 4, "served", "/model", "cpu", cast("Any", None))
    return ExtensionMethods(wanted, context)


def call(of: ExtensionMethods, method: str, *args: Any) -> CallDone | CallFailed:
    return of.answer(WorkerCall(5, method, encode_value([args, {}]), 9.0))


def test_those_that_are_broken_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    answer = call(installed(), "rank")
    assert isinstance(answer, CallDone)
    assert decode_value(answer.result) == 2
    told = said(caplog)
    for says in (
        "the worker extension b_same of pst-methods 1.0 has a method rank, as another one has",
        "the worker extension leaves of pst-methods 1.0 raised SystemExit: 3",
        "the worker extension raises of pst-methods 1.0 raised ValueError: no luck",
        "the worker extension function of pst-methods 1.0 isn't a class",
    ):
        assert says in told
    answer = call(installed("a_sound"), "_private")
    assert isinstance(answer, CallFailed)
    assert answer.code == "invalid"
    assert answer.error.endswith("there are: large, leaves, rank, was_watched")


@pytest.mark.parametrize("name", ["leaves", "raises", "function"])
def test_a_broken_one_that_was_asked_for_stops_the_start(name: str) -> None:
    with pytest.raises(StartupError, match=f"--worker-extensions {name}: .* {name} of pst-meth"):
        installed(name)


def test_the_bound_holds_from_the_first_import_to_the_result(watch: Watch) -> None:
    """An extension that hangs when it is made holds up steps as much as a method."""
    answer = call(installed(), "was_watched")
    assert isinstance(answer, CallDone)
    assert decode_value(answer.result) == [9.0, 9.0]
    assert watch.watched is None


@pytest.mark.parametrize(
    ("method", "says"),
    [
        ("leaves", "leaves: SystemExit: 3"),
        ("large", f"large: its result has {MAX_CALL_BYTES + 5} bytes; allowed: {MAX_CALL_BYTES}"),
    ],
)
def test_what_a_method_does_wrong_is_told(method: str, says: str) -> None:
    assert call(installed(), method) == CallFailed(5, "failed", says)


def test_a_result_that_fits_no_message_is_an_error() -> None:
    """The worker's session would end over it."""
    asked = WorkerCall(5, "rank", encode_value([[], {}]), 9.0, result_bytes=0)
    says = "rank: its result has 1 bytes; allowed: 0"
    assert installed().answer(asked) == CallFailed(5, "failed", says)
