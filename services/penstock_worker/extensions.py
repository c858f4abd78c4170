"""Methods that plug-ins add to workers, for `collective_rpc`."""

from __future__ import annotations

import faulthandler
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

from penstock.config.plugins import (
    WORKER_EXTENSIONS,
    BrokenPlugin,
    Plugin,
    asked_plugins,
    check_plugins,
    installed_plugins,
    leave_out,
)
from penstock.errors import StartupError
from penstock.process import logs
from penstock.protocol.call_values import decode_value, encode_value
from penstock.protocol.from_worker import CallDone, CallFailed
from penstock.protocol.to_worker import WorkerCall
from penstock_worker.loading.loaded import Loaded


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """What an extension may know of one rank, for one loaded model.

    rank, ranks: this one, of how many.  served_name: of the model.  model_dir: its prepared folder.
    device: what computes, as in Ready.  loaded: the model itself, of which nothing is promised to
    stay as it is from one version to the next.
    """

    rank: int
    ranks: int
    served_name: str
    model_dir: str
    device: str
    loaded: Loaded


log = logs.get(__name__)

MOST_ERROR_CHARS = 2000
"""The characters of a method's error that are passed on, at most."""


class ExtensionMethods:
    """An extension is a class that is made with the context; its public methods can be called.

    wanted: as `--worker-extensions`. Those that it names are loaded now, and StartupError is raised
    for one that can't be; with `all`, they are when the first method is called.
    """

    def __init__(self, wanted: str, context: WorkerContext) -> None:
        self._wanted = wanted
        self._context = context
        self._found: dict[str, Callable[..., Any]] | None = None
        check_plugins(wanted, (WORKER_EXTENSIONS,))
        if asked_plugins(wanted):
            self._methods()

    def answer(self, call: WorkerCall) -> CallDone | CallFailed:
        """Calls the method. The process ends where that, or to load the extensions, takes longer
        than it may."""
        with _ended_after(call.seconds):
            return self._answer(call)

    def _answer(self, call: WorkerCall) -> CallDone | CallFailed:
        try:
            known = self._methods()
        except StartupError as error:
            return CallFailed(call.call, "failed", str(error))
        method = known.get(call.method)
        if method is None:
            names = ", ".join(sorted(known)) or "none: no worker extension is installed"
            reason = f"no worker extension has a method {call.method!r}; there are: {names}"
            return CallFailed(call.call, "invalid", reason)
        try:
            args, kwargs = decode_value(call.arguments)
            inspect.signature(method).bind(*args, **kwargs)
        except (TypeError, ValueError) as error:
            return CallFailed(call.call, "invalid", f"{call.method}: {error}")
        return _called(call, method, args, kwargs)

    def _methods(self) -> dict[str, Callable[..., Any]]:
        if self._found is None:
            found: dict[str, Callable[..., Any]] = {}
            for plugin in installed_plugins(WORKER_EXTENSIONS, self._wanted):
                try:
                    self._add(plugin, found)
                except BrokenPlugin as error:
                    leave_out(WORKER_EXTENSIONS, error, self._wanted)
            self._found = found
        return self._found

    def _add(self, plugin: Plugin[object], found: dict[str, Callable[..., Any]]) -> None:
        whose, kind = f"the worker extension {plugin.name} of {plugin.package}", plugin.value
        if not inspect.isclass(kind):
            raise BrokenPlugin(f"{whose} isn't a class")
        try:
            extension = cast("Callable[[WorkerContext], object]", kind)(self._context)
        except (Exception, SystemExit) as error:
            raise BrokenPlugin(f"{whose} raised {type(error).__name__}: {error}") from error
        names = [
            name
            for name, value in inspect.getmembers(kind, callable)
            if not name.startswith("_") and not inspect.isclass(value)
        ]
        taken = [name for name in names if name in found]
        if taken:
            raise BrokenPlugin(f"{whose} has a method {taken[0]}, as another one has")
        found.update({name: getattr(extension, name) for name in names})


def _called(
    call: WorkerCall, method: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]
) -> CallDone | CallFailed:
    try:
        result = encode_value(method(*args, **kwargs))
    # A method that ends the program has failed as much as one that raises.
    except (Exception, SystemExit) as error:
        log.error("a worker extension's method failed", exception=True, method=call.method)
        reason = f"{call.method}: {type(error).__name__}: {error}"
        return CallFailed(call.call, "failed", reason[:MOST_ERROR_CHARS])
    if len(result) > call.result_bytes:
        reason = f"{call.method}: its result has {len(result)} bytes; allowed: {call.result_bytes}"
        return CallFailed(call.call, "failed", reason)
    return CallDone(call.call, result)


@contextmanager
def _ended_after(seconds: float) -> Iterator[None]:
    """Ends the process if what is within isn't done by then, and says where it was. By a thread of
    the interpreter's own that needs no lock, so that nothing can hold it up."""
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
