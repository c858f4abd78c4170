"""Engine cores with null workers, many in one process, each in threads of its own.

    python -m loadtest.sessions.engine_cores MODEL_DIR FOLDER FIRST COUNT

They listen at FOLDER/front-NUMBER, from FIRST on.  A line says that they do.
"""

from __future__ import annotations

import gc
import secrets
import socket
import sys
import threading
import time
from pathlib import Path

import msgspec
import zmq

from penstock.config.settings import EngineConfig
from penstock.net.listener import raise_file_limit
from penstock.prepare.folder import TOKENIZER
from penstock.text.tokenizer import Tokenizer
from penstock.transport.heartbeat import PROCESS
from penstock_engine.core import EngineCore
from penstock_engine.facts import EngineFacts
from penstock_engine.notes import SleepNote, WeightsNote
from penstock_engine.process import Loop, _session_server, read_facts
from testing.null_worker import Answers, NullWorker
from testing.words import token_ids

_open: list[socket.socket] = []
"""The ends by which loops would be told of signals: once one is closed, its loop drains."""


def front(folder: Path, number: int) -> str:
    """The endpoint where front ends reach that engine core."""
    return f"ipc://{folder}/front-{number}"


def start(
    context: zmq.Context[zmq.Socket[bytes]],
    config: EngineConfig,
    known: EngineFacts,
    folder: Path,
    number: int,
    words: list[int],
) -> list[threading.Thread]:
    """The threads of an engine core and of its worker, which begin to run."""
    boot = secrets.token_bytes(8)
    facts = msgspec.structs.replace(known, boot=boot.hex())
    frontends = _session_server(context, front(folder, number), "frontends", config, boot)
    back = f"ipc://{folder}/back-{number}"
    workers = _session_server(context, back, "workers", config, boot)
    for each in (frontends, workers):
        PROCESS.join(each)
    wakeup, signalling = socket.socketpair()
    _open.append(signalling)
    core = EngineCore(facts)
    notes = SleepNote(None), WeightsNote(None)
    loop = Loop(core, frontends, workers, wakeup, 0.0, *notes)
    worker = NullWorker(back, Answers(words), 0.0)
    threads = [threading.Thread(target=run, daemon=True) for run in (loop.run, worker.run)]
    for thread in threads:
        thread.start()
    return threads


def main(model_dir: str, folder: str, first: str, count: str) -> None:
    raise_file_limit()
    config = EngineConfig()
    known = read_facts(config, Path(model_dir), boot="", created=int(time.time()))
    content = (Path(model_dir) / TOKENIZER).read_bytes()
    words = token_ids(Tokenizer(content, add_bos=False, bos_token_id=None))
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, 4096)
    for number in range(int(first), int(first) + int(count)):
        start(context, config, known, Path(folder), number, words)
    gc.collect()
    gc.freeze()
    print("ready", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
