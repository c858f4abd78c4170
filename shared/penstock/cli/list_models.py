"""`penstock list`: the models on this machine."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.cli.parser import Parser, examples
from penstock.cli.sizes import columns, day, decimal
from penstock.errors import ModelNotFound

if TYPE_CHECKING:
    from penstock.prepare.folder import PreparedFolder


class ListedModel(msgspec.Struct, kw_only=True):
    """from_: where it comes from: hub, package, file.  size: bytes.  changed: seconds since 1970.
    complete: else a download that was cut off.  prepared: prepared folders."""

    name: str
    from_: str = msgspec.field(name="from")
    format: str
    size: int
    changed: float
    complete: bool = True
    prepared: list[str] = []


def add(parser: Parser) -> None:
    """The command's arguments."""
    parser.description = (
        "Lists the models on this machine: those in the hub's cache, those that packages carry, "
        "and files and folders that were prepared."
    )
    parser.epilog = examples("penstock list", "penstock list --json | jq -r '.[].name'")
    parser.add_argument("--cache-dir", metavar="FOLDER", help="Folder for prepared models.")
    parser.add_argument("--json", action="store_true", help="As JSON, for scripts.")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the command. Returns its exit status, 0."""
    rows = models_here(arguments.cache_dir)
    if arguments.json:
        print(msgspec.json.encode(rows).decode())
        return 0
    if not rows:
        print("No models are here; `penstock pull MODEL` brings one.")
        return 0
    cells = [("NAME", "FORMAT", "SIZE", "WHEN", "FROM")]
    for row in rows:
        place = row.from_ if row.complete else f"{row.from_}, incomplete"
        cells.append((row.name, row.format, decimal(row.size), day(row.changed), place))
    print(columns(cells))
    return 0


def models_here(cache_dir: str | os.PathLike[str] | None) -> list[ListedModel]:
    """The models on this machine, ordered by where they come from, then by name."""
    from penstock.hub.connection import default_hub
    from penstock.hub.inventory import hub_models
    from penstock.prepare.folder import cache_root, prepared_folders

    prepared = prepared_folders(cache_root(cache_dir))
    rows, seen = [], set()
    for model in hub_models(default_hub()):
        files = {os.path.realpath(file) for file in model.files}
        seen |= files
        here = [
            str(one.folder)
            for one in prepared
            if any(os.path.realpath(file) in files for file in one.model.weights.files)
        ]
        rows.append(
            ListedModel(
                name=model.name,
                from_="hub",
                format=model.format,
                size=model.size,
                changed=model.changed,
                complete=model.complete,
                prepared=here,
            )
        )
    return rows + _packaged() + _others([one for one in prepared if not _all_in(one, seen)])


def _packaged() -> list[ListedModel]:
    from penstock.prepare.resolve import PACKAGED_MODELS, installed_path

    rows = []
    for model in PACKAGED_MODELS:
        try:
            path = installed_path(model)
        except ModelNotFound:
            continue  # a package without its file
        if path is not None:
            files = [path] if path.is_file() else sorted(path.glob("*.safetensors"))
            rows.append(
                ListedModel(
                    name=model.alias,
                    from_="package",
                    format="GGUF" if path.is_file() else "safetensors",
                    size=sum(file.stat().st_size for file in files),
                    changed=max((file.stat().st_mtime for file in files), default=0.0),
                )
            )
    return rows


def _others(prepared: list[PreparedFolder]) -> list[ListedModel]:
    """Prepared folders of local files, one row for each source."""
    rows: dict[str, ListedModel] = {}
    for one in prepared:
        if not one.model.source.startswith("/"):
            continue  # by an alias or a hub id, whose files have a row of their own, or are gone
        files = [Path(file) for file in one.model.weights.files]
        kind = f"GGUF {one.model.weights.dtype}"
        row = rows.setdefault(
            one.model.source,
            ListedModel(
                name=one.model.source,
                from_="file",
                format=kind if one.model.weights.format == "gguf" else "safetensors",
                size=sum(file.stat().st_size for file in files if file.exists()),
                changed=one.changed,
                complete=all(file.exists() for file in files),
            ),
        )
        row.prepared.append(str(one.folder))
    return list(rows.values())


def _all_in(one: PreparedFolder, files: set[str]) -> bool:
    return all(os.path.realpath(file) in files for file in one.model.weights.files)
