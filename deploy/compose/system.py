"""One compose project: built, brought up, looked at, taken down."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from deploy.compose import docker
from deploy.compose.docker import Failed

BUILD_SECONDS = 3600.0
READY_SECONDS = 300.0
OPTIONAL = ("grafana", "prometheus")
"""Left out, with a word about it, where their image can't be had: nothing that serves needs
them."""


@dataclass(frozen=True)
class Container:
    """pid: of its first process, as the engine counts them.  probe: its health check's command."""

    id: str
    name: str
    service: str
    pid: int
    running: bool
    probe: tuple[str, ...]


@dataclass
class System:
    """files: the compose file and its overrides.  environment: what compose's variables are.
    left_out: services that are not started, and why."""

    project: str
    files: Sequence[str]
    environment: dict[str, str]
    left_out: dict[str, str] = field(default_factory=dict)

    def compose(self, *words: str, show: bool = False, timeout: float = docker.PATIENCE) -> str:
        """`docker compose …` for this project. Raises Failed."""
        files = [word for file in self.files for word in ("-f", file)]
        return docker.run(
            [*docker.compose_command(), "-p", self.project, *files, *words],
            environment={**self.environment, **docker.builder_environment()},
            timeout=timeout,
            show=show,
        )

    def tree(self) -> dict[str, Any]:
        """The compose files as compose reads them together."""
        return dict(yaml.safe_load(self.compose("config")))

    def with_files(self, *files: str) -> System:
        """This project with overrides."""
        return System(self.project, [*self.files, *files], self.environment, self.left_out)

    def build(self) -> None:
        """Every image that has a recipe here, one service for each. Raises Failed."""
        services = self.tree()["services"]
        one_each = {spec["image"]: name for name, spec in services.items() if "build" in spec}
        self.compose("build", *one_each.values(), show=True, timeout=BUILD_SECONDS)

    def choose_services(self) -> list[str]:
        """The services that can be started here."""
        services = self.tree()["services"]
        for name in OPTIONAL:
            if name in services and not self._can_have(services[name]["image"]):
                self.left_out[name] = f"{services[name]['image']} can't be had here"
        return [name for name in services if name not in self.left_out]

    def _can_have(self, image: str) -> bool:
        if docker.has_image(image):
            return True
        try:
            docker.docker("pull", "-q", image, timeout=300)
        except Failed:
            return False
        return True

    def up(self, *, gateways: int = 1) -> None:
        """Starts what is not running, with so many gateways. Raises Failed."""
        self.compose("up", "-d", "--scale", f"gateway={gateways}", *self.choose_services())

    def down(self) -> None:
        """Everything of the project away, volumes too."""
        self.compose("down", "-v", "--remove-orphans", "-t", "5")

    def containers(self, service: str | None = None) -> list[Container]:
        """In the order of their names; of one service or of all."""
        flags = ["--filter", f"label=com.docker.compose.project={self.project}"]
        if service is not None:
            flags += ["--filter", f"label=com.docker.compose.service={service}"]
        ids = docker.docker("ps", "-aq", *flags).split()
        found = [_container(raw) for raw in docker.inspect(*ids)] if ids else []
        return sorted(found, key=lambda each: each.name)

    def wait_ready(self, *services: str, seconds: float = READY_SECONDS) -> float:
        """Until every container of the services runs and its health check, made now, says so: what
        the engine knows may be as old as the check's interval. Returns the seconds; raises Failed
        with the last lines of what isn't."""
        begun = time.monotonic()
        while True:
            waiting = [
                each
                for service in services
                for each in self.containers(service)
                if not _is_healthy(each)
            ]
            if not waiting:
                return time.monotonic() - begun
            if time.monotonic() - begun > seconds:
                raise Failed("\n".join(self._last_words(each) for each in waiting))
            time.sleep(0.25)

    def _last_words(self, container: Container) -> str:
        lines = docker.run(["sh", "-c", f"docker logs --tail 8 {container.id} 2>&1"])
        state = "not healthy" if container.running else "not running"
        return f"{container.name} is {state}:\n{lines}"

    def gateway_state(self, container: Container) -> dict[str, Any]:
        """GET /status of one gateway, asked from inside. Raises Failed."""
        url = "http://127.0.0.1:8000/status"
        return dict(json.loads(docker.docker("exec", container.id, "penstock", "health", url)))

    def memory(self) -> dict[str, float]:
        """MiB of resident memory by container: the sum over its processes."""
        found = {}
        for each in self.containers():
            if each.running:
                lines = docker.docker("top", each.id, "-eo", "pid,rss").splitlines()[1:]
                found[each.name] = sum(int(line.split()[1]) for line in lines) / 1024
        return found

    def image_sizes(self, base: str) -> dict[str, float]:
        """MB (10^6 bytes) of each image's own layers over the base image, by service."""
        services = self.tree()["services"]
        own = {spec["image"]: name for name, spec in services.items() if "build" in spec}
        under = _size(base)
        return {name: (_size(image) - under) / 1e6 for image, name in own.items()}


def _size(image: str) -> int:
    return int(docker.inspect(image)[0]["Size"])


def _is_healthy(container: Container) -> bool:
    if not container.running:
        return False
    try:
        docker.docker("exec", container.id, *container.probe, timeout=30)
    except Failed:
        return False
    return True


def _container(raw: dict[str, Any]) -> Container:
    state = raw["State"]
    return Container(
        id=raw["Id"],
        name=raw["Name"].lstrip("/"),
        service=raw["Config"]["Labels"]["com.docker.compose.service"],
        pid=state["Pid"],
        running=state["Running"] and not state.get("Restarting", False),
        probe=tuple(raw["Config"].get("Healthcheck", {}).get("Test", ["CMD", "true"])[1:]),
    )
