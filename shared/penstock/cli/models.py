"""`penstock pull`, `penstock list` and `penstock rm`: the models on this machine."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.cli.columns import columns, day, decimal
from penstock.cli.parser import Parser, examples
from penstock.errors import InvalidRequest, ModelNotFound, StartupError

if TYPE_CHECKING:
    from penstock.hub.removal import Removal
    from penstock.prepare.folder import PreparedFolder


# `penstock pull`: a model, found or downloaded, and prepared.


def add_pull(parser: Parser) -> None:
    """The command's arguments."""
    parser.description = (
        "Finds a model (alias, name on the hub, folder, .gguf file), downloads what is missing or "
        "has changed, and prepares it, so that a later start needs no network. NAME:Q4_K_M or "
        "NAME:FILE.gguf selects a GGUF file. Prints the prepared folder."
    )
    parser.epilog = examples(
        "penstock pull smollm2-135m",
        "penstock pull owner/name --json",
        "penstock pull owner/name-GGUF:Q4_K_M",
    )
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--cache-dir", metavar="FOLDER", help="Folder for prepared models.")
    parser.add_argument("--json", action="store_true", help="What was found, as JSON.")
    parser.add_argument(
        "--yes",
        "-y",
        action="store_true",
        help="If a package carries the model, install it by pip without asking.",
    )
    parser.set_defaults(run=run_pull)


def run_pull(arguments: argparse.Namespace) -> int:
    """0. Raises ModelNotFound, UnsupportedModel, StartupError."""
    if not arguments.model:
        raise InvalidRequest("MODEL is empty")
    from penstock.cli.packaged import offer_package
    from penstock.cli.processes import loading
    from penstock.prepare import load_manifest, prepare

    offer_package(arguments.model, agreed=arguments.yes)
    folder = prepare(arguments.model, cache_dir=arguments.cache_dir, progress=_say, fetch="newest")
    if not arguments.json:
        print(folder, flush=True)  # before the check, which takes seconds
    _, refused = loading(load_manifest(folder))
    if refused:
        _say(f"a worker won't load it: {refused}")
    if arguments.json:
        print(json.dumps(_facts(folder) | {"refused": refused}))
    return 0


def _facts(folder: Path) -> dict[str, object]:
    from penstock.prepare import load_manifest

    model = load_manifest(folder)
    return {
        "folder": str(folder),
        "name": model.name,
        "source": model.source,
        "architecture": model.family,
        "max_model_len": model.config.max_position,
        "weights": model.weights.dtype,
        "files": list(model.weights.files),
        "bytes": sum(Path(file).stat().st_size for file in model.weights.files),
        "chat_template": model.has_chat_template,
        "digest": model.digest,
    }


def _say(words: str) -> None:
    print(f"penstock: {words}", file=sys.stderr)


# `penstock list`: the models on this machine.


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


def add_list(parser: Parser) -> None:
    """The command's arguments."""
    parser.description = (
        "Lists the models on this machine: those in the hub's cache, those that packages carry, "
        "and files and folders that were prepared."
    )
    parser.epilog = examples("penstock list", "penstock list --json | jq -r '.[].name'")
    parser.add_argument("--cache-dir", metavar="FOLDER", help="Folder for prepared models.")
    parser.add_argument("--json", action="store_true", help="As JSON, for scripts.")
    parser.set_defaults(run=run_list)


def run_list(arguments: argparse.Namespace) -> int:
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
    return rows + _packaged(prepared) + _others([one for one in prepared if not _all_in(one, seen)])


