"""What the formats say of themselves, the file readers and the kernels say too."""

from __future__ import annotations

import torch

from penstock.formats.gguf_types import BLOCKS, READ_TYPES
from penstock_kernels.cpu.matrix import PLAIN, SOURCES
from penstock_worker.quantisation.registry import FORMATS


def test_blocks_are_the_file_readers() -> None:
    for name, form in FORMATS.items():
        assert form.name == name
        assert (form.elements, form.bytes) == BLOCKS[name]


def test_types_that_are_read_are_those_that_prepare_accepts() -> None:
    assert set(FORMATS) & set(BLOCKS) == READ_TYPES


def test_blocks_are_the_cpu_kernels() -> None:
    assert {name for name, form in FORMATS.items() if form.packed} == set(SOURCES)
    assert tuple(name for name, form in FORMATS.items() if form.plain) == PLAIN
    for name, source in SOURCES.items():
        assert (source.elements, source.bytes) == BLOCKS[name]


def test_a_block_decodes_to_its_elements() -> None:
    for form in FORMATS.values():
        blocks = torch.zeros(3, form.bytes, dtype=torch.uint8)
        decoded = form.decode(blocks)
        assert decoded.shape == (3, form.elements)
        assert form.plain or decoded.dtype == torch.float32
