"""The folders from which this gateway reads adapters, and how all processes learn an adapter's
name."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import InvalidRequest, RequestFailed, StartupError
from penstock.protocol.common import MAX_ADAPTER_NAMES, NamedAdapter
from penstock.request.lora import check_adapter_name
from penstock_gateway.http.errors import HTTPError, clip
from penstock_gateway.keys.ring import forbidden

if TYPE_CHECKING:
    from penstock.client import EngineClient


@dataclass(frozen=True, slots=True)
class AdapterFolders:
    """allowed: below which adapters may be read when somebody asks; None: none may.  cache: where
    copies go; None: the XDG cache."""

    allowed: str | None = None
    cache: str | None = None


@dataclass(slots=True)
class AdapterLoader:
    """Loads and unloads by name, one at a time."""

    client: EngineClient
    folders: AdapterFolders = AdapterFolders()
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def load(self, name: str, path: str, *, in_place: bool) -> None:
        """Reads an adapter, and has every engine core and gateway know it by this name.

        in_place: one of that name is replaced; requests that run go on with what they began with.
        Raises InvalidRequest, HTTPError: 403, 404; and RequestFailed where it can't be copied.
        """
        max_rank = self._check_served()
        check_adapter_name(name, "lora_name")
        if not path:
            raise InvalidRequest(
                "lora_path is empty; it must be the path of an adapter", param="lora_path"
            )
        self._check_free(name, in_place=in_place)
        async with self._lock:
            from penstock.prepare.adapters import prepare_adapter

            allowed = Path(self.folders.allowed or "").resolve()
            try:
                prepared = await asyncio.to_thread(
                    prepare_adapter,
                    allowed / path,
                    max_rank=max_rank,
                    cache_dir=self.folders.cache,
                    within=allowed,
                    shown=path,
                    keep=self._digests(),
                )
            except StartupError as error:  # The disk is full, say.
                raise RequestFailed(str(error)) from None
            self._check_free(name, in_place=in_place)
            stamp = self.client.adapters.stamp(name)
            self.client.name_adapters([NamedAdapter(name, prepared.file, stamp, prepared.rank)])

    def _digests(self) -> set[str]:
        """Digests of the adapters that have names and a file."""
        return {each.file.digest for each in self.client.adapters.present() if each.file}

    def unload(self, name: str) -> None:
        """No new request finds it. Raises HTTPError: 403, 404."""
        self._check_served()
        known = self.client.adapters.find(name)
        if known is None:
            raise HTTPError(
                404,
                f"there is no adapter {clip(name)}",
                param="lora_name",
                code="adapter_not_found",
            )
        self.client.name_adapters([NamedAdapter(name, None, self.client.adapters.stamp(name))])

    def _check_served(self) -> int:
        """The highest rank that is served."""
        welcome = self.client.welcome
        if welcome is not None and not welcome.max_lora_rank:
            raise HTTPError(
                404,
                "adapters are disabled on this server; its operator can enable them with "
                "--enable-lora",
                code="adapters_not_served",
            )
        if self.folders.allowed is None:
            raise forbidden(
                "this server doesn't load or unload adapters at run time; its operator can allow "
                "it for one folder with --lora-allowed-folder"
            )
        return 0 if welcome is None else welcome.max_lora_rank

    def _check_free(self, name: str, *, in_place: bool) -> None:
        welcome = self.client.welcome
        if welcome is not None and name in (welcome.model, *welcome.other_names):
            raise InvalidRequest(f"{clip(name)} is the name of the model itself", param="lora_name")
        known = self.client.adapters.find(name) is not None
        if not known and len(self.client.adapters.present()) >= MAX_ADAPTER_NAMES:
            raise InvalidRequest(
                f"{MAX_ADAPTER_NAMES} adapters are registered, the maximum; unload one first",
                param="lora_name",
            )
        if known and not in_place:
            raise InvalidRequest(
                f"an adapter named {clip(name)} already exists; load_inplace: true replaces it",
                param="lora_name",
            )