def _packaged(prepared: list[PreparedFolder]) -> list[ListedModel]:
    from penstock.prepare.resolve import PACKAGED_MODELS, installed_path

    rows = []
    for model in PACKAGED_MODELS:
        try:
            path = installed_path(model)
        except ModelNotFound:
            continue  # a package without its file
        if path is not None:
            files = [path] if path.is_file() else sorted(path.glob("*.safetensors"))
            real = {os.path.realpath(file) for file in files}
            known = next((_format(one) for one in prepared if _all_in(one, real)), None)
            rows.append(
                ListedModel(
                    name=model.alias,
                    from_="package",
                    format=known or ("GGUF" if path.is_file() else "safetensors"),
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
        row = rows.setdefault(
            one.model.source,
            ListedModel(
                name=one.model.source,
                from_="file",
                format=_format(one),
                size=sum(file.stat().st_size for file in files if file.exists()),
                changed=one.changed,
                complete=all(file.exists() for file in files),
            ),
        )
        row.prepared.append(str(one.folder))
    return list(rows.values())


def _format(one: PreparedFolder) -> str:
    """Returns the name that `penstock show` and `doctor` give its format."""
    weights = one.model.weights
    return f"GGUF {weights.mixture or weights.dtype}" if weights.format == "gguf" else "safetensors"


def _all_in(one: PreparedFolder, files: set[str]) -> bool:
    return all(os.path.realpath(file) in files for file in one.model.weights.files)


# `penstock rm`: a model taken off this machine.

KEPT = 1
"""The user said no."""


class Found(msgspec.Struct, frozen=True):
    """What goes: of the hub's cache, and prepared folders with the copies of weights made for them.
    size: bytes."""

    removal: Removal | None
    prepared: tuple[PreparedFolder, ...]
    size: int


def add_rm(parser: Parser) -> None:
    """The command's arguments."""
    parser.description = (
        "Removes a model from the hub's cache, with its prepared files: all of a repository, or "
        "NAME:Q4_K_M, NAME@REVISION. Of a local file, or a model from a package, only the "
        "prepared files are removed. Files that a process has open stay. Exit codes: 0 removed, 1 "
        "not found, in use, or you said no."
    )
    parser.epilog = examples("penstock rm owner/name", "penstock rm owner/name:Q4_K_M --yes")
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--yes", "-y", action="store_true", help="Don't ask.")
    parser.add_argument("--cache-dir", metavar="FOLDER", help="Folder for prepared models.")
    parser.set_defaults(run=run_rm)


def run_rm(arguments: argparse.Namespace) -> int:
    """Runs the command; returns one of the exit codes above. Raises ModelNotFound, StartupError,
    InvalidRequest."""
    from penstock.hub.removal import remove
    from penstock.prepare.folder import remove_prepared

    found = find(arguments.model, arguments.cache_dir)
    refuse_used(arguments.model, found)
    for line in _words(found):
        print(line, file=sys.stderr)
    if not arguments.yes and not _agreed(found.size):
        print("penstock: nothing was removed", file=sys.stderr)
        return KEPT
    refuse_used(arguments.model, found)  # the answer may have taken a while
    try:
        for one in found.prepared:
            remove_prepared(one)
        if found.removal is not None:
            remove(found.removal)
    except OSError as error:
        raise StartupError(f"{arguments.model} can't be removed: {error}") from error
    print(f"removed {arguments.model}: {decimal(found.size)}")
    return 0


def find(model: str, cache_dir: str | None) -> Found:
    """Raises ModelNotFound if nothing of it is in a cache."""
    from penstock.hub.connection import default_hub
    from penstock.hub.name import parse
    from penstock.hub.removal import removal_of
    from penstock.prepare.folder import cache_root, prepared_folders

    name = None if Path(model).expanduser().exists() else parse(model)
    removal = None if name is None else removal_of(default_hub(), name)
    gone = set() if removal is None else {os.path.realpath(blob) for blob in removal.blobs}
    path = os.path.realpath(Path(model).expanduser())
    prepared = tuple(
        one
        for one in prepared_folders(cache_root(cache_dir))
        if model in (one.model.name, one.model.source)
        or one.model.source == path
        or any(os.path.realpath(file) in gone for file in one.model.weights.files)
    )
    if removal is None and not prepared:
        raise ModelNotFound(
            f"nothing of {model!r} is in the hub's cache or was prepared (`penstock list`)"
            + _why(model)
        )
    size = 0 if removal is None else removal.size
    size += sum(_size_of(folder) for one in prepared for folder in (one.folder, one.copied))
    return Found(removal, prepared, size)


def refuse_used(model: str, found: Found) -> None:
    """Raises StartupError, naming the processes that use it."""
    from penstock.hub.open_files import users_of

    files = [] if found.removal is None else list(found.removal.blobs)
    for one in found.prepared:
        files += [path for path in (one.copied or one.folder).rglob("*") if path.is_file()]
    users = users_of(files, [one.folder for one in found.prepared])
    if users:
        raise StartupError(
            f"{model} is in use, so it stays: by process "
            + ", ".join(str(user) for user in users[:4])
            + f"; it has {users[0].file} open"
        )


def _words(found: Found) -> list[str]:
    lines = []
    if found.removal is not None:
        what = found.removal.folder or f"{len(found.removal.blobs)} files of {found.removal.name}"
        lines.append(f"  {what}: {decimal(found.removal.size)}")
    lines += [f"  {one.folder}" for one in found.prepared]
    lines += [f"  {one.copied}" for one in found.prepared if one.copied is not None]
    return lines


def _agreed(size: int) -> bool:
    if not sys.stdin.isatty():
        raise InvalidRequest(
            "stdin is not a terminal, so the removal can't be confirmed; --yes removes without "
            "asking"
        )
    return input(f"Remove these, {decimal(size)}? [y/N] ").strip().lower() in ("y", "yes")


def _why(model: str) -> str:
    from penstock.prepare.resolve import find_packaged

    packaged = find_packaged(model)
    if packaged is not None:
        return f"; the package {packaged.package} carries it, and pip removes that"
    return "; files elsewhere are never removed" if Path(model).expanduser().exists() else ""


def _size_of(folder: Path | None) -> int:
    if folder is None:
        return 0
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
