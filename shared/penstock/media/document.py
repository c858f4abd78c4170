"""From a file's bytes to its text: of a PDF or a plain text. Runs in a helper process: the bytes
are a stranger's."""

from __future__ import annotations

import codecs
import io
import logging
from typing import TYPE_CHECKING, NamedTuple

from penstock.media.wire import DocumentText

if TYPE_CHECKING:
    from pypdf import PdfReader

TEXT = "text"
"""Name of the array of a prepared document: its text in UTF-8."""
_PDF = b"%PDF-"
_HEAD = 1024
"""Bytes at a file's beginning in which a PDF says that it is one."""
_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
"""Bytes that a text in that encoding begins with."""
_CONTROL = dict.fromkeys(set(range(32)) - {ord("\t"), ord("\n")})


class BadDocument(ValueError):
    """The bytes are no document that is read here; says why, to follow "the document"."""


class ExtractedText(NamedTuple):
    """pages: 0 where it has none."""

    text: str
    pages: int = 0


def open_document(data: bytes, wanted: DocumentText) -> ExtractedText:
    """The text of a PDF, or of a text in UTF-8 or UTF-16; of a long one its beginning, see
    DocumentText. Raises BadDocument, and MemoryError."""
    found = _pdf(data, wanted) if _PDF in data[:_HEAD] else ExtractedText(_plain(data))
    if not found.text.strip():
        raise BadDocument(
            "holds no text (a scanned page is a picture)" if found.pages else "is empty"
        )
    return found._replace(text=found.text[: wanted.characters + 1])


def _plain(data: bytes) -> str:
    encoding = next((name for mark, name in _MARKS.items() if data.startswith(mark)), "utf-8")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise BadDocument("is neither a PDF nor a text in UTF-8 or UTF-16; convert it to one")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _pdf(data: bytes, wanted: DocumentText) -> ExtractedText:
    from pypdf import PdfReader
    from pypdf.errors import DependencyError, FileNotDecryptedError, LimitReachedError

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)
    try:
        return _read(PdfReader(io.BytesIO(data)), wanted)
    except (BadDocument, MemoryError):
        raise
    except FileNotDecryptedError:
        raise BadDocument("is encrypted and needs a password; send it without one") from None
    except DependencyError:
        raise BadDocument("is encrypted in a way that isn't read here; send it plain") from None
    except LimitReachedError:
        raise BadDocument("is a PDF with more in it than is accepted") from None
    except Exception:  # pypdf's message about a client's bytes isn't passed on.
        return _no_pdf(data)


def _no_pdf(data: bytes) -> ExtractedText:
    """A text that mentions what PDFs begin with. Raises BadDocument for a PDF that is damaged."""
    damaged = BadDocument("is a PDF that is damaged, and can't be read")
    if data[:_HEAD].lstrip().startswith(_PDF):
        raise damaged
    try:
        return ExtractedText(_plain(data))
    except BadDocument:
        raise damaged from None


def _read(reader: PdfReader, wanted: DocumentText) -> ExtractedText:
    """Raises BadDocument, and whatever pypdf raises."""
    count = len(reader.pages)
    if count > wanted.pages:
        raise BadDocument(
            f"has {count} pages; at most {wanted.pages} are accepted (--max-document-pages)"
        )
    pages: list[str] = []
    characters = 0
    for page in reader.pages:
        text = page.extract_text().translate(_CONTROL).strip()
        pages.append(text)
        characters += len(text)
        if characters > wanted.characters:
            break
    return ExtractedText("\n\n".join(filter(None, pages)), count)
