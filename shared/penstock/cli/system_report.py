"""What `status` and `top` know of a running system: the answer of GET /status."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.cli.http_client import (
    HttpClient,
    Refused,
)
from penstock.cli.terminal import counted


@dataclass(frozen=True)
class SystemReport:
    """raw: the answer.  engine, gateway: its parts, empty without."""

    raw: dict[str, Any]

    @property
    def ready(self) -> bool:
        return bool(self.raw.get("ready"))

    @property
    def reason(self) -> str:
        return str(self.raw.get("reason") or "")

    @property
    def model(self) -> str:
        return str(self.raw.get("model") or "no model yet")

    @property
    def engine(self) -> dict[str, Any]:
        return self.raw.get("engine") or {}

    @property
    def engines(self) -> list[dict[str, Any]]:
        """Each engine core, where there are several; what an older gateway doesn't say is none."""
        engines = self.raw.get("engines")
        return engines if isinstance(engines, list) else []

    @property
    def models(self) -> list[dict[str, Any]]:
        """Each model, where there are several or some on demand."""
        models = self.raw.get("models")
        return models if isinstance(models, list) else []

    @property
    def gateway(self) -> dict[str, Any]:
        return self.raw.get("gateway") or {}

    def count(self, name: str) -> float:
        """A number of the engine's; 0 where it says none."""
        value = self.engine.get(name, 0)
        return value if isinstance(value, (int, float)) else 0

    @property
    def processes(self) -> str:
        """Engine cores, workers and front ends, for a person."""
        workers = counted(self.count("workers"), "worker")
        processes = f"{workers}, {counted(self.count('frontends'), 'front end')}"
        if len(self.engines) < 2:
            return processes
        ready = sum(bool(each.get("ready")) for each in self.engines)
        return f"{len(self.engines)} engine cores ({ready} ready), {processes}"

    @property
    def blocks_used(self) -> int:
        return int(self.count("blocks_total") - self.count("blocks_free"))


@dataclass(frozen=True)
class ModelNumbers:
    """What the engine cores of one model add up to. tokens: generated so far."""

    name: str
    state: str
    running: int
    waiting: int
    blocks_used: int
    blocks_total: int
    tokens: int

    @classmethod
    def of(cls, state: SystemReport, model: dict[str, Any]) -> ModelNumbers:
        name = model.get("model")
        engines = [each for each in state.engines if each.get("model") == name]

        def total(field: str) -> int:
            return sum(int(each.get(field) or 0) for each in engines)

        return cls(
            name=str(name or "-"),
            state=str(model.get("state") or "-"),
            running=total("running"),
            # Those that wait for the model itself are in no engine core yet.
            waiting=total("waiting") + int(model.get("waiting") or 0),
            blocks_used=total("blocks_used"),
            blocks_total=total("blocks_total"),
            tokens=total("tokens_generated"),
        )


def ask(server: HttpClient) -> SystemReport:
    """The state now. Raises Unreachable and Refused."""
    status, answer = server.get("/status")
    if status != 200 or not isinstance(answer, dict):
        error = answer.get("error") if isinstance(answer, dict) else None
        message = error.get("message") if isinstance(error, dict) else "it has no /status"
        raise Refused(status, str(message))
    return SystemReport(answer)


def bar(share: float, columns: int) -> str:
    """`[####....]`, so many columns wide."""
    inner = max(1, columns - 2)
    filled = round(min(max(share, 0.0), 1.0) * inner)
    return "[" + "#" * filled + "." * (inner - filled) + "]"
