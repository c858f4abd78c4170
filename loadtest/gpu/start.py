"""run.sh's first half: installs what this Python lacks into a folder of its own, then measures.

Standard library only, since nothing of the project can be imported before.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path[0] = str(ROOT)

from loadtest.gpu.wheels import missing  # noqa: E402

SECONDS = 2340
"""For everything, the installation and the report included: less than forty minutes."""

GO_ON = "keep what an earlier run left in OUTPUT, and run only parts that it hasn't done"


def main() -> int:
    """Exit status: that of the measurements; 2 where something can't be installed."""
    begun, flags = time.monotonic(), parser().parse_args()
    module, own = "loadtest.gpu", ["--parts", *flags.parts] if flags.parts else []
    own += ["--go-on"] if flags.go_on else []
    if flags.tiles:
        module, own = "loadtest.gpu.tiles", flags.tiles
    output = flags.output or ROOT / "loadtest" / ("out/gpu-dry" if flags.dry else "results/gpu")
    with tempfile.TemporaryDirectory(prefix="gpu-measurements-") as folder:
        site = Path(folder) / "site"
        if flags.wheels is not None and not install(flags.wheels, site):
            return 2
        left = flags.seconds - (time.monotonic() - begun)
        command = [sys.executable, "-m", module, "--output", str(output.absolute())]
        command += ["--work", folder, "--seconds", f"{left:.0f}"]
        command += ["--dry"] if flags.dry else []
        return wait_for([*command, *own], environment(site, Path(folder), flags.dry))


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="loadtest/gpu/run.sh", description=__doc__)
    made.add_argument("wheels", type=Path, nargs="?", help="folder that wheels.sh has filled")
    made.add_argument("output", type=Path, nargs="?", help="where results go")
    made.add_argument("--dry", action="store_true", help="a trial without a GPU, of tiny sizes")
    made.add_argument("--seconds", type=float, default=SECONDS, help="for everything")
    made.add_argument("--parts", nargs="+", help="these only; default: all")
    made.add_argument("--go-on", action="store_true", help=GO_ON)
    made.add_argument(
        "--tiles", nargs="+", metavar="KERNEL CHANGE", help="see loadtest/gpu/tiles.py"
    )
    return made


def install(wheels: Path, site: Path) -> bool:
    """Whether all that is missing here came from `wheels`. Says on stderr what was wrong."""
    if not wheels.is_dir():
        print(f"run.sh: {wheels} is no folder of wheels", file=sys.stderr)
        return False
    wanted = missing(wheels.glob("*.whl"))
    if not wanted:
        return True
    print(f"installing from {wheels.name}: {' '.join(wanted)}", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    command += ["--no-index", "--no-deps", "--find-links", str(wheels), "--target", str(site)]
    return subprocess.run([*command, *wanted], check=False).returncode == 0


def wait_for(command: list[str], environment: dict[str, str]) -> int:
    """Its exit status. A signal that ends this process ends it first."""
    process = subprocess.Popen(command, cwd=ROOT, env=environment)

    def pass_on(signum: int, _: object) -> None:
        process.send_signal(signum)

    signal.signal(signal.SIGTERM, pass_on)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # As nohup has it.
        signal.signal(signal.SIGHUP, pass_on)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # A terminal sends it to both.
    return process.wait()


def environment(site: Path, work: Path, dry: bool) -> dict[str, str]:
    """Of the measurements: what was installed, then this project's packages, then what was set."""
    packages = [site, *(ROOT / part for part in ("shared", "services", "kernels")), ROOT]
    inherited = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    changes = {
        "PYTHONPATH": os.pathsep.join([*map(str, packages), *inherited]),
        "XDG_CACHE_HOME": str(work / "cache"),
        "TRITON_CACHE_DIR": str(work / "triton"),
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
