"""Arguments of the processes that dial engine cores: gateways, batches and gRPC."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from penstock.config.settings import ServeConfig
from penstock.net.runtime_dir import RuntimeDir
from penstock.supervisor.child import ChildSpec


@dataclass(frozen=True)
class FrontSpecs:
    """engines: the arguments that say how engine cores are reached.  fd: the bound socket that
    gateways share.  grace: seconds that each gets to leave.  held: file descriptors that all keep
    while they live."""

    config: ServeConfig
    runtime: RuntimeDir
    engines: tuple[str, ...]
    fd: int
    grace: float
    held: tuple[int, ...] = ()

    def _common(self) -> tuple[str, ...]:
        file = self.runtime.write("config.json", msgspec.json.encode(self.config))
        return ("--config", str(file), *self.engines)

    def gateways(self) -> list[ChildSpec]:
        """Gateways to start, as many as the configuration says."""
        common, fd = self._common(), self.fd
        return [
            ChildSpec(
                f"gateway {index}",
                ("gateway", *common, "--index", str(index), "--fd", str(fd)),
                inherited=(fd, *self.held),
                grace=self.grace,
            )
            for index in range(self.config.gateways)
        ]

    def fork_server(self, fd: int, listed: Path) -> ChildSpec:
        """The process that gateways are forks of; it is asked for them over that socket. listed:
        file with the folders of prepared models."""
        common = self._common()[:2]
        arguments = ("fork-server", *common, "--fd", str(fd), "--model-dirs", str(listed))
        return ChildSpec("fork-server", arguments, inherited=(fd,))

    def batches(self) -> list[ChildSpec]:
        """None where nothing is kept."""
        if self.config.storage.data_dir is None:
            return []
        arguments = ("batches", *self._common())
        return [ChildSpec("batches", arguments, inherited=self.held, grace=self.grace)]

    def grpc(self) -> list[ChildSpec]:
        """Returns the gRPC processes; none unless they are configured."""
        if self.config.gateway.grpc_port is None:
            return []
        ready = ("--ready-file", str(grpc_ready(self.runtime)))
        arguments = ("grpc", *self._common(), *ready)
        return [ChildSpec("grpc", arguments, inherited=self.held, grace=self.grace)]


def grpc_ready(runtime: RuntimeDir) -> Path:
    """Made by gRPC's process when it is ready."""
    return runtime.path / "grpc.ready"
