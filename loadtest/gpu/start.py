"""run.sh's first half: installs what this Python lacks into a folder of its own, then measures.

Standard library only, since nothing of the project can be imported before.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path[0] = str(ROOT)

from loadtest.gpu import archive  # noqa: E402
from loadtest.gpu.parts import VISITS  # noqa: E402
from loadtest.gpu.travels import (  # noqa: E402
    PACKED,
    Missing,
    luggage,
    pack_library,
    said,
    unpack_library,
)
from loadtest.gpu.wheels import missing  # noqa: E402

PACKING = 5.0
"""Seconds for the archives, when all is measured."""
GO_ON = "keep what an earlier call did of the same parts, see --carried, and run only the others"
CARRIED = (
    "folder that holds the CPU kernels, which --dry puts there, and what an earlier call left: its "
    "triton-cache.tar.gz, so that nothing is compiled twice, and, with --go-on, its results.tar.gz"
)


def main() -> int:
    """Exit status: that of the measurements; 2 where something can't be installed, or, of a
    rehearsal, where something that has to travel can't."""
    begun, flags = time.monotonic(), parser().parse_args()
    rehearsed = flags.dry and not flags.tiles and VISITS[flags.call].lent
    if rehearsed and not can_travel(flags.wheels, flags.carried):
        return 2
    output = flags.output or ROOT / "loadtest" / ("out/gpu-dry" if flags.dry else "results/gpu")
    output = output.absolute()
    with tempfile.TemporaryDirectory(prefix="gpu-measurements-") as folder:
        work = Path(folder)
        if flags.wheels is not None and not install(flags.wheels, work / "site"):
            return 2
        known = environment(work / "site", work, flags.dry)
        cache = Path(known["TRITON_CACHE_DIR"])
        bring(flags.carried, cache)
        if bring_library(flags.carried, work / "libpenstock_cpu.so"):
            known["PENSTOCK_CPU_LIBRARY"] = str(work / "libpenstock_cpu.so")
        seconds = flags.seconds or VISITS[flags.call].seconds
        left = seconds - (time.monotonic() - begun) - PACKING
        common = ["--work", folder, "--seconds", f"{left:.0f}", *(["--dry"] if flags.dry else [])]
        if flags.tiles:
            own = ["loadtest.gpu.tiles", "--output", str(output), *common, *flags.tiles]
            return wait_for([sys.executable, "-m", *own], known)
        results = work / "results"
        if flags.go_on and not resume([flags.carried, output], results):
            print("run.sh: nothing to go on with; all parts are run", file=sys.stderr)
        own = ["loadtest.gpu", "--output", str(results), "--home", str(output), *common]
        own += ["--call", flags.call, *(["--parts", *flags.parts] if flags.parts else [])]
        status = wait_for(
            [sys.executable, "-m", *own, *(["--go-on"] if flags.go_on else [])], known
        )
        come_home(results, cache, output)
        return status


def can_travel(wheels: Path | None, carried: Path | None) -> bool:
    """Packs the CPU kernels, and says what a visit has to bring along; whether it is all there and
    not too large."""
    try:
        pack_library(ROOT, carried)
        print(f"run.sh: what travels: {said(luggage(ROOT, [wheels, carried]))}", file=sys.stderr)
    except Missing as error:
        print(f"run.sh: {error}", file=sys.stderr)
        return False
    return True


def bring(carried: Path | None, cache: Path) -> None:
    """Unpacks the compiled kernels of an earlier call, if it left any."""
    cache.mkdir(parents=True, exist_ok=True)
    if carried is None:
        return
    if not (carried / archive.CACHE).is_file():
        print(f"run.sh: {carried} holds no {archive.CACHE}: all is compiled", file=sys.stderr)
        return
    # A cache that can't be read costs time, and nothing else.
    try:
        count = archive.unpack_cache(carried / archive.CACHE, cache)
    except (OSError, EOFError, ValueError, tarfile.TarError) as error:
        print(f"run.sh: {carried / archive.CACHE} can't be read: {error}", file=sys.stderr)
    else:
        print(f"{count} compiled kernels and launchers were carried", file=sys.stderr, flush=True)


