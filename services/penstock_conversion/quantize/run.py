"""Quantises a model, and says what that costs in quality."""

from __future__ import annotations

import gc
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from penstock.errors import InvalidRequest, UnsupportedModel
from penstock.formats.gguf_writing import TensorEntry
from penstock.formats.small_file import read_small
from penstock.model.config import EncoderConfig, HeadConfig, ModelConfig
from penstock.model.prepared_model import PreparedModel
from penstock.prepare import load_manifest, prepare
from penstock_conversion.quantize.folder import folder_source
from penstock_conversion.quantize.importance import importances
from penstock_conversion.quantize.mixes import Mix, find_mix
from penstock_conversion.quantize.scores import change, log_probabilities, perplexity, token_ids
from penstock_conversion.quantize.source import SourceModel, gguf_source
from penstock_conversion.quantize.writing import Importances, entries, write
from penstock_worker.machine.cpu import usable_threads
from penstock_worker.machine.memory import free_memory
from penstock_worker.weights.gguf_files import gguf_name

SAMPLE_TEXT = Path(__file__).with_name("sample_text.txt")
"""English prose of 1,400 tokens."""
MAX_TEXT_BYTES = 64 << 20
SPARE_BYTES = 1 << 30
"""Bytes that scoring a model needs in addition to its weights."""


@dataclass(frozen=True)
class QuantizeOptions:
    """What the command was asked for."""

    model: str
    to: str
    output: Path | None = None
    """None: a file in the current folder, called by the model and the type."""
    imatrix: Path | None = None
    """Texts by which the importance of columns is measured."""
    imatrix_tokens: int = 8192
    text: Path | None = None
    """What the perplexity is measured on; None: SAMPLE_TEXT."""
    text_tokens: int = 4096
    quality: bool = True
    """Whether it is measured."""
    threads: int | None = None
    cache_dir: str | None = None
    language_model_only: bool = False


class Report(Protocol):
    """Called with progress."""

    def step(self, what: str, total: int, unit: str) -> None:
        """A step begins, of so many numbers or tokens."""

    def done(self, count: int, what: str = "") -> None:
        """So many more are done."""

    def say(self, what: str) -> None:
        """A sentence."""


@dataclass(frozen=True)
class QualityLoss:
    """How well two models foretell the same tokens."""

    tokens: int
    before: float
    """Perplexity."""
    after: float
    change: float
    """Share by which the perplexity is higher."""
    error: float
    """The standard error of `change`."""


@dataclass(frozen=True)
class Quantized:
    """What was made."""

    path: Path
    size: int
    """Bytes."""
    size_before: int
    """Bytes of the model's tensors."""
    types: dict[str, int] = field(default_factory=dict)
    """Bytes of the tensors of each type."""
    numbers: int = 0
    quality: QualityLoss | None = None


def quantize(wanted: QuantizeOptions, report: Report) -> Quantized:
    """Writes the file. Raises InvalidRequest, ModelNotFound, UnsupportedModel and StartupError."""
    mix = find_mix(wanted.to)
    folder = prepare(
        wanted.model,
        cache_dir=wanted.cache_dir,
        progress=report.say,
        language_model_only=wanted.language_model_only,
    )
    prepared = load_manifest(folder)
    output = _output(wanted, prepared)
    text = _text(wanted.text or SAMPLE_TEXT)
    threads = wanted.threads or usable_threads()
    source = _source(prepared, folder)
    _say_what_is_lost(prepared, report)
    columns = _importances(wanted, prepared, folder, report)
    _write(source, mix, output, columns, threads, report)
    planned = entries(source, mix, weighted=bool(columns))
    del source
    gc.collect()
    return Quantized(
        output,
        output.stat().st_size,
        prepared.weights.size,
        _by_type(planned),
        prepared.weights.numbers,
        _quality(wanted, prepared, folder, output, text, threads, report),
    )


def _output(wanted: QuantizeOptions, prepared: PreparedModel) -> Path:
    mix = wanted.to.upper()
    found = wanted.output or Path(f"{prepared.name.rpartition('/')[2]}-{mix}.gguf")
    if found.is_dir():
        raise InvalidRequest(f"--output {found} is a folder; a file's name is wanted")
    if found.suffix != ".gguf":
        raise InvalidRequest(f"--output {found} has another ending than .gguf")
    if found.exists():
        raise InvalidRequest(f"{found} is there already: remove it, or give another --output")
    if not found.absolute().parent.is_dir():
        raise InvalidRequest(f"--output {found}: the folder isn't there")
    return found


