"""`penstock verify`: whether an answer is what its receipt says."""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.cli.parser import Parser, examples
from penstock.cli.sampling_arguments import add_engine, engine_settings
from penstock.errors import InvalidRequest, PenstockError

if TYPE_CHECKING:
    from penstock.request.receipt import PublicKey
    from penstock_receipts.verify import ModelHere, SignedReceipt, Verdict

UNTOLD = 3
MAX_SAMPLE = 1_000_000
MAX_SHOWN = 400
"""Characters of what a receipt says that are shown at a time."""


def add(parser: Parser) -> None:
    """The command's arguments."""
    parser.usage = "penstock verify RECEIPT [--model MODEL] [--sample K] [--flag VALUE ...]"
    parser.description = (
        "Computes an answer again from its receipt, and says whether it is equal, or at which "
        "token it differs. RECEIPT is a file with the reply or with the receipt alone; a dash "
        "reads stdin. Returns 0 if all is equal, 1 if something differs, 3 if it can't be told "
        "here. Every engine setting of `penstock serve` is a flag here too; those that change "
        "bits are the receipt's."
    )
    parser.epilog = examples(
        "penstock verify reply.json",
        "penstock verify reply.json --model ./model.gguf --sample 16 --key server.key.json",
    )
    parser.add_argument("receipt", metavar="RECEIPT")
    parser.add_argument("--model", metavar="MODEL", help="Default: the one that the receipt names.")
    parser.add_argument("--adapter", metavar="FOLDER", help="The LoRA adapter that was applied.")
    parser.add_argument(
        "--sample",
        type=int,
        metavar="K",
        help="Compute only K tokens of each output, drawn anew each time.",
    )
    parser.add_argument(
        "--key",
        metavar="KEY",
        help="The key that must have signed it, in base64, or a file with that or with what"
        " /v1/receipts/key answers.",
    )
    parser.add_argument("--json", action="store_true", help="As JSON, for scripts.")
    parser.add_argument("--verbose", action="store_true", help="Show the engine's log.")
    add_engine(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Verifies the receipts that were named, and returns the exit code. Raises InvalidRequest."""
    from penstock_receipts.statement import MAX_BYTES, read_receipts
    from penstock_receipts.verify import SignedReceipt

    if arguments.sample is not None and not 1 <= arguments.sample <= MAX_SAMPLE:
        raise InvalidRequest(f"--sample must lie in [1, {MAX_SAMPLE}]")
    pinned = _pinned(arguments.key)
    data = _read(arguments.receipt, MAX_BYTES + 1)
    try:
        receipts = [SignedReceipt(each, pinned) for each in read_receipts(data)]
        return asyncio.run(_verify(arguments, receipts))
    except InvalidRequest as error:
        raise InvalidRequest(shown(str(error))) from error
    except PenstockError as error:
        print(f"penstock: error: {error}", file=sys.stderr)
        return UNTOLD  # Not 1, which says that something differs.


async def _verify(arguments: argparse.Namespace, receipts: list[SignedReceipt]) -> int:
    """What needs no model comes first, and where that fails, nothing more."""
    from penstock_receipts.verify import Verdict

    codes = set()
    async with VerifyingEngine(arguments) as engine:
        for receipt in receipts:
            checks = list(receipt.checks())
            if all(check.standing == "equal" for check in checks):
                checks += await (await engine.of(receipt)).checks(receipt, arguments.sample)
            verdict = Verdict.of(receipt.statement.id, checks)
            print(
                msgspec.json.encode(verdict).decode() if arguments.json else _text(verdict),
                flush=True,
            )
            codes.add({"equal": 0, "differs": 1, "untold": UNTOLD}[verdict.standing])
    return 1 if 1 in codes else max(codes)


class VerifyingEngine:
    """The library, started for a receipt's settings, and anew for a receipt with others."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._own = engine_settings(arguments)
        self._running: AsyncExitStack | None = None
        self._started_for: tuple[str, dict[str, Any]] | None = None
        self._model: ModelHere | None = None

    async def __aenter__(self) -> VerifyingEngine:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._running is not None:
            await self._running.aclose()

    async def of(self, receipt: SignedReceipt) -> ModelHere:
        """The model that the receipt names, served as it says."""
        settings = {**receipt.settings(), **self._own}
        wanted = _model(self._arguments.model, receipt), settings
        if self._model is None or self._started_for != wanted:
            await self.__aexit__()
            self._running = AsyncExitStack()
            self._model, self._started_for = await self._start(*wanted), wanted
        return self._model

    async def _start(self, model: str, settings: dict[str, Any]) -> ModelHere:
        from penstock.llm.asynchronous import AsyncLLM
        from penstock.request.lora import LoRARequest
        from penstock.request.terms import Terms
        from penstock_receipts.verify import ModelHere

        folder, adapter = self._arguments.adapter, None
        if folder is not None:
            adapter = LoRARequest("adapter", 1, folder)
            settings = {**settings, "enable_lora": True}
        log = sys.stderr if self._arguments.verbose else None
        running = self._running or AsyncExitStack()
        llm = await running.enter_async_context(AsyncLLM(model, engine_log=log, **settings))
        (terms,) = await llm.with_adapters([Terms()], adapter)
        return ModelHere(llm, await llm.client.hash_weights(), terms)


NAMED = re.compile(r"[\w][\w.-]*(/[\w][\w.-]*)?(:[\w.-]+)?")
"""A name on the hub, or an alias; a receipt's paths mean nothing here."""


def _model(given: str | None, receipt: SignedReceipt) -> str:
    """The model's name or path. Raises InvalidRequest, and ModelNotFound: what only a receipt names
    isn't downloaded."""
    if given is not None:
        return given
    from penstock.prepare import prepare

    claim = receipt.statement.model
    named = claim.hub_id or claim.name
    if NAMED.fullmatch(named) is None:
        raise InvalidRequest("the receipt's model has no name on the hub; give --model")
    prepare(named, fetch="never")
    return named


def _read(name: str, most: int) -> bytes:
    try:
        if name == "-":
            return sys.stdin.buffer.read(most)
        with Path(name).expanduser().open("rb") as file:
            return file.read(most)
    except OSError as error:
        raise InvalidRequest(f"{name}: {error.strerror}") from None


def _pinned(given: str | None) -> PublicKey | None:
    from penstock_receipts.verify import pinned_key

    if given is None:
        return None
    try:
        is_file = Path(given).is_file()
    except OSError:  # Its name would be too long: it is the key itself.
        is_file = False
    return pinned_key(_read(given, 16_384).decode("utf-8", "replace") if is_file else given)


WORDS = {"equal": "equal", "differs": "DIFFERS", "untold": "?"}
VERDICTS = {
    "equal": "equal",
    "differs": "NOT what the receipt says",
    "untold": "can't be told here",
}


def _text(verdict: Verdict) -> str:
    rows = [f"{shown(verdict.id)}: {VERDICTS[verdict.standing]}"]
    rows += [
        f"  {each.what:<12} {WORDS[each.standing]:<8} {shown(each.detail)}"
        for each in verdict.checks
    ]
    return "\n".join(rows)


def shown(text: str) -> str:
    """On one line, without orders to a terminal: the receipt's author chose its names, and may have
    tried to forge a line that says that all is equal."""
    kept = "".join(each if each.isprintable() else "?" for each in text[:MAX_SHOWN])
    return kept if len(text) <= MAX_SHOWN else f"{kept}…"
