"""`penstock batch`: a file of requests answered, by a system of its own or by a running one."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from penstock.cli.batch_file import AnswersSoFar, FileLine, read_lines
from penstock.cli.http_client import (
    HttpClient,
    Unreachable,
    add_server_arguments,
    client,
    reason_of,
)
from penstock.cli.parser import Parser, examples
from penstock.cli.sampling_arguments import add_engine, refuse_settings
from penstock.config.flags import resolve
from penstock.config.settings import ServeConfig
from penstock.config.tree import replace_settings
from penstock.errors import InvalidRequest, PenstockError
from penstock.process import logs

CONCURRENCY = 64
LONGEST_PAUSE = 5.0
PATIENCE = 60.0
"""Seconds without an answer of any kind, after which a system is given up."""
REFUSED_PATIENCE = 900.0
"""Seconds in which a system answers no line and refuses all, after which it is given up."""
RETRIED = (429, 503)


def add(parser: Parser) -> None:
    """The command's arguments."""
    parser.usage = "penstock batch [MODEL] FILE [--flag VALUE ...]"
    parser.description = (
        "Answers a file of requests in OpenAI's batch format. Starts an engine for it, or with "
        "--url asks a running system. After an interruption, the same command resumes. Every "
        "engine setting of `penstock serve` is a flag here too."
    )
    parser.epilog = examples(
        "penstock batch smollm2-135m requests.jsonl",
        "penstock batch smollm2-135m requests.jsonl -o answers.jsonl --max-num-seqs 128",
        "penstock batch --url http://127.0.0.1:8000 requests.jsonl",
    )
    parser.add_argument("words", nargs="*", metavar="MODEL FILE", help="With --url: only FILE.")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="Default: FILE with the ending .results.jsonl."
    )
    parser.add_argument(
        "--concurrency",
        type=int,
        default=CONCURRENCY,
        metavar="N",
        help="Requests that are open at once. Default: %(default)s.",
    )
    parser.add_argument("--verbose", action="store_true", help="Show the engine's log.")
    add_server_arguments(parser, default=None)
    add_engine(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """0; 1 where lines were answered with an error. Raises InvalidRequest and PenstockError."""
    model, file = _words(arguments)
    if not 1 <= arguments.concurrency <= 4096:
        raise InvalidRequest("--concurrency must lie in [1, 4096]")
    lines = read_lines(file)
    stem = file.with_suffix("") if file.suffix == ".jsonl" else file
    output = Path(arguments.output or f"{stem}.results.jsonl")
    if output.exists() and output.samefile(file):
        raise InvalidRequest(f"-o {output} is the file of requests itself; name another one")
    progress = AnswersSoFar(file, output)
    try:
        left = [line for line in lines if line.number not in progress.answered]
        work = FileWork(left, len(lines), progress, arguments.concurrency)
        if not left:
            pass
        elif arguments.url:
            work.run(client(arguments))
        else:
            _with_own_system(arguments, model, work)
        if len(progress.answered) < len(lines):
            raise PenstockError("interrupted; run the same command again to resume")
        progress.finish()
    finally:
        progress.close()
    failed = sum(_status(line) != 200 for line in progress.answered.values())
    print(f"{len(lines)} lines, {failed} of them with an error: {output}", file=sys.stderr)
    return int(failed > 0)


def _words(arguments: argparse.Namespace) -> tuple[str, Path]:
    words = list(arguments.words)
    if arguments.url:
        refuse_settings(arguments)
        words = ["", *words]
    if len(words) != 2:
        raise InvalidRequest("give MODEL and FILE; or with --url only FILE")
    return words[0], Path(words[1]).expanduser()


def _status(line: str) -> int:
    response = json.loads(line)["response"]
    return int(response["status_code"]) if response else 0


class FileWork:
    """lines: that have no answer yet, of `total`."""

    def __init__(
        self, lines: list[FileLine], total: int, progress: AnswersSoFar, concurrency: int
    ) -> None:
        self._lines = lines
        self._total = total
        self._progress = progress
        self._concurrency = concurrency
        self._stopped = threading.Event()
        self._answered_at = time.monotonic()

    def run(self, server: HttpClient) -> None:
        """Runs until every line has an answer. Raises Unreachable where the system is gone; what
        was answered is kept."""
        from tqdm import tqdm

        done = self._total - len(self._lines)
        self._answered_at = time.monotonic()
        with (
            ThreadPoolExecutor(self._concurrency) as pool,
            tqdm(total=self._total, initial=done, unit=" lines", disable=None) as bar,
        ):
            try:
                for answered in self._results(pool, server):
                    answered.result()
                    bar.update()
            finally:
                self._stopped.set()

    def stop(self) -> None:
        """Has no further line begun, and none asked again. May be called from any thread."""
        self._stopped.set()

    def _results(self, pool: ThreadPoolExecutor, server: HttpClient) -> Iterable[Future[None]]:
        """Yields a future for each line as it ends, and submits no more at a time than may be
        open."""
        under_way: set[Future[None]] = set()
        for line in self._lines:
            if len(under_way) >= self._concurrency:
                ended, under_way = wait(under_way, return_when=FIRST_COMPLETED)
                yield from ended
            under_way.add(pool.submit(self._answer, server, line))
        yield from wait(under_way)[0]

    def _answer(self, server: HttpClient, line: FileLine) -> None:
        pause = 0.1
        silent_since: float | None = None
        while not self._stopped.is_set():
            later: float | None
            try:
                status, body, later = server.post_once(line.url, line.body)
                silent_since = None
            except Unreachable:
                # From the first that failed: one that is answered may take longer than that.
                silent_since = silent_since or time.monotonic()
                if time.monotonic() - silent_since > PATIENCE:
                    raise
                status, body, later = 503, None, None
            if status not in RETRIED or (status == 429 and later is None):
                # What is refused without a word of another time is refused for good.
                self._progress.keep(line.number, _result(line, status, body))
                self._answered_at = time.monotonic()
                return
            if silent_since is None:
                self._check_patience(status, body)
            self._stopped.wait(min(LONGEST_PAUSE, max(pause, later or 0.0)))
            pause = min(LONGEST_PAUSE, 2 * pause)

    def _check_patience(self, status: int, body: Any) -> None:
        """Raises PenstockError where nothing has been answered for too long."""
        if time.monotonic() - self._answered_at < REFUSED_PATIENCE:
            return
        raise PenstockError(
            f"no line was answered for {REFUSED_PATIENCE:g} s; the last was refused with {status}: "
            f"{reason_of(body)}. Run the same command again to resume"
        )


def _result(line: FileLine, status: int, body: Any) -> str:
    name = f"batch_req_{secrets.token_hex(16)}"
    response = {"status_code": status, "request_id": name, "body": body}
    return json.dumps(
        {"id": name, "custom_id": line.custom_id, "response": response, "error": None},
        ensure_ascii=False,
    )


def _with_own_system(arguments: argparse.Namespace, model: str, work: FileWork) -> None:
    """Runs a whole system around the work. Raises PenstockError."""
    from penstock.supervisor.system import SystemOptions, run_system

    config = _config(arguments, model)
    logs.setup("supervisor", level=config.log.log_level, form=config.log.log_format)
    failures: list[BaseException] = []
    gone = threading.Event()

    def drive(url: str) -> None:
        try:
            work.run(HttpClient(url, os.environ.get(arguments.api_key_env) or None, 3600.0))
        except BaseException as error:
            failures.append(error)
        finally:
            if not gone.is_set():  # Afterwards it isn't handled, and this process would end.
                os.kill(os.getpid(), signal.SIGTERM)

    drivers: list[threading.Thread] = []

    def announce(url: str, _: Path | None) -> None:
        drivers.append(threading.Thread(target=drive, args=(url,), daemon=True))
        drivers[0].start()

    try:
        run_system(config, SystemOptions(announce=announce))
    finally:
        gone.set()
        work.stop()
        for driver in drivers:
            driver.join()
    if failures:
        raise failures[0]


def _config(arguments: argparse.Namespace, model: str) -> ServeConfig:
    config = resolve(arguments)
    changes: dict[str, Any] = {"model": model, "host": "127.0.0.1", "port": 0}
    if not arguments.verbose:
        changes["log_level"] = "error"
    return replace_settings(config, changes)
