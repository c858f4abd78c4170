"""PDFs, written by hand as ISO 32000-1 has them: good ones, and ones that would hurt."""

from __future__ import annotations

import zlib

Objects = dict[int, bytes]
FONT = b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>"


def pdf(*pages: str) -> bytes:
    """A PDF with these texts, a page each."""
    return written(objects_of([content(page) for page in pages]))


def objects_of(contents: list[bytes]) -> Objects:
    """Objects of a document with these pages: 1 is its catalogue, 2 its tree of pages."""
    objects: Objects = {1: b"<</Type/Catalog/Pages 2 0 R>>", 3: FONT}
    kids = []
    for number, each in enumerate(contents):
        page, stream = 4 + 2 * number, 5 + 2 * number
        kids.append(b"%d 0 R" % page)
        objects[page] = page_of(b"%d 0 R" % stream)
        objects[stream] = each
    objects[2] = tree(kids)
    return objects


def tree(kids: list[bytes], count: int | None = None) -> bytes:
    number = len(kids) if count is None else count
    return b"<</Type/Pages/Kids[%s]/Count %d>>" % (b" ".join(kids), number)


def page_of(contents: bytes) -> bytes:
    return (
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Resources<</Font<</F 3 0 R>>>>"
        b"/Contents %s>>" % contents
    )


def content(text: str) -> bytes:
    """The stream of a page that shows the text, a line below the other."""
    lines = [
        b"(%s) Tj 0 -14 Td"
        % line.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)").encode("cp1252")
        for line in text.split("\n")
    ]
    return stream(b"BT /F 12 Tf 72 720 Td\n" + b"\n".join(lines) + b"\nET")


def stream(data: bytes, head: bytes = b"") -> bytes:
    return b"<</Length %d%s>>\nstream\n%s\nendstream" % (len(data), head, data)


def packed(data: bytes) -> bytes:
    return stream(data, b"/Filter/FlateDecode")


def written(objects: Objects, more: bytes = b"") -> bytes:
    """The file. more: entries of its trailer."""
    out = bytearray(b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n")
    places = {}
    for number in sorted(objects):
        places[number] = len(out)
        out += b"%d 0 obj\n%s\nendobj\n" % (number, objects[number])
    begin, size = len(out), max(objects) + 1
    out += b"xref\n0 %d\n0000000000 65535 f \n" % size
    for number in range(1, size):
        out += b"%010d 00000 n \n" % places.get(number, 0)
    return bytes(
        out + b"trailer\n<</Size %d/Root 1 0 R%s>>\nstartxref\n%d\n%%%%EOF\n" % (size, more, begin)
    )


# What would hurt.


def unpacks_to(size: int) -> bytes:
    """A page whose contents are a bomb: blanks, so many bytes once they are unpacked."""
    objects = objects_of([content("x")])
    packer = zlib.compressobj(9)
    piece = b" " * (1 << 20)
    data = b"".join(packer.compress(piece) for _ in range(size >> 20)) + packer.flush()
    objects[5] = packed(data)
    return written(objects)


def unpacks_twice() -> bytes:
    """A bomb within a bomb."""
    inner = zlib.compress(zlib.compress(b" " * (200 << 20), 9), 9)
    objects = objects_of([content("x")])
    objects[5] = stream(inner, b"/Filter[/FlateDecode/FlateDecode]")
    return written(objects)


def doubling(depth: int) -> bytes:
    """A tree of pages in which each level holds the next one ten times."""
    objects: Objects = {1: b"<</Type/Catalog/Pages 2 0 R>>", 3: FONT}
    for level in range(depth):
        number = 2 if level == 0 else 10 + level
        below = 10 + level + 1
        objects[number] = tree([b"%d 0 R" % below] * 10, 10 ** (depth - level))
    objects[10 + depth] = page_of(b"5 0 R")
    objects[5] = content("again")
    return written(objects)


def many_pages(count: int) -> bytes:
    """One page, so many times."""
    objects = objects_of([content("again")])
    objects[2] = tree([b"4 0 R"] * count)
    return written(objects)


def circular() -> bytes:
    """A tree of pages that holds itself."""
    objects = objects_of([content("x")])
    objects[2] = tree([b"4 0 R", b"2 0 R"], 1 << 30)
    return written(objects)


def nested(depth: int = 200_000) -> bytes:
    """Arrays within arrays."""
    objects = objects_of([content("x")])
    objects[5] = stream(b"[" * depth + b"]" * depth)
    objects[4] = page_of(b"[" * depth + b"5 0 R" + b"]" * depth)
    return written(objects)


def endless_form() -> bytes:
    """A form that draws itself, twice."""
    objects = objects_of([stream(b"/X Do")])
    form = b"/Type/XObject/Subtype/Form/BBox[0 0 9 9]/Resources<</XObject<</X 6 0 R>>>>"
    objects[6] = stream(b"/X Do /X Do", form)
    objects[4] = page_of(b"5 0 R").replace(b"/Font<<", b"/XObject<</X 6 0 R>>/Font<<")
    return written(objects)


def long_operators(count: int = 1_500_000) -> bytes:
    """A page that moves its pen without end."""
    objects = objects_of([content("x")])
    objects[5] = packed(zlib.compress(b"BT /F 1 Tf " + b"1 0 Td (a) Tj " * count + b"ET", 9))
    return written(objects)


def previous_of_itself() -> bytes:
    """A table of places that names itself as the one before it."""
    whole = pdf("x")
    begin = whole.index(b"xref\n")
    return whole.replace(b"/Root", b"/Prev %d/Root" % begin)


def encrypted() -> bytes:
    """A PDF encrypted by RC4, with a password that nobody knows."""
    entry = b"<</Filter/Standard/V 1/R 2/O<%s>/U<%s>/P -4>>" % (b"ab" * 32, b"cd" * 32)
    objects = objects_of([content("secret")])
    objects[6] = entry
    return written(objects, b"/Encrypt 6 0 R/ID[<00><00>]")