def _text(path: Path) -> str:
    try:
        found = read_small(path, MAX_TEXT_BYTES).decode()
    except OSError as error:
        raise InvalidRequest(f"{path} can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{path} is no text in UTF-8") from error
    if not found.strip():
        raise InvalidRequest(f"{path} is empty")
    return found


def _source(prepared: PreparedModel, folder: Path) -> SourceModel:
    if isinstance(prepared.config, HeadConfig):
        raise UnsupportedModel(f"{prepared.name} is a head that drafts, and no model")
    if prepared.weights.format == "gguf":
        return gguf_source(Path(prepared.weights.files[0]))
    return folder_source(prepared, folder)


def _say_what_is_lost(prepared: PreparedModel, report: Report) -> None:
    kind = prepared.weights.dtype
    if prepared.weights.quantised or kind not in ("float32", "float16", "bfloat16"):
        report.say(
            f"{prepared.name} is quantised already ({kind}): what that took away stays away, so"
            " start from its unquantised release if there is one"
        )
    if prepared.weights.mmproj:
        report.say(f"what it sees with stays in a file of its own: {prepared.weights.mmproj}")


def _importances(
    wanted: QuantizeOptions, prepared: PreparedModel, folder: Path, report: Report
) -> Importances:
    if wanted.imatrix is None:
        return {}
    config = prepared.decoder
    tokens = token_ids(folder, _text(wanted.imatrix), wanted.imatrix_tokens)
    if len(tokens) < 2:
        raise InvalidRequest(f"--imatrix {wanted.imatrix} has {len(tokens)} tokens; 2 are needed")
    report.step("reading texts", len(tokens), "token")
    found = importances(folder, tokens, lambda count: report.done(count))
    if not isinstance(config, ModelConfig):
        return {}
    return {gguf_name(f"{name}.weight", config): each for name, each in found.items()}


def _write(
    source: SourceModel, mix: Mix, output: Path, columns: Importances, threads: int, report: Report
) -> None:
    planned = entries(source, mix, weighted=bool(columns))
    report.step("quantising", sum(map(_numbers, planned)), "number")
    write(
        source,
        mix,
        output,
        importances=columns,
        threads=threads,
        written=lambda entry: report.done(_numbers(entry), f"{entry.name} {entry.type}"),
    )


def _numbers(entry: TensorEntry) -> int:
    return int(np.prod(entry.shape))


def _by_type(planned: list[TensorEntry]) -> dict[str, int]:
    found: dict[str, int] = {}
    for entry in planned:
        found[entry.type] = found.get(entry.type, 0) + entry.size
    return dict(sorted(found.items(), key=lambda each: -each[1]))


def _quality(
    wanted: QuantizeOptions,
    prepared: PreparedModel,
    folder: Path,
    output: Path,
    text: str,
    threads: int,
    report: Report,
) -> QualityLoss | None:
    if not wanted.quality:
        return None
    if isinstance(prepared.config, EncoderConfig) or prepared.pooling is not None:
        report.say("no perplexity: it gives vectors, and no text")
        return None
    needed, free = prepared.weights.size + SPARE_BYTES, free_memory()
    if needed > free:
        report.say(
            f"no perplexity: it takes {needed / 1e9:.1f} GB of memory, and {free / 1e9:.1f} GB are"
            " free"
        )
        return None
    after_folder = prepare(os.fspath(output), cache_dir=wanted.cache_dir)
    tokens = token_ids(folder, text, wanted.text_tokens)
    if token_ids(after_folder, text, wanted.text_tokens) != tokens:
        raise UnsupportedModel(
            f"{output} was written, but its tokenizer gives other tokens than {prepared.name}'s"
        )
    if len(tokens) < 3:
        raise InvalidRequest(f"the text has {len(tokens)} tokens; 3 are needed for a perplexity")
    report.step("perplexity", 2, "model")
    found = []
    for each in (folder, after_folder):
        found.append(log_probabilities(each, tokens, threads))
        report.done(1)
    before, after = found
    return QualityLoss(len(before), perplexity(before), perplexity(after), *change(before, after))
