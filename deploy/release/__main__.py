"""Builds a release into dist/VERSION, and publishes it: docs/guides/releasing.md.

python -m deploy.release check                   do all files have one version?
python -m deploy.release version 0.2.0           write it into all of them
python -m deploy.release wheel                   one wheel, in dist
python -m deploy.release build                   everything
python -m deploy.release publish --repository …  what was built, or --dry-run: say how
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import shlex
import shutil
import sys
import tempfile
from pathlib import Path

from deploy.release import chart, images, versions, wheels
from deploy.release.running import ROOT, Refused, run

DIST = ROOT / "dist"
SUMS = "SHA256SUMS"
COMMIT = "COMMIT"
"""Names the commit that was built. A trial has no such file, and so can't be published."""


def main() -> int:
    """Returns the exit status: 1 for a refusal, which stderr gives."""
    parser = argparse.ArgumentParser(
        prog="python -m deploy.release",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check").set_defaults(run=check)
    command = commands.add_parser("version")
    command.add_argument("version")
    command.set_defaults(run=lambda flags: versions.set_version(flags.version))
    command = commands.add_parser("wheel")
    command.add_argument("--machine", default=platform.machine(), help="x86_64 or aarch64")
    command.set_defaults(run=wheel)
    command = commands.add_parser("build")
    command.add_argument(
        "--machine", action="append", help="of the wheels; more than once; default: all"
    )
    command.add_argument("--without-images", action="store_true")
    command.add_argument(
        "--trial", action="store_true", help="from any state of the tree; can't be published"
    )
    command.set_defaults(run=build)
    command = commands.add_parser("publish")
    command.add_argument("--repository", required=True, help="of images: HOST/OWNER/penstock")
    command.add_argument("--charts", required=True, help="oci://HOST/OWNER/charts")
    command.add_argument("--dry-run", action="store_true", help="only print the commands")
    command.set_defaults(run=publish)
    flags = parser.parse_args()
    os.environ.setdefault("SOURCE_DATE_EPOCH", _time_of_commit())
    try:
        flags.run(flags)
    except Refused as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


def check(flags: argparse.Namespace) -> None:
    """Prints the version that all files have. Raises Refused where one has another."""
    wrong = versions.disagreements()
    if wrong:
        raise Refused("; ".join(wrong))
    print(versions.current())


def wheel(flags: argparse.Namespace) -> None:
    """Builds the wheel of the tree as it is."""
    with tempfile.TemporaryDirectory(prefix="penstock-wheel-") as name:
        _say(f"compiling the kernels for {flags.machine}, which takes some minutes")
        made = wheels.wheel(wheels.source_distribution(Path(name)), flags.machine, DIST)
    print(made.relative_to(ROOT))


def build(flags: argparse.Namespace) -> None:
    """Everything of the version, in dist/VERSION."""
    check(flags)
    version = versions.current()
    commit = None if flags.trial else require_released(version)
    if not flags.without_images:
        images.require_buildx()
    machines = flags.machine or wheels.MACHINES
    for machine in machines:
        wheels.environment_for(machine)
    folder = DIST / version
    shutil.rmtree(folder, ignore_errors=True)

    source = wheels.source_distribution(folder)
    for machine in machines:
        _say(f"the wheel for {machine}: compiling the kernels takes some minutes")
        wheels.wheel(source, machine, folder)
    run([sys.executable, "-m", "twine", "check", "--strict", *_packages(folder)])
    chart.package(versions.CHART.written(version), folder)
    if not flags.without_images:
        _say("the images, which takes long where a platform is emulated")
        (folder / "images").mkdir()
        run(images.to_archives(folder / "images"), environment=images.environment(version))
    if commit is not None:
        if require_released(version) != commit:
            raise Refused("another commit was checked out meanwhile; build again")
        (folder / COMMIT).write_text(f"{commit}\n", encoding="utf-8")
    write_sums(folder)
    for path in _files(folder):
        print(path.relative_to(ROOT))


def publish(flags: argparse.Namespace) -> None:
    """Runs, or prints, the commands that publish what `build` left. PyPI comes last: what is there
    can't be replaced."""
    version = versions.current()
    folder = DIST / version
    environment = images.environment(version, flags.repository)
    if not (folder / SUMS).exists():
        raise Refused(f"{folder} isn't built: make release")
    archive = folder / f"{chart.CHART.name}-{versions.CHART.written(version)}.tgz"
    commands = [
        images.to_registry(),
        ["helm", "push", str(archive), flags.charts],
        ["git", "push", "origin", versions.tag(version)],
        [sys.executable, "-m", "twine", "upload", *map(str, _packages(folder))],
    ]
    if flags.dry_run:
        print("export", " ".join(f"{name}={value}" for name, value in environment.items()))
        for command in commands:
            print(shlex.join(command))
        return
    check_built(folder, require_released(version))
    check_sums(folder)
    for command in commands:
        _say(shlex.join(command))
        run(command, environment=environment)


def require_released(version: str) -> str:
    """The commit. Raises Refused unless it is the version's: nothing changed, dated, tagged."""
    changed = run(["git", "status", "--porcelain"])
    if changed:
        raise Refused(f"the tree has changes that aren't committed:\n{changed}")
    if dict(versions.entries())[version] == "unreleased":
        raise Refused(f"{versions.CHANGELOG}: {version} needs its date in place of 'unreleased'")
    tag = versions.tag(version)
    if tag not in run(["git", "tag", "--points-at", "HEAD"]).split():
        raise Refused(f"this commit lacks the tag: git tag -a {tag} -m {tag}")
    return run(["git", "rev-parse", "HEAD"]).strip()


def check_built(folder: Path, commit: str) -> None:
    """Raises Refused unless all of a release was built of the commit, and not as a trial."""
    file = folder / COMMIT
    if not file.exists():
        raise Refused(f"{folder} is a trial, which isn't published: make release")
    built = file.read_text(encoding="utf-8").strip()
    if built != commit:
        raise Refused(f"{folder} was built of {built}, not of {commit}: make release")
    patterns = ["*.tar.gz", *(f"*_{machine}.whl" for machine in wheels.MACHINES), "*.tgz"]
    patterns += [f"images/{name}.tar" for name in images.names()]
    missing = [pattern for pattern in patterns if not any(folder.glob(pattern))]
    if missing:
        raise Refused(f"{folder} lacks {', '.join(missing)}: make release")


def write_sums(folder: Path) -> None:
    """Writes SHA256SUMS, as `sha256sum -c` reads it."""
    lines = [f"{_digest(path)}  {path.relative_to(folder)}\n" for path in _files(folder)]
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")


def check_sums(folder: Path) -> None:
    """Raises Refused for a file that isn't as it was built."""
    listed = (folder / SUMS).read_text(encoding="utf-8").splitlines()
    sums = {name: digest for digest, name in (line.split("  ", 1) for line in listed)}
    found = {str(path.relative_to(folder)): _digest(path) for path in _files(folder)}
    if found != sums:
        wrong = sorted(name for name in {*found, *sums} if found.get(name) != sums.get(name))
        raise Refused(f"{', '.join(wrong)} in {folder}: not as {SUMS} has it; build again")


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != SUMS)


def _packages(folder: Path) -> list[Path]:
    return [*sorted(folder.glob("*.tar.gz")), *sorted(folder.glob("*.whl"))]


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _time_of_commit() -> str:
    """Seconds since 1970: what is built of one commit has one time, and so the same bytes."""
    try:
        return run(["git", "log", "-1", "--format=%ct"]).strip()
    except Refused:
        return "0"  # No repository: a copy of one.


def _say(words: str) -> None:
    print(f"release: {words} …", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
