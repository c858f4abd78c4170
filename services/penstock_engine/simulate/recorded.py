"""A recording as traffic: the trace that it holds, and the latencies that the engine gave it."""

from __future__ import annotations

from pathlib import Path

from penstock.protocol.from_frontend import Submit
from penstock.protocol.to_frontend import Outputs, Rejected
from penstock_engine.record.framing import Torn
from penstock_engine.record.replay import RecordedEvent, RecordingFile
from penstock_engine.sessions.effects import Effects
from penstock_engine.simulate.metrics import Metrics, Open, Slo
from penstock_engine.simulate.trace import TraceRequest


class Traffic:
    """What a recording's front ends asked for, and when the engine answered, by its own clock.

    trace: of requests that ended, by arrival, lengths only; of several sequences the first.
    """

    def __init__(self, slo: Slo) -> None:
        self.metrics = Metrics(slo)
        self._open: dict[bytes, dict[int, Open]] = {}
        self._found: list[Open] = []

    @property
    def begun(self) -> float:
        """The engine's clock at the first arrival of those that ended."""
        return min((one.arrival for one in self._found), default=0.0)

    @property
    def trace(self) -> list[TraceRequest]:
        """Times count from the first arrival."""
        ended = sorted(self._found, key=lambda one: one.arrival)
        begun = self.begun
        return [
            TraceRequest(one.arrival - begun, one.prompt, one.tokens, one.tenant, one.priority)
            for one in ended
        ]

    def read(self, path: Path) -> None:
        """Replays one file. Raises Damaged, OSError; a torn tail is left out."""
        with open(path, "rb") as file:
            recording = RecordingFile(path, file)
            core = recording.core
            try:
                for record in recording.records():
                    if record.name == "raised":
                        return
                    result = getattr(core, record.name)(*record.arguments)
                    if record.name == "step":
                        self._answered(result, record.arguments[-1])
                    else:
                        self._asked(record)
            except Torn:
                return

    def _asked(self, record: RecordedEvent) -> None:
        if record.name == "frontend_ended":
            self._open.pop(record.arguments[0], None)
        if record.name != "frontend_received" or not isinstance(record.arguments[1], Submit):
            return
        session, submit, now = record.arguments
        if submit.resumed:
            return
        tenant = str(getattr(submit, "tenant", "") or "")
        priority = int(getattr(submit, "priority", 0) or 0)
        opened = Open(now, len(submit.prompt_token_ids), tenant, priority)
        self._open.setdefault(session, {})[submit.request] = opened
        self.metrics.submitted += 1

    def _answered(self, effects: Effects, now: float) -> None:
        for session, message, _ in effects.to_frontends:
            requests = self._open.get(session, {})
            if isinstance(message, Rejected) and requests.pop(message.request, None) is not None:
                self.metrics.refuse(message.request, now)
            elif isinstance(message, Outputs):
                mine = [
                    one for one in message.outputs if not one.sequence and one.request in requests
                ]
                for number in self.metrics.outputs(Outputs(mine), requests, now):
                    ended = requests.pop(number)
                    if ended.tokens:
                        self._found.append(ended)