def bring_library(carried: Path | None, target: Path) -> bool:
    """Whether the CPU kernels were carried, and are in `target` now."""
    try:
        there = unpack_library(carried, target)
    except (OSError, EOFError) as error:
        print(f"run.sh: {PACKED} can't be read: {error}", file=sys.stderr)
        return False
    if not there:
        print(
            f"run.sh: no {PACKED} was carried: checksums are numpy's, unless this machine has the "
            "CPU kernels",
            file=sys.stderr,
        )
    return there


def resume(folders: list[Path | None], results: Path) -> bool:
    """Whether one of these held the results of an earlier call, which are in `results` then."""
    for folder in folders:
        if folder is not None and (folder / archive.RESULTS).is_file():
            archive.unpack(folder / archive.RESULTS, results)
            return True
    return False


def come_home(results: Path, cache: Path, output: Path) -> None:
    """Leaves the three files, and says how large they are."""
    archive.pack_results(results, output)
    left_out = archive.pack_cache(cache, output)
    if left_out:
        print(f"run.sh: {left_out} compiled kernels had no room in the archive", file=sys.stderr)
    for name in (archive.TEXT, archive.RESULTS, archive.CACHE):
        if (output / name).is_file():
            print(f"{name}: {(output / name).stat().st_size:,} bytes", file=sys.stderr)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="loadtest/gpu/run.sh", description=__doc__)
    made.add_argument("wheels", type=Path, nargs="?", help="folder that wheels.sh has filled")
    made.add_argument("output", type=Path, nargs="?", help="where results go")
    made.add_argument("--dry", action="store_true", help="a trial without a GPU, of tiny sizes")
    made.add_argument(
        "--call",
        choices=VISITS,
        default="works",
        help="what is measured: `works`, a first call of seven minutes; `speed`, a second one of "
        "five; `whole`: all, in forty minutes",
    )
    made.add_argument("--seconds", type=float, help="for everything; default: the call's")
    made.add_argument("--carried", type=Path, help=CARRIED)
    made.add_argument("--parts", nargs="+", help="these only; default: all")
    made.add_argument("--go-on", action="store_true", help=GO_ON)
    made.add_argument(
        "--tiles", nargs="+", metavar="KERNEL CHANGE", help="see loadtest/gpu/tiles.py"
    )
    return made


def install(wheels: Path, site: Path) -> bool:
    """Whether all that is missing here came from `wheels`. Says on stderr what was wrong.

    Nothing is compiled to bytecode beforehand: that takes longer than all else.
    """
    if not wheels.is_dir():
        print(f"run.sh: {wheels} is no folder of wheels", file=sys.stderr)
        return False
    wanted = missing(wheels.glob("*.whl"))
    if not wanted:
        return True
    print(f"installing from {wheels.name}: {' '.join(wanted)}", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    command += ["--no-compile", "--no-cache-dir", "--no-index", "--no-deps"]
    command += ["--find-links", str(wheels), "--target", str(site)]
    return subprocess.run([*command, *wanted], check=False).returncode == 0


def wait_for(command: list[str], environment: dict[str, str]) -> int:
    """Runs the command, and returns its exit status. A signal that ends this process ends it
    first."""
    process = subprocess.Popen(command, cwd=ROOT, env=environment)

    def pass_on(signum: int, _: object) -> None:
        process.send_signal(signum)

    signal.signal(signal.SIGTERM, pass_on)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # As nohup has it.
        signal.signal(signal.SIGHUP, pass_on)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # A terminal sends it to both.
    return process.wait()


def environment(site: Path, work: Path, dry: bool) -> dict[str, str]:
    """The environment of the measurements: what was installed, then this project's packages, then
    what was set. Triton's cache stays where the caller has it."""
    packages = [site, *(ROOT / part for part in ("shared", "services", "kernels")), ROOT]
    inherited = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    changes = {
        "PYTHONPATH": os.pathsep.join([*map(str, packages), *inherited]),
        "XDG_CACHE_HOME": str(work / "cache"),
        "TRITON_CACHE_DIR": os.environ.get("TRITON_CACHE_DIR") or str(work / "triton"),
        "PYTHONFAULTHANDLER": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
    }
    if dry:
        changes["TRITON_INTERPRET"] = "1"
        changes["CUDA_VISIBLE_DEVICES"] = ""
    return {**os.environ, **changes}


if __name__ == "__main__":
    sys.exit(main())
