"""`penstock top`: a running system, live."""

from __future__ import annotations

import argparse
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.cli.http_client import DEFAULT_URL, Refused, Unreachable, add_server_arguments, client
from penstock.cli.parser import Parser, examples
from penstock.cli.system_report import ask
from penstock.cli.terminal import Style
from penstock.cli.top_frame import History, frame
from penstock.errors import InvalidRequest

_ENTER = "\x1b[?1049h\x1b[?25l"
_LEAVE = "\x1b[?25h\x1b[?1049l"
"""The terminal's other screen, without a cursor; and back."""


def add(parser: Parser) -> None:
    """The command's arguments."""
    parser.description = (
        "Shows queue, batch, KV blocks, tokens per second and gateways of a running system, until "
        "q or Ctrl-C. Exit codes: 0, or with --once 1 if the system is not ready."
    )
    parser.epilog = examples("penstock top", "penstock top --url http://10.0.0.7:8000 --once")
    add_server_arguments(parser, default=DEFAULT_URL)
    parser.add_argument(
        "--interval", type=float, default=1.0, metavar="SECONDS", help="Default: %(default)g."
    )
    parser.add_argument("--once", action="store_true", help="Show one interval, and exit.")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the command; returns one of the exit codes above. Raises Unreachable with --once."""
    if not 0.1 <= arguments.interval <= 3600:
        raise InvalidRequest(f"--interval must lie in 0.1 to 3600, not {arguments.interval:g}")
    server = client(arguments, max(2.0, arguments.interval))
    history = History()
    if arguments.once or not sys.stdout.isatty():
        # Two looks: a rate needs them.
        history.add(ask(server), time.monotonic())
        time.sleep(min(arguments.interval, 1.0))
        history.add(ask(server), time.monotonic())
        print("\n".join(frame(history, server.url, arguments.interval, Style(sys.stdout))))
        return 0 if history.state is not None and history.state.ready else 1
    with _screen():
        try:
            while True:
                try:
                    history.add(ask(server), time.monotonic())
                except (Unreachable, Refused) as error:
                    history.lost(str(error))
                _draw(frame(history, server.url, arguments.interval, Style(sys.stdout)))
                if _quit_pressed(arguments.interval):
                    return 0
        except KeyboardInterrupt:
            return 0


def _draw(lines: list[str]) -> None:
    """Draws over the present lines, without clearing first, which would flicker."""
    rows = max(1, os.get_terminal_size(sys.stdout.fileno()).lines)
    shown = lines[:rows]
    sys.stdout.write("\x1b[H" + "\x1b[K\r\n".join(shown) + "\x1b[K\x1b[J")
    sys.stdout.flush()


@contextmanager
def _screen() -> Iterator[None]:
    """The other screen, and keys as they are pressed; both given back, however it ends."""
    keys = sys.stdin.isatty()
    before = termios.tcgetattr(sys.stdin) if keys else None
    if keys:
        tty.setcbreak(sys.stdin)
    sys.stdout.write(_ENTER)
    sys.stdout.flush()
    try:
        yield
    finally:
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()
        if before is not None:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _quit_pressed(seconds: float) -> bool:
    """Waits so long, or until a key comes."""
    if not sys.stdin.isatty():
        time.sleep(seconds)
        return False
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    if not ready:
        return False
    keys = os.read(sys.stdin.fileno(), 64)
    return not keys or keys[:1] in b"qQ"
