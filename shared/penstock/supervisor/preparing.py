"""Makes prepared folders before anything is started."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import msgspec

from penstock.config.settings import EngineConfig, LogSettings, ModelSettings
from penstock.errors import StartupError
from penstock.prepare import find_prepared
from penstock.prepare.overrides import overrides_of
from penstock.supervisor.child import ChildSpec, ended_when_stopped, read_failure, start
from penstock.supervisor.restarts import describe
from penstock.text.given_template import kept_template


class Stopped(Exception):
    """The starting program left, or asked to stop, before there was anything to serve."""


@dataclass
class Preparation:
    """Has folders made by processes of their own: what reads a stranger's files can fail or grow as
    it likes without harm to the supervisor."""

    failure: Path
    """Where such a process says why it failed."""
    log: LogSettings
    _stopped: bool = False
    _process: asyncio.subprocess.Process | None = None

    def stop(self) -> None:
        """Nothing is to be prepared any more."""
        self._stopped = True
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def folder(self, model: ModelSettings) -> Path:
        """The model's prepared folder, made if it isn't there. Raises StartupError or Stopped."""
        found = find_prepared(
            model.model,
            model.cache_dir,
            model.model_impl,
            model.language_model_only,
            model.mmproj,
            overrides_of(model),
        )
        return found or await self._make(model)

    async def _make(self, model: ModelSettings) -> Path:
        arguments = ["prepare", model.model, "--model-impl", model.model_impl]
        if model.language_model_only:
            arguments.append("--language-model-only")
        if model.mmproj is not None:
            arguments += ["--mmproj", model.mmproj]
        overrides = overrides_of(model)
        if overrides:
            arguments += ["--hf-overrides", overrides]
        if model.cache_dir is not None:
            arguments += ["--cache-dir", model.cache_dir]
        arguments += ["--log-level", self.log.log_level, "--log-format", self.log.log_format]
        process = await start(
            ChildSpec("prepare", tuple(arguments)), self.failure, stdout=asyncio.subprocess.PIPE
        )
        self._process = process
        if self._stopped:
            process.kill()
        with ended_when_stopped(process, "prepare") as ended:
            output, _ = await process.communicate()
        if self._stopped:
            raise Stopped
        code = process.returncode or 0
        if code != 0:
            how = f": its process was {ended[0] if ended else describe(code)}"
            raise StartupError(
                read_failure(self.failure)
                or f"model {model.model!r} could not be prepared{how if ended or code < 0 else ''}"
            )
        return Path(output.decode().strip())


async def with_draft_folder(config: EngineConfig, preparation: Preparation) -> EngineConfig:
    """Returns a configuration that names the draft model by its prepared folder, which is made if
    it is missing. Raises StartupError or Stopped."""
    wanted = config.speculation.config
    if wanted is None or not wanted.model:
        return config
    own = msgspec.structs.replace(
        config.model, model=wanted.model, language_model_only=False, mmproj=None
    )
    own = msgspec.structs.replace(own, hf_overrides="", rope_scaling="")
    folder = await preparation.folder(own)
    speculation = config.speculation.with_model(str(folder))
    return msgspec.structs.replace(config, speculation=speculation)


def with_kept_template(config: EngineConfig) -> EngineConfig:
    """Returns a configuration that holds the chat template that a file of it names: else an engine
    core that dies would come back with what the file holds by then."""
    template = kept_template(config.model.chat_template)
    model = msgspec.structs.replace(config.model, chat_template=template)
    return msgspec.structs.replace(config, model=model)
