"""How often Python's garbage collector looks at what."""

from __future__ import annotations

import gc

from penstock.process.memory import collect_seldom, trim_heap


def keep() -> None:
    """Has the garbage collector leave alone what exists now: a model and the libraries are a
    million objects. What loading has freed goes back to the system."""
    gc.collect()
    trim_heap()
    collect_seldom()


def let_go() -> None:
    """Frees what was kept and is needed no more."""
    gc.unfreeze()
    gc.collect()
