"""Observers of requests that plug-ins bring: one that raises hurts no request."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.client.observer import Observer, RequestObserver
from penstock.config import plugins
from penstock.config.plugins import BrokenPlugin
from penstock.process import logs

if TYPE_CHECKING:
    from penstock.client.observer import ObservedRequest
    from penstock.protocol.common import FinishReason

log = logs.get(__name__)


def plugged_loggers(wanted: str, served: Callable[[], str | None]) -> list[Observer]:
    """An observer of each plug-in for the requests to one model. wanted: as `--plugins`.  served:
    gives the model's name, once it is known.

    A plug-in is a function from `served` to an Observer. StartupError is raised for one that can't
    be used and that `wanted` names."""
    found: list[Observer] = []
    for plugin in plugins.installed_plugins(plugins.LOGGERS, wanted):
        whose = f"the plug-in {plugin.name} of {plugin.package}"
        try:
            found.append(GuardedObserver(plugin.value(served), whose))  # type: ignore[operator]
        except Exception as error:
            broken = BrokenPlugin(f"{whose} can't log: {type(error).__name__}: {error}")
            plugins.leave_out(plugins.LOGGERS, broken, wanted)
    return found


class GuardedObserver:
    """Wraps a plug-in's observer, which is not called again once it has raised."""

    def __init__(self, observer: Observer, whose: str) -> None:
        if not callable(getattr(observer, "request", None)):
            raise TypeError(f"{observer!r} has no `request`")
        self._observer = observer
        self._whose = whose
        self.broken = False

    def request(self, prompt_tokens: int) -> RequestObserver | None:
        try:
            heard = None if self.broken else self._observer.request(prompt_tokens)
        except Exception as error:
            self.fail(error)
            return None
        return None if heard is None else _Guarded(self, heard)

    def fail(self, error: Exception) -> None:
        """Calls the plug-in's logger no more after its first error."""
        if not self.broken:
            self.broken = True
            reason = f"{type(error).__name__}: {error}"
            log.error(
                "a plug-in's logger failed and is no longer called",
                plugin=self._whose,
                reason=reason,
            )


class _Guarded(RequestObserver):
    """A plug-in's observer, which can neither refuse a request nor hold one: `admit` and `keep` are
    not passed on."""

    def __init__(self, guard: GuardedObserver, observer: RequestObserver) -> None:
        self._guard = guard
        self._observer = observer

    def submitted(self, request: ObservedRequest) -> None:
        self._tell(lambda: self._observer.submitted(request))

    def first_token(self, request: ObservedRequest) -> None:
        self._tell(lambda: self._observer.first_token(request))

    def delta(self, tokens: int, elapsed: float | None) -> None:
        self._tell(lambda: self._observer.delta(tokens, elapsed))

    def finished(self, reason: FinishReason, sequences: int) -> None:
        self._tell(lambda: self._observer.finished(reason, sequences))

    def ended(self, request: ObservedRequest) -> None:
        self._tell(lambda: self._observer.ended(request))

    def _tell(self, say: Callable[[], None]) -> None:
        if self._guard.broken:
            return
        try:
            say()
        except Exception as error:
            self._guard.fail(error)
