"""A tokenizer that was read ahead is what is read anew: for any BOS, and in forks."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Backend

from penstock.errors import UnsupportedModel
from penstock.text import read_ahead as module
from penstock.text import tokenizer as tokenizer_module
from penstock.text.read_ahead import (
    MOST_BYTES,
    ListedModels,
    ReadMeanwhile,
    read_ahead,
    tokenizer_of,
)
from penstock.text.tokenizer import Tokenizer
from testing.tiny_models import byte_level_tokenizer, sentencepiece_tokenizer

pytestmark = pytest.mark.timeout(240)
TEXTS = ("", "the cat <|im_end|> sat", " on\n", "<s>a mat", "é")


@pytest.fixture(autouse=True)
def none_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_read", {})
    monkeypatch.setattr(module, "_room", [MOST_BYTES])


def content_of(make: Callable[[], Backend]) -> bytes:
    return make().to_str().encode()


@pytest.mark.parametrize("make", [byte_level_tokenizer, sentencepiece_tokenizer])
@pytest.mark.parametrize(("add_bos", "bos"), [(False, None), (True, 1), (True, None), (False, 2)])
def test_it_is_what_is_read_anew(
    make: Callable[[], Backend], add_bos: bool, bos: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = content_of(make)
    anew = Tokenizer.from_bytes(content, add_bos=add_bos, bos_token_id=bos)
    read_ahead(content)
    with monkeypatch.context() as patch:
        patch.setattr(tokenizer_module, "load_backend", None)  # It isn't read again.
        for each in (True, False):
            tokenizer_of(content, add_bos=each, bos_token_id=0).encode("another")
        ahead = tokenizer_of(content, add_bos=add_bos, bos_token_id=bos)
    assert (ahead.add_bos, ahead.bos_token_id) == (anew.add_bos, anew.bos_token_id)
    for text in TEXTS:
        for options in ({}, {"parse_special": False}, {"add_special": False}, {"begins": False}):
            ids = anew.encode(text, **options)
            assert ahead.encode(text, **options) == ids
            assert ahead.decode(ids) == anew.decode(ids)


def test_another_models_is_its_own() -> None:
    read_ahead(content_of(byte_level_tokenizer))
    other = content_of(sentencepiece_tokenizer)
    anew = Tokenizer.from_bytes(other, add_bos=True, bos_token_id=1)
    found = tokenizer_of(other, add_bos=True, bos_token_id=1)
    assert [found.encode(text) for text in TEXTS] == [anew.encode(text) for text in TEXTS]


def test_what_is_none_is_refused() -> None:
    with pytest.raises(UnsupportedModel):
        read_ahead(b"{}")
    with pytest.raises(UnsupportedModel):
        tokenizer_of(b"{}", add_bos=False, bos_token_id=None)


@pytest.mark.parametrize("token", [4_194_304, 100_000_000, 2**32 - 1])
def test_one_whose_ids_lie_far_apart_is_refused(token: int) -> None:
    """Tables have a place for each id."""
    described = json.loads(content_of(byte_level_tokenizer))
    described["model"]["vocab"]["far"] = token
    content = json.dumps(described).encode()
    for read in (read_ahead, partial(tokenizer_of, add_bos=False, bos_token_id=None)):
        with pytest.raises(UnsupportedModel, match=f"has the id {token}; 0 to 4194303"):
            read(content)
    assert module._read == {}


def folder_of(folder: Path, content: bytes) -> str:
    folder.mkdir()
    (folder / "tokenizer.json").write_bytes(content)
    return str(folder)


def test_each_model_that_is_listed_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that can't be read is left out, and keeps none of the others from it."""
    contents = list(map(content_of, (byte_level_tokenizer, sentencepiece_tokenizer)))
    listed = tmp_path / "listed"
    one, two = (folder_of(tmp_path / f"{n}", each) for n, each in enumerate(contents))
    broken, missing = folder_of(tmp_path / "broken", b"{}"), str(tmp_path / "missing")
    read: list[bytes] = []
    monkeypatch.setattr(module, "read_ahead", read.append)
    models = ListedModels(listed)
    models.read()
    for folders in ((one,), (one,), (one, broken, missing, two), (one, broken, missing, two)):
        listed.write_text("\n".join(folders))
        models.read()
    assert read == [contents[0], b"{}", contents[1]]


def test_what_is_read_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = list(map(content_of, (byte_level_tokenizer, sentencepiece_tokenizer)))
    monkeypatch.setattr(module, "_room", [len(contents[0])])
    listed = tmp_path / "listed"
    folders = [folder_of(tmp_path / f"{n}", each) for n, each in enumerate(contents)]
    listed.write_text("\n".join([*folders, folders[0]]))
    ListedModels(listed).read()
    assert list(module._read) == [module._digest(contents[0])]
    read_ahead(contents[1])
    assert len(module._read) == 1


def test_what_is_read_meanwhile_is_there_until_it_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = content_of(byte_level_tokenizer)
    folder = Path(folder_of(tmp_path / "model", content))
    reading = ReadMeanwhile(lambda: folder)
    reading.wait()
    with monkeypatch.context() as patch:
        patch.setattr(tokenizer_module, "load_backend", None)  # It isn't read again.
        found = tokenizer_of(content, add_bos=False, bos_token_id=None)
    reading.forget()
    assert (module._read, module._room) == ({}, [MOST_BYTES])
    anew = tokenizer_of(content, add_bos=False, bos_token_id=None)
    assert [found.encode(text) for text in TEXTS] == [anew.encode(text) for text in TEXTS]


def test_what_is_forgotten_before_it_is_read_does_not_stay(tmp_path: Path) -> None:
    folder = Path(folder_of(tmp_path / "model", content_of(byte_level_tokenizer)))
    forgotten = threading.Event()

    def find() -> Path:
        assert forgotten.wait(60)
        return folder

    reading = ReadMeanwhile(find)
    reading.forget()
    forgotten.set()
    reading.wait()
    assert (module._read, module._room) == ({}, [MOST_BYTES])


def test_nothing_is_read_meanwhile_of_a_model_that_is_not_there(tmp_path: Path) -> None:
    for folder in (None, tmp_path / "missing", Path(folder_of(tmp_path / "broken", b"{}"))):
        reading = ReadMeanwhile(partial(Path, folder) if folder else lambda: None)
        reading.wait()
        assert module._read == {}
        reading.forget()


FORKS = """
import os, sys
from penstock.supervisor.ahead import is_single_threaded
from penstock.text.read_ahead import read_ahead, tokenizer_of
from penstock.text.tokenizer import LONG_TEXT, Tokenizer

content = sys.stdin.buffer.read()
read_ahead(content)
assert is_single_threaded()
for _ in range(2):
    if os.fork() == 0:
        text = "the cat sat on the mat " * LONG_TEXT
        ids = tokenizer_of(content, add_bos=False, bos_token_id=None).encode(text)
        anew = Tokenizer.from_bytes(content, add_bos=False, bos_token_id=None)
        os._exit(0 if ids == anew.encode(text) else 1)
assert [os.wait()[1] for _ in range(2)] == [0, 0]
"""


def test_forks_share_it() -> None:
    """Also for texts that the library encodes in threads."""
    done = subprocess.run(
        [sys.executable, "-c", FORKS],
        input=content_of(byte_level_tokenizer),
        capture_output=True,
        timeout=200,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
