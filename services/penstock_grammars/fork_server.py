"""The process that has loaded the grammar library; those that try grammars are its forks.

So the library is loaded once for all of them, which takes a second or more and 200 MB where the
vocabulary is large, and another one is there at once where one had to be ended. It tries nothing
itself, so nothing that a client sends ends it.

Its standard input is a socket, whose other end asks one thing at a time: for a fork, with the
socket that it is to serve, or to end one.  Its first message is a CompileResult: whether the
library could be loaded.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.process.children import die_with_parent, set_title
from penstock_grammars.child import STACK_BYTES, CompileResult, serve
from penstock_worker.grammar.errors import GrammarError

if TYPE_CHECKING:
    from penstock_grammars.library import Library

FORK = 0
"""The request for a fork, whose answer is its pid. Any other one is the pid of a fork that is to be
ended; the answer is its exit code, as Popen has it."""
FAILED = -1
"""What stands in place of the pid of a fork that the system refuses."""
NICENESS = 10
"""The niceness of the forks, and of this process until a fork is asked for."""
MAX_MESSAGE = 4096
"""The bytes that a request may have."""


def main() -> None:
    """Arguments: tokenizer.json, size of the vocabulary, EOS ids."""
    die_with_parent()
    set_title("grammars")
    path, vocab_size, *eos = sys.argv[1:]
    control = socket.socket(fileno=os.dup(0))
    result, library = _loaded(Path(path), int(vocab_size), list(map(int, eos)))
    gc.freeze()  # A collection in a fork would copy all that it looks at.
    with suppress(OSError):  # The parent is gone.
        control.send(msgspec.msgpack.encode(result))
        if library is not None:
            _fork_for(control, library)


def _loaded(path: Path, vocab_size: int, eos: list[int]) -> tuple[CompileResult, Library | None]:
    # Imported here: the worker, which reads this module's numbers, loads grammars when it is idle.
    try:
        from penstock_grammars.library import Library

        library = Library(path, vocab_size, eos, splits_texts=False)
        _ = library.special  # Here, so that no fork has to read it.
    except GrammarError as error:
        return CompileResult(None, str(error)), None
    except BaseException as error:  # A library written in Rust may panic: no Exception.
        return CompileResult(None, f"{type(error).__name__}: {error}"[:500]), None
    return CompileResult(""), library


def _fork_for(control: socket.socket, library: Library) -> None:
    """Forks and ends processes as requests ask, until the other end is closed."""
    forks: set[int] = set()
    while True:
        message, fds, _, _ = socket.recv_fds(control, MAX_MESSAGE, 1)
        if not message:
            return
        request = msgspec.msgpack.decode(message, type=int)
        if request == FORK:
            answer = _fork(control, library, fds[0])
            forks.add(answer)
        elif request in forks:
            forks.remove(request)
            os.kill(request, signal.SIGKILL)
            answer = os.waitstatus_to_exitcode(os.waitpid(request, 0)[1])
        else:
            raise ValueError(f"{request} is no fork")
        control.send(msgspec.msgpack.encode(answer))


def _fork(control: socket.socket, library: Library, connection: int) -> int:
    """The pid of a process that serves the connection. Here, the connection is closed."""
    parent = os.getpid()
    try:
        pid = os.fork()
    except OSError:
        pid = FAILED
    if pid:
        os.close(connection)
        return pid
    try:
        control.close()
        os.close(0)  # That end of it is the parent's.
        die_with_parent(parent)
        set_title("grammar")
        os.setpriority(os.PRIO_PROCESS, 0, max(NICENESS, os.getpriority(os.PRIO_PROCESS, 0)))
        # What overflows a stack kills the process: so it has to happen here, and on a smaller one.
        threading.stack_size(STACK_BYTES)
        work = threading.Thread(target=serve, args=(library, socket.socket(fileno=connection)))
        work.start()
        work.join()
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
