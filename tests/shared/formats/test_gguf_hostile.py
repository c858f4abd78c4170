"""Damaged GGUF files through all of prepare: settings, vocabulary, tensors, template."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path

import gguf
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.errors import ModelNotFound, UnsupportedModel
from penstock.prepare.from_gguf import read_gguf
from testing.tiny_models import (
    add_byte_level_vocabulary,
    add_sentencepiece_vocabulary,
    write_gguf,
)
from tests.met import met
from tests.thinning import part

pytestmark = pytest.mark.timeout(240)

VOCABULARIES: dict[str, Callable[[gguf.GGUFWriter], int]] = {
    "byte-level": add_byte_level_vocabulary,
    "SentencePiece": add_sentencepiece_vocabulary,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile")


@cache
def _sound(folder: Path, vocabulary: str) -> bytes:
    path = write_gguf(folder / f"{vocabulary}.gguf", vocabulary=VOCABULARIES[vocabulary])
    return path.read_bytes()


def _header(content: bytes) -> int:
    """Where the tensors' data begins, near enough."""
    return content.index(b"output_norm.weight") + 2000


def _read(folder: Path, content: bytes) -> bool:
    """Whether the file is taken. Any other error than a refusal goes through."""
    path = folder / "damaged.gguf"
    path.write_bytes(content)
    try:
        read_gguf(path)
    except (UnsupportedModel, ModelNotFound):
        return False
    return True


@settings(
    max_examples=part(40, 1 / 3),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_damage_is_refused_or_makes_no_difference(
    folder: Path, vocabulary: str, data: st.DataObject
) -> None:
    content = bytearray(_sound(folder, vocabulary))
    end = _header(bytes(content))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(4, end))
        patch = data.draw(
            st.one_of(
                st.binary(min_size=1, max_size=8),
                st.sampled_from([0, 1, 255, 2**31, 2**32, 2**63, 2**64 - 1]).map(
                    lambda number: struct.pack("<Q", number)
                ),
            )
        )
        content[at : at + len(patch)] = patch
    met("refused", not _read(folder, bytes(content)))


@settings(
    max_examples=part(40, 1 / 3),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_file_that_is_cut_is_refused(folder: Path, share: float) -> None:
    content = _sound(folder, "byte-level")
    assert _read(folder, content)
    # The last tensor may be followed by padding.
    met("cut within its tensors", share > 0.5)
    assert not _read(folder, content[: int(share * (len(content) - 32))])
