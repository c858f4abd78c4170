"""Files that say whether the model sleeps, which weights it was given and what the settings'
adapters were, so that all of it still holds when the engine core comes back."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from penstock.config.settings import EngineConfig
from penstock.errors import InvalidRequest, PenstockError, StartupError
from penstock.prepare.folder import load_manifest
from penstock.process import logs
from penstock.protocol.common import NamedAdapter, SleepLevel
from penstock.request.lora import lora_modules
from penstock_engine.facts import EngineFacts
from penstock_engine.sessions.weights import misfit, with_weights

log = logs.get(__name__)

LEVELS: tuple[SleepLevel, ...] = (1, 2)


class SleepNote:
    """path: of the file, which is there while the model sleeps; None: nothing is noted."""

    def __init__(self, path: str | None) -> None:
        self._path = None if path is None else Path(path)
        self._noted: SleepLevel = self._read()

    @property
    def level(self) -> SleepLevel:
        """The level that was noted last, by this life or the one before."""
        return self._noted

    def keep(self, level: SleepLevel) -> None:
        """Records a changed level. Call this before anybody learns of it."""
        if level == self._noted:
            return
        self._noted = level
        if self._path is None:
            return
        try:
            self._write(self._path, level)
        except OSError as error:
            log.error(
                "the sleep level can't be recorded", path=str(self._path), error=error.strerror
            )

    def _read(self) -> SleepLevel:
        try:
            noted = "" if self._path is None else self._path.read_text().strip()
        except (OSError, UnicodeDecodeError):
            return 0
        return next((level for level in LEVELS if noted == str(level)), 0)

    @staticmethod
    def _write(path: Path, level: SleepLevel) -> None:
        if not level:
            path.unlink(missing_ok=True)
            return
        making = path.with_suffix(f".{os.getpid()}")
        making.write_text(f"{level}\n")
        making.replace(path)


class WeightsNote:
    """path: of the file, which names a prepared folder once the weights were replaced; None:
    nothing is noted."""

    def __init__(self, path: str | None) -> None:
        self._path = None if path is None else Path(path)
        self._noted = ""

    def apply(self, facts: EngineFacts) -> EngineFacts:
        """Facts with the weights that were noted by the life before, if they are still there."""
        self._noted = facts.folder
        try:
            folder = "" if self._path is None else self._path.read_text().strip()
        except (OSError, UnicodeDecodeError):
            return facts
        if not folder:
            return facts
        try:
            model = load_manifest(Path(folder))
            wrong = misfit(facts.model, model)
        except PenstockError as error:
            wrong = str(error)
        if wrong is not None:
            log.error("the weights on record can't be used", folder=folder, reason=wrong)
            return facts
        self._noted = folder
        return with_weights(facts, folder, model)

    def keep(self, folder: str) -> None:
        """Records a changed folder. Call this before anybody learns of it."""
        if folder == self._noted:
            return
        self._noted = folder
        if self._path is None:
            return
        making = self._path.with_suffix(f".{os.getpid()}")
        try:
            making.write_text(f"{folder}\n")
            making.replace(self._path)
        except OSError as error:
            log.error(
                "the new weights can't be recorded", path=str(self._path), error=error.strerror
            )


def adapters_of(
    config: EngineConfig, served: tuple[str, ...], noted: Path | None
) -> tuple[NamedAdapter, ...]:
    """The adapters of the settings, each read and copied. Raises StartupError that names one that
    can't be served."""
    settings = config.lora
    try:
        modules = lora_modules(settings.lora_modules, served)
    except InvalidRequest as error:
        raise StartupError(error.message) from None
    if not modules:
        return ()
    if not settings.enable_lora:
        raise StartupError("lora_modules is set, but enable_lora is not")
    known = _known(noted, [module.name for module in modules])
    if known is not None:
        return known
    from penstock.prepare.adapters import prepare_adapter

    found: list[NamedAdapter] = []
    for module in modules:
        try:
            prepared = prepare_adapter(
                module.path,
                max_rank=settings.max_lora_rank,
                cache_dir=config.model.cache_dir,
            )
        except InvalidRequest as error:
            raise StartupError(f"--lora-modules {module.name}: {error.message}") from None
        parent = module.base_model_name or ""
        found.append(NamedAdapter(module.name, prepared.file, 0, prepared.rank, parent))
    if noted is not None:
        _note(noted, found)
    return tuple(found)


def _known(noted: Path | None, names: list[str]) -> tuple[NamedAdapter, ...] | None:
    """Returns the adapters that were noted under these names; None if the note doesn't hold any
    more."""
    try:
        content = b"" if noted is None else noted.read_bytes()
        found = msgspec.json.decode(content, type=tuple[NamedAdapter, ...])
    except (OSError, msgspec.DecodeError):
        return None
    there = all(each.file is not None and Path(each.file.path).exists() for each in found)
    return found if there and [each.name for each in found] == names else None


def _note(noted: Path, adapters: list[NamedAdapter]) -> None:
    making = noted.with_suffix(f".{os.getpid()}")
    try:
        making.write_bytes(msgspec.json.encode(adapters))
        making.replace(noted)
    except OSError as error:
        raise StartupError(f"{noted} can't be written: {error.strerror}") from None
