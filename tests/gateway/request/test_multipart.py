"""Forms, beside the ones that httpx writes."""

from __future__ import annotations

import random

import httpx
import pytest

from penstock.errors import InvalidRequest, TooLarge
from penstock_gateway.request.multipart import (
    MAX_FIELD_BYTES,
    MAX_PARTS,
    Form,
    FormReader,
    boundary_of,
)

HARD = b"\r\n--b--\r\n\r\n-- \x00\xff\r\n--boundar" * 40


def parsed(body: bytes, content_type: str, sizes: list[int] | None = None) -> Form:
    taken: list[int] = []
    reader = FormReader(boundary_of(content_type.encode()), "file", taken.append)
    while body:
        size = len(body) if not sizes else sizes.pop(0)
        reader.feed(body[:size])
        body = body[size:]
    form = reader.finish()
    assert sum(taken) == len(form.file or b"")
    return form


def written(file: bytes, **fields: str | list[str]) -> tuple[bytes, str]:
    request = httpx.Request("POST", "http://x", files={"file": ("a b.wav", file)}, data=fields)
    return request.read(), request.headers["content-type"]


@pytest.mark.parametrize("file", [b"", b"RIFF", HARD, b"\r\n", b"-" * 300])
def test_what_a_client_wrote_is_read_in_any_pieces(file: bytes) -> None:
    body, content_type = written(file, prompt="größer\r\n--x", empty="", model=["a", "b"])
    whole = parsed(body, content_type)
    assert (whole.file, whole.file_name) == (file, "a b.wav")
    assert whole.fields == [
        ("prompt", "größer\r\n--x"),
        ("empty", ""),
        ("model", "a"),
        ("model", "b"),
    ]
    rng = random.Random(5)
    assert parsed(body, content_type, [1] * len(body)) == whole
    for _ in range(20):
        sizes = [rng.choice([1, 2, 7, 50, 400]) for _ in range(len(body))]
        assert parsed(body, content_type, sizes) == whole


def test_what_stands_behind_a_form_is_skipped() -> None:
    body = (
        b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\nX\r\n--b--\r\nbehind\r\n--b\r\n'
    )
    assert parsed(body, 'multipart/form-data; boundary="b"').file == b"X"


@pytest.mark.parametrize(
    ("content_type", "complaint"),
    [
        ("", "must be multipart/form-data"),
        ("application/json", "must be multipart/form-data"),
        ("multipart/form-data", "no boundary"),
        ("multipart/form-data; boundary=" + "b" * 71, "no boundary"),
    ],
)
def test_types_that_are_none(content_type: str, complaint: str) -> None:
    with pytest.raises(InvalidRequest, match=complaint):
        boundary_of(content_type.encode("latin-1"))


HEAD = b'--b\r\nContent-Disposition: form-data; name="%s"\r\n\r\n'


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"", "ends before its last boundary"),
        (b"{}", "must be multipart/form-data"),
        (HEAD % b"file" + b"X", "ends before its last boundary"),
        (b"--b\r\n\r\n\r\nX\r\n--b--", "no content-disposition|ends before"),
        (b"--b\r\nContent-Type: text/plain\r\n\r\nX\r\n--b--", "no content-disposition"),
        (b"--b\r\n" + b"x" * 9000, "header size exceeded"),
        (b"--bx\r\n", "must be multipart/form-data"),
        (HEAD % b"model" + b"\xff\r\n--b--", "model is not UTF-8"),
        (HEAD % b"model" + b"x" * (MAX_FIELD_BYTES + 1) + b"\r\n--b--", "model has more than"),
        ((HEAD % b"a" + b"\r\n") * (MAX_PARTS + 1) + b"--b--", "more than 64 parts"),
        ((HEAD % b"file" + b"X\r\n") * 2 + b"--b--", "file appears twice"),
        (
            b'--b\r\nContent-Disposition: form-data; name="other"; filename="o"\r\n\r\nX\r\n--b--',
            "other is a file",
        ),
    ],
)
def test_broken_and_boundless_forms(body: bytes, complaint: str) -> None:
    for sizes in (None, [100] * 1000):
        with pytest.raises(InvalidRequest, match=complaint):
            parsed(body, "multipart/form-data; boundary=b", sizes)


def test_a_file_is_refused_before_it_is_kept() -> None:
    def take(size: int) -> None:
        raise TooLarge(f"{size}")

    reader = FormReader(b"b", "file", take)
    reader.feed(HEAD % b"file")
    with pytest.raises(TooLarge):
        reader.feed(b"x" * 1000)


def test_mutated_forms_are_forms_or_errors() -> None:
    body, content_type = written(HARD, prompt="p")
    rng = random.Random(9)
    for _ in range(300):
        changed = bytearray(body)
        for _ in range(rng.choice([1, 3, 20])):
            at = rng.randrange(len(changed))
            if rng.random() < 0.5:
                changed[at] = rng.choice(b"\r\n-b:\x00\xff")
            else:
                del changed[at : at + rng.choice([1, 30])]
        try:
            parsed(bytes(changed), content_type)
        except InvalidRequest:
            pass
