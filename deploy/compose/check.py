"""What a deployment has to show, in its order; each part gives what it saw to the findings."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from deploy.compose.blows import Blow, Restart, restart_each, strike
from deploy.compose.docker import Failed
from deploy.compose.first_token import ask
from deploy.compose.load import RetryingFleet, fleet_of
from deploy.compose.system import System
from deploy.compose.targets import wait_grafana, wait_targets

TWO_ENGINES = "deploy/compose.two-engines.yml"


@dataclass(frozen=True)
class Amount:
    """gateways: that it is scaled to.  streams: at once, while containers are killed.  tokens: of
    each answer.  kills: of each kind of container.  restarting: streams during restarts."""

    gateways: int = 4
    streams: int = 64
    tokens: int = 48
    kills: int = 1
    restarting: int = 16


@dataclass
class Findings:
    """What was seen. targets: that Prometheus finds up, by job.  wrong: what should not have been;
    empty is the proof."""

    answers: dict[str, str] = field(default_factory=dict)
    blows: list[Blow] = field(default_factory=list)
    restarts: list[Restart] = field(default_factory=list)
    targets: dict[str, int] = field(default_factory=dict)
    equal: int = 0
    wrong: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    def add_score(self, fleet: RetryingFleet) -> None:
        """What a fleet has counted."""
        self.equal += fleet.score.equal
        self.wrong += fleet.score.wrong


class Check:
    """image: of a gateway, which has Python in it."""

    def __init__(self, system: System, url: str, image: str, amount: Amount) -> None:
        self._system = system
        self._url = url
        self._image = image
        self._amount = amount
        self.findings = Findings()

    def run(self) -> Findings:
        """All of it. Raises Failed or TimeoutError where it can't go on."""
        for name, part in (
            ("chat with 1 and more gateways", self._scale),
            ("kills", lambda: asyncio.run(self._kills())),
            ("restart of gateways", lambda: asyncio.run(self._restarts("gateway"))),
            ("restart of engines", self._engines),
        ):
            begun = time.monotonic()
            print(f"{name} …", flush=True)
            part()
            self.findings.seconds[name] = time.monotonic() - begun
        return self.findings

    def _scale(self) -> None:
        for gateways in (1, self._amount.gateways):
            self._system.up(gateways=gateways)
            self._system.wait_ready("gateway", "engine", "worker", "haproxy")
            answers = {ask(self._url, max_tokens=32) for _ in range(2 * gateways)}
            if len(answers) != 1:
                self.findings.wrong.append(f"{gateways} gateways gave {answers} to one question")
            self.findings.answers[f"{gateways} gateways"] = answers.pop()
        if len(set(self.findings.answers.values())) != 1:
            self.findings.wrong.append(f"answers differ: {self.findings.answers}")

    async def _kills(self) -> None:
        fleet = fleet_of(self._url, self._amount.streams, self._amount.tokens)
        async with fleet:
            for victim in ("worker", "engine", "gateway", "haproxy"):
                for _ in range(self._amount.kills):
                    await asyncio.sleep(2.0)
                    container = self._system.containers(victim)[0]
                    blow = await strike(self._system, fleet, container, self._image)
                    self.findings.blows.append(blow)
                    self._judge(blow)
        self.findings.add_score(fleet)

    def _judge(self, blow: Blow) -> None:
        """A killed worker or engine cuts nobody; a killed gateway its own clients only; the one
        load balancer everybody."""
        allowed = blow.open_there or 0
        if blow.cuts > allowed:
            self.findings.wrong.append(
                f"kill of a {blow.victim}: {blow.cuts} streams were cut; at most {allowed} may be"
            )

    async def _restarts(self, *services: str) -> None:
        fleet = fleet_of(self._url, self._amount.restarting, self._amount.tokens)
        async with fleet:
            self.findings.restarts.append(await restart_each(self._system, fleet, *services))
            if len(services) > 1:
                # With another one left, what it had is resumed there.
                container = self._system.containers(services[-1])[0]
                blow = await strike(self._system, fleet, container, self._image)
                self.findings.blows.append(blow)
                self._judge(blow)
        self.findings.add_score(fleet)

    def _engines(self) -> None:
        """With a second engine beside it, each is restarted while the other serves."""
        self._system = self._system.with_files(TWO_ENGINES)
        self._system.up(gateways=self._amount.gateways)
        services = ("engine", "engine-2")
        self._system.wait_ready(*services, "worker", "worker-2", "gateway")
        for container in self._system.containers("gateway"):
            if not self._system.gateway_state(container)["ready"]:
                raise Failed(f"{container.name} is not ready with two engines")
        self._see_targets(
            {"gateway": self._amount.gateways, "engine": 2, "worker": 2, "haproxy": 1}
        )
        self._see_dashboard()
        asyncio.run(self._restarts(*services))

    def _see_dashboard(self) -> None:
        if {"prometheus", "grafana"} & self._system.left_out.keys():
            return
        missing = wait_grafana(f"http://127.0.0.1:{self._system.environment['GRAFANA_PORT']}")
        if missing:
            self.findings.wrong.append(f"Grafana doesn't show the dashboard: {missing}")

    def _see_targets(self, wanted: dict[str, int]) -> None:
        if "prometheus" in self._system.left_out:
            return
        port = self._system.environment["PROMETHEUS_PORT"]
        self.findings.targets = wait_targets(f"http://127.0.0.1:{port}", wanted)
        if self.findings.targets != wanted:
            self.findings.wrong.append(f"Prometheus sees {self.findings.targets}, not {wanted}")
