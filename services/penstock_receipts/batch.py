"""Signs the receipts of a batch's output together: each line gets its place in their tree."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import msgspec

from penstock.request.receipt import TreePlace
from penstock_gateway.batches.in_process import LineResult
from penstock_receipts.signing import SigningKey
from penstock_receipts.statement import TreeStatement
from penstock_receipts.tree import ReceiptTree, leaf_digest

FIELD = "penstock_receipt"
_line, _fields = msgspec.json.Decoder(LineResult), msgspec.json.Decoder(dict[str, msgspec.Raw])
_text = msgspec.json.Decoder(str)


class BatchSigner:
    """key: the server's."""

    def __init__(self, key: SigningKey) -> None:
        self._key = key

    def signed(self, batch: str, lines: Callable[[], Iterator[bytes]]) -> Iterator[bytes]:
        """The lines, which are read twice; those without a receipt stay as they are."""
        leaves = [leaf_digest(said) for said in map(_statement_in, lines()) if said is not None]
        if not leaves:
            yield from lines()
            return
        tree = ReceiptTree(leaves)
        statement = TreeStatement(
            batch=batch, created=int(time.time()), size=tree.size, root=tree.root.hex()
        )
        text = msgspec.json.encode(statement).decode()
        signature, index = self._key.sign(text), 0
        for line in lines():
            if _statement_in(line) is None:
                yield line
                continue
            path = [each.hex() for each in tree.path(index)]
            place = TreePlace(
                statement=text, signature=signature, key=self._key.public, index=index, path=path
            )
            yield _placed(line, place)
            index += 1


def _statement_in(line: bytes) -> str | None:
    """What the receipt in a line says; None: there is none."""
    if FIELD.encode() not in line:
        return None
    try:
        response = _line.decode(line).response
        body = _fields.decode(response.body if response is not None else b"{}")
        return _text.decode(_fields.decode(body[FIELD])["statement"])
    except (msgspec.DecodeError, KeyError):
        return None


def _placed(line: bytes, place: TreePlace) -> bytes:
    result = _line.decode(line)
    if result.response is None:
        raise ValueError("a line without an answer has no receipt")
    body = _fields.decode(result.response.body)
    body[FIELD] = _raw({**_fields.decode(body[FIELD]), "batch": place})
    response = msgspec.structs.replace(result.response, body=_raw(body))
    return msgspec.json.encode(msgspec.structs.replace(result, response=response)) + b"\n"


def _raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))
