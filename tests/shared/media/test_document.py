"""Documents become text, and what would hurt ends one process, or none, with a clear reason."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import psutil
import pytest

from penstock.media.document import TEXT, BadDocument, open_document
from penstock.media.pool import MediaPool, Unpreparable
from penstock.media.prepared import read
from penstock.media.wire import DocumentText, ItemBounds, Prepare, ProcessBounds
from tests.shared.media import pdfs

pytestmark = pytest.mark.timeout(300)
WANTED = DocumentText(pages=50, characters=100_000)


def text_of(data: bytes, wanted: DocumentText = WANTED) -> str:
    return open_document(data, wanted).text


def test_the_text_of_every_page_in_order() -> None:
    found = open_document(pdfs.pdf("The first page.\nIts (second) line.", "Änd the lást."), WANTED)
    assert found.text == "The first page.\nIts (second) line.\n\nÄnd the lást."
    assert found.pages == 2


def test_a_pdf_that_begins_late_and_one_whose_table_is_elsewhere_are_read() -> None:
    whole = pdfs.pdf("Found all the same.")
    assert text_of(b"\n" * 100 + whole) == "Found all the same."
    misplaced = whole.replace(b"startxref\n", b"startxref\n7")
    assert text_of(misplaced) == "Found all the same."


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be"])
def test_plain_text_in_its_encoding(encoding: str) -> None:
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    found = open_document((mark + "def f():\r\n\treturn '中😀'\n").encode(encoding), WANTED)
    assert found == ("def f():\n\treturn '中😀'\n", 0)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is empty"),
        (b" \n\t", "is empty"),
        (b"caf\xe9", "neither a PDF nor a text in UTF-8"),
        (b"PK\x03\x04\0\0", "neither a PDF nor a text in UTF-8"),
        (b"%PDF-1.7\n", "damaged"),
        (b"%PDF-1.7\n" + random.Random(1).randbytes(5000), "damaged"),
        (pdfs.pdf(""), "holds no text"),
        (pdfs.encrypted(), "is encrypted and needs a password"),
        (pdfs.many_pages(51), "has 51 pages; at most 50 are accepted"),
    ],
    ids=range(9),
)
def test_what_cannot_be_read_says_why(data: bytes, reason: str) -> None:
    with pytest.raises(BadDocument, match=reason):
        open_document(data, WANTED)


@pytest.mark.parametrize(
    ("data", "length"),
    [
        (pdfs.pdf("a" * 60_000, "b" * 60_000, "c" * 60_000), 100_001),
        (pdfs.pdf("a" * 100_000), 100_000),
        (b"a" * 200_000, 100_001),
        (b"a" * 100_000, 100_000),
    ],
    ids=range(4),
)
def test_a_long_text_ends_one_character_beyond_what_was_wanted(data: bytes, length: int) -> None:
    assert len(text_of(data)) == length


def test_a_text_about_pdfs_is_a_text() -> None:
    notes = "# The header\n\nA PDF begins with `%PDF-1.7`, and ends with `%%EOF`.\n"
    assert open_document(notes.encode(), WANTED) == (notes, 0)
    with pytest.raises(BadDocument, match="damaged"):
        open_document(notes.encode() + b"\xff", WANTED)
    with pytest.raises(BadDocument, match="damaged"):
        open_document(b"\n\n" + pdfs.pdf("x" * 1000)[:700], WANTED)


MORE, DAMAGED = "is a PDF with more in it than is accepted", "is a PDF that is damaged"
HOSTILE = {
    "a bomb": (lambda: pdfs.unpacks_to(1 << 30), MORE),
    "a bomb of a bomb": (pdfs.unpacks_twice, MORE),
    "a tree of 10 ** 12 pages": (lambda: pdfs.doubling(12), MORE),
    "a million pages": (lambda: pdfs.many_pages(1_000_000), MORE),
    "a tree that holds itself": (pdfs.circular, DAMAGED),
    "200,000 arrays within one another": (pdfs.nested, DAMAGED),
    "a form that draws itself": (pdfs.endless_form, "holds no text"),
    "millions of operators": (pdfs.long_operators, "takes longer than 4 s to prepare"),
    "a table before itself": (pdfs.previous_of_itself, "text: x"),
    "a password": (pdfs.encrypted, "is encrypted and needs a password"),
    "no PDF": (lambda: b"%PDF-1.7\n" + random.Random(2).randbytes(1 << 20), DAMAGED),
    "half a PDF": (lambda: pdfs.pdf("x" * 1000)[:700], DAMAGED),
}


@pytest.fixture
async def pool() -> AsyncIterator[MediaPool]:
    """With the memory that it has by default, and less time."""
    pool = MediaPool(ProcessBounds(memory=1 << 30, cpu=4.0), 1)
    yield pool
    pids = pool.pids
    pool.close()
    assert not any(psutil.pid_exists(pid) for pid in pids)


def task(data: bytes) -> Prepare:
    return Prepare(WANTED, data, ItemBounds(0))


async def outcome(pool: MediaPool, data: bytes) -> str:
    """The text, or why there is none."""
    try:
        answer = await pool.prepare(task(data))
    except Unpreparable as error:
        return str(error)
    return f"text: {read(answer.data)[TEXT].tobytes().decode()}"


@pytest.mark.parametrize("name", HOSTILE)
async def test_what_would_hurt_is_refused_and_the_next_one_is_read(
    pool: MediaPool, name: str
) -> None:
    made, expected = HOSTILE[name]
    assert (await outcome(pool, made())).startswith(expected)
    assert await outcome(pool, pdfs.pdf("Still here.")) == "text: Still here."


async def test_damage_anywhere_is_a_refusal_or_a_text(pool: MediaPool) -> None:
    whole = pdfs.pdf("The first page.", "The second one.")
    random_ = random.Random(7)
    for _ in range(150):
        damaged = bytearray(whole)
        for _ in range(random_.randrange(1, 6)):
            damaged[random_.randrange(len(damaged))] = random_.randrange(256)
        said = await outcome(pool, bytes(damaged))
        assert said.startswith(("text: ", "is ", "holds no text"))
        assert len(said) < 1000
    assert pool.counts.ended == 0
