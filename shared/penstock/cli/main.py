"""The `penstock` command.

Exit codes: 0 done, 1 failed or not ready, 2 wrong usage, 71 and 78 (a child without memory, and one
that can never start), 130 interrupted.  Nothing is imported before it is known what is to be done:
`penstock --help` is quick, and a gateway never loads what a worker needs.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

from penstock.cli.commands import BY_NAME, COMMANDS
from penstock.cli.parser import USAGE, nearest
from penstock.errors import InvalidRequest, PenstockError, StartupError
from penstock.version import DISTRIBUTION, __version__, foreign_distribution

FAILED = 1
INTERRUPTED = 130
TERMINATED = 143

MEANT = {
    **dict.fromkeys(("start", "server", "up", "launch", "host"), "serve"),
    **dict.fromkeys(("generate", "ask", "complete", "prompt"), "run"),
    **dict.fromkeys(("repl", "talk", "cli"), "chat"),
    **dict.fromkeys(("download", "fetch", "get", "install"), "pull"),
    **dict.fromkeys(("ls", "models", "images"), "list"),
    **dict.fromkeys(("remove", "delete", "del", "uninstall"), "rm"),
    **dict.fromkeys(("inspect", "describe"), "show"),
    **dict.fromkeys(("ps", "info"), "status"),
    **dict.fromkeys(("check", "diagnose", "collect-env", "env"), "doctor"),
    **dict.fromkeys(("benchmark", "perf"), "bench"),
    **dict.fromkeys(("convert", "quantise", "gguf"), "quantize"),
    **dict.fromkeys(("monitor", "watch", "live"), "top"),
}
"""Other programs' words for our commands."""

_EPILOG = """\
`penstock COMMAND --help` says more of each.

Examples:
  penstock serve smollm2-135m --port 8000
  penstock run smollm2-135m "What is the capital of Germany?"
  penstock chat --url http://127.0.0.1:8000

Exit codes: 0 done, 1 failed or not ready, 2 wrong usage, 130 interrupted.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if os.getpid() == 1:
        # A container's first process isn't ended by a signal that it doesn't handle. Until the
        # command does so itself, there is nothing to tidy up.
        signal.signal(signal.SIGTERM, lambda *_: os._exit(TERMINATED))
    try:
        return _main(words)
    except InvalidRequest as error:
        print(f"penstock: error: {error}", file=sys.stderr)
        return USAGE
    except PenstockError as error:
        print(f"penstock: error: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has closed it. Nothing may be written to it at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def _main(words: list[str]) -> int:
    if not words:
        print(help_text(), end="")
        return USAGE
    name = words[0]
    if name in ("-h", "--help") or words == ["help"]:
        print(help_text(), end="")
        return 0
    if name == "--version":
        print(f"penstock {__version__}")
        return 0
    if name == "help":
        words, name = [words[1], "--help"], words[1]
    command = BY_NAME.get(name)
    if command is None:
        return _no_such(name)
    _refuse_foreign()
    arguments = command.parser().parse_args(words[1:])
    return int(arguments.run(arguments))


def _refuse_foreign() -> None:
    version = foreign_distribution()
    if version is not None:
        raise StartupError(
            f"another project's distribution `penstock` {version} is installed here, whose files"
            f" may have replaced those of {DISTRIBUTION}: run"
            f" `pip uninstall penstock {DISTRIBUTION}`, then install {DISTRIBUTION} again"
        )


def help_text() -> str:
    """The help: a line for each command."""
    width = max(len(command.name) for command in COMMANDS)
    lines = ["usage: penstock COMMAND [ARGUMENTS]", "", "Serves large language models.", ""]
    for group in dict.fromkeys(command.group for command in COMMANDS):
        lines.append(f"{group}:")
        lines += [
            f"    {command.name:<{width}}  {command.summary}"
            for command in COMMANDS
            if command.group == group
        ]
        lines.append("")
    return "\n".join(lines) + "\n" + _EPILOG


def _no_such(name: str) -> int:
    if name.startswith("-"):
        message = f"there is no flag {name} before the COMMAND"
    else:
        near = MEANT.get(name) or nearest(name, list(BY_NAME))
        message = f"there is no command {name!r}" + (f"; did you mean {near!r}?" if near else "")
    print(f"penstock: error: {message}\nTry `penstock --help`.", file=sys.stderr)
    return USAGE


if __name__ == "__main__":
    sys.exit(main())
