"""Puts faults into a copy of the tree, one at a time, and says which of them the tests find.

    make mutants ARGS="--area engine_kv"
    python -m tests.mutants [--area AREA] [--name NAME] [--built] [--folders] [--limit S] [--record]

Of each fault first the tests run that must fail. `at once`: one did that runs at every landing; `in
turns`: only one did that takes turns; `survived`: none did; `out of time`: none had when the time
for one fault was over.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from tests.mutants import results
from tests.mutants.mutant import Mutant, listed
from tests.mutants.trial import PATIENCE, Copy, Found, preload


def main() -> int:
    """Returns 1 if a fault wasn't found that isn't equivalent."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description=__doc__.partition("\n")[0]
    )
    parser.add_argument(
        "--area", action="append", default=[], help="a file of `faults`; repeatable"
    )
    parser.add_argument("--name", action="append", default=[], help="a fault's name; repeatable")
    parser.add_argument(
        "--built", action="store_true", help="also C++: half a minute of compiling each"
    )
    parser.add_argument(
        "--folders",
        action="store_true",
        help="where none of its tests fails, run all of their folders",
    )
    parser.add_argument(
        "--limit",
        type=float,
        default=PATIENCE,
        metavar="SECONDS",
        help=f"that the tests of a fault may take ({PATIENCE:.0f})",
    )
    parser.add_argument("--record", action="store_true", help=f"write {results.FILE.name}")
    chosen = parser.parse_args()
    mutants = chosen_of(listed(), chosen.area, chosen.name, built=chosen.built)
    os.nice(10)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # The copy goes, and who tests in it.
    preload()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        found = tried(
            Copy(Path(folder)),
            mutants,
            folders=chosen.folders,
            record=chosen.record,
            seconds=chosen.limit,
        )
    print(results.table(mutants, found))
    wrong = [each for each in mutants if not found[each.name].is_found and not each.equivalent]
    return int(bool(wrong))


def chosen_of(
    mutants: Sequence[Mutant], areas: Sequence[str], names: Sequence[str], *, built: bool
) -> list[Mutant]:
    """Those of the areas and names, of all if there are none. What must be compiled comes only if
    it is named or `built` says so; what is equivalent, which takes all of its tests' time, if it is
    named."""
    return [
        each
        for each in mutants
        if (not areas or each.area in areas)
        and (not names or each.name in names)
        and (each.name in names or ((built or not each.built) and not each.equivalent))
    ]


def tried(
    copy: Copy,
    mutants: Sequence[Mutant],
    *,
    folders: bool,
    record: bool = False,
    seconds: float = PATIENCE,
) -> dict[str, Found]:
    """Returns what became of each, by name. record: at once, in the committed table.

    Raises SystemExit where a test that found a fault fails without one, too.
    """
    found = {}
    for number, mutant in enumerate(mutants, 1):
        begun = time.monotonic()
        found[mutant.name] = each = copy.found(mutant, folders=folders, seconds=seconds)
        if record:
            results.record({mutant.name: each})
        took = f"{time.monotonic() - begun:.0f} s"
        print(
            f"{number}/{len(mutants)} {mutant.name}: {each.verdict} ({took}) {each.by}", flush=True
        )
    for built in (False, True):
        of = [found[mutant.name].by for mutant in mutants if mutant.built == built]
        finders = dict.fromkeys(by for by in of if by and "(" not in by)
        with copy.compiled() if built and finders else nullcontext():
            failed = copy.run([*finders], every_landing=False) if finders else None
        if failed is not None:
            raise SystemExit(f"without any fault {failed} fails")
    return found


if __name__ == "__main__":
    sys.exit(main())
