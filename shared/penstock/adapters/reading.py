"""Opens an adapter, whatever its format."""

from __future__ import annotations

from pathlib import Path

from penstock.adapters.adapter import (
    Adapter,
    UnfitAdapter,
)
from penstock.adapters.gguf import read_gguf_adapter
from penstock.adapters.peft import CONFIG, read_peft_folder
from penstock.errors import PenstockError


def read_adapter(path: Path) -> tuple[str, Adapter]:
    """Returns the digest of an adapter's contents, and the adapter.

    `path`: a folder as PEFT writes it, with adapter_config.json and adapter_model.safetensors; or
    a GGUF file. Raises UnfitAdapter for one that can't be read, or does what isn't served.
    """
    try:
        adapter = _opened(path)
        return adapter.digest(), adapter
    except UnfitAdapter:
        raise
    except (PenstockError, OSError, ValueError) as error:
        # Readers of files name them in full, which clients shouldn't see.
        said = str(error).replace(f"{path}/", "").replace(str(path), path.name)
        raise UnfitAdapter(said) from None


def _opened(path: Path) -> Adapter:
    if path.is_dir():
        return read_peft_folder(path)
    if path.suffix == ".gguf" and path.exists():
        return read_gguf_adapter(path)
    raise UnfitAdapter(
        f"{path.name} is not an adapter: a folder with {CONFIG} or a .gguf file is needed"
    )
