"""One page for this machine: models of 0.5 to 4 B parameters at the work that people give them, of
real texts, by Penstock with its defaults, without drafts, and by other libraries, beside what the
machine allows: `python -m loadtest.machine --help`.

One model at a time; each system loads it in a process of its own, and they take turns, one
computing at a time. The estimate comes first; of what doesn't fit into --minutes, the longest rows
are left out. A model that is measured again takes the place of its last run on the page.
"""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from loadtest.machine import page
from loadtest.machine.models import MODELS, Model, convert, file_of
from loadtest.machine.plan import Plan, fit, tell
from loadtest.machine.tasks import WORKS, Sizes, tasks
from loadtest.machine.texts import Texts
from loadtest.peers.library.systems import NAMES, System, make_system
from loadtest.peers.rounds import Outcome, Rounds, take_turns
from loadtest.report import ROOT, Document, Flags, Measurement, SetupError, say
from loadtest.roofline import probe
from loadtest.roofline.cost import model_cost
from loadtest.roofline.probe import Limits, ProbeUnavailable
from penstock.process.machine import describe_machine
from penstock_kernels.cpu.library import instruction_set
from testing.quick_gguf import read_once

SYSTEMS = ("penstock", "penstock_without_drafts", "llamacpp", "openvino", "ik_llamacpp")
_LATE = 3.0
"""How many times its estimate a model may take before no more of its work is begun."""


def measure(flags: Flags) -> Iterator[Document]:
    """What is known after each piece of work. SIGTERM is an exit like others, so that the peers'
    processes are stopped too."""
    paths = {name: _path(name) for name in flags.models}
    if flags.prepare:
        for path in paths.values() if "openvino" in flags.systems else ():
            convert(path)
    limits = _limits()
    with read_once():
        plans = [_plan(name, path, flags, limits) for name, path in paths.items()]
    fit(plans, flags.rounds, 60 * flags.minutes)
    tell(plans, flags.rounds)
    if flags.estimate:
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    for plan in plans:
        if plan.tasks:
            say(f"{plan.title}:")
            yield from _measured(plan, flags.rounds)


def _measured(plan: Plan, rounds: int) -> Iterator[Document]:
    own: Document = {
        "model": plan.title,
        "file": plan.path.name,
        "instruction_set": instruction_set(),
        "model_cost": plan.cost.to_dict(),
        "works": [asdict(work) for task in plan.tasks for work in task.works()],
        "left_out": plan.left_out,
        "missing": plan.missing,
    }
    for found in take_turns(
        plan.systems,
        plan.tasks,
        rounds=rounds,
        budget=_LATE * (100 + plan.seconds(rounds)),
        logs=ROOT / "loadtest" / "out" / "machine",
        probes=True,
    ):
        yield {**own, **_document(found)}


def _document(found: Rounds) -> Document:
    return {
        "rounds": found.done,
        "notes": found.notes,
        "limits": [each.to_dict() for each in found.limits],
        "systems": {each.peer.name: _system(each, found) for each in found.outcomes},
    }


def _system(outcome: Outcome, found: Rounds) -> Document:
    """rates: of each figure, in each round."""
    rates: dict[str, list[float]] = {}
    for task in found.work:
        for run in outcome.runs.get(task.name, ()):
            for name, rate in task.rates(run).items():
                rates.setdefault(name, []).append(rate)
    return {**outcome.to_dict(), "rates": rates}


def _limits() -> Limits:
    try:
        return probe.measure()
    except ProbeUnavailable as error:
        raise SetupError(f"{error}; without it nothing can be estimated") from error


def _path(name: str) -> Path:
    """Returns the path of one of MODELS, or of a GGUF file. Raises SetupError."""
    if name in MODELS:
        return file_of(MODELS[name])
    path = Path(name).resolve()
    if not path.is_file():
        raise SetupError(f"no model and no file called {name}; models are {', '.join(MODELS)}")
    return path


def _plan(name: str, path: Path, flags: Flags, limits: Limits) -> Plan:
    systems, missing = _systems(path, flags.systems)
    sizes = Sizes.SMALL if flags.smoke else Sizes.FULL
    title = MODELS.get(name, Model(path.name, path.name)).title
    return Plan(
        title=f"{title}; a sixteenth of the work" if flags.smoke else title,
        path=path,
        cost=model_cost(path),
        tasks=tasks(Texts.of(path), sizes, flags.works),
        systems=systems,
        limits=limits,
        missing=missing,
    )


def _systems(path: Path, names: list[str]) -> tuple[list[System], dict[str, str]]:
    """Returns the systems that are installed, and for each other one why it isn't."""
    found, missing = [], {}
    for name in names:
        try:
            found.append(make_system(name, path))
        except SetupError as error:
            missing[name] = str(error)
    return found, missing


def processor() -> str:
    """A file's name for this machine's processor. Its family and model tell generations apart that
    have one name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    pairs = (line.partition(":") for line in lines)
    facts = {name.strip(): value.strip() for name, _, value in pairs}
    told = [describe_machine()["cpu"]]
    told += [f"{key} {facts[name]}" for key, name in _GENERATION.items() if name in facts]
    return re.sub(r"[^a-z0-9]+", "-", " ".join(told).lower()).strip("-")


_GENERATION = {"family": "cpu family", "model": "model"}


def _many(names: Any, default: Any = None) -> dict[str, Any]:
    return {"nargs": "+", "default": list(default or names), "choices": names, "metavar": "NAME"}


FLAGS = {
    "--models": {
        "nargs": "+",
        "default": list(MODELS),
        "metavar": "NAME",
        "help": f"of {', '.join(MODELS)}, or GGUF files (default: all these)",
    },
    "--works": {**_many(WORKS), "help": f"of {', '.join(WORKS)} (default: all)"},
    "--systems": {**_many(NAMES, SYSTEMS), "help": f"of {', '.join(NAMES)}"},
    "--rounds": (2, "of each model"),
    "--minutes": (15.0, "for all; the longest rows are left out until the rest fits; 0: no limit"),
    "--estimate": (False, "say what would be measured, and measure nothing"),
    "--prepare": (False, "first make models in OpenVINO's own format, which takes minutes"),
    "--smoke": (False, "a little of each work"),
}
COMMAND = Measurement(
    f"machines/{processor()}",
    __doc__,
    measure,
    page.text,
    FLAGS,
    draw=page.draw,
    head=page.HEAD,
    title=lambda document: document["model"],
    faults=page.failures,
)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
