"""`penstock quantize`: a model in fewer bits, as a GGUF file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from penstock.cli.columns import columns, decimal
from penstock.cli.parser import Parser, examples
from penstock.errors import InvalidRequest

if TYPE_CHECKING:
    from penstock_conversion.quantize.run import Quantized, Report

MOST_TOKENS = 1 << 20
MOST_THREADS = 1024


def add(parser: Parser) -> None:
    """The command's arguments."""
    parser.description = (
        "Writes a model in fewer bits, as a GGUF file, from a Hugging Face folder, a name on the "
        "hub or another GGUF file. At the end, says how much the model's perplexity has risen."
    )
    parser.epilog = examples(
        "penstock quantize ./Qwen3-0.6B --to Q4_K_M",
        "penstock quantize model-F16.gguf --to Q5_K_M --output model-Q5_K_M.gguf",
        "penstock quantize ./Qwen3-0.6B --to Q3_K_M --imatrix texts.txt",
    )
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument(
        "--to",
        required=True,
        metavar="TYPE",
        help="F16, BF16, Q8_0, Q6_K, Q5_K_M, Q5_K_S, Q5_1, Q5_0, Q4_K_M, Q4_K_S, Q4_1, Q4_0,"
        " Q3_K_L, Q3_K_M, Q3_K_S, Q2_K or F32.",
    )
    parser.add_argument(
        "--output", metavar="FILE", help="Of the file (default: NAME-TYPE.gguf, here)."
    )
    parser.add_argument(
        "--imatrix",
        metavar="TEXTS",
        help="A text file that the model reads first: columns that get larger inputs are rounded "
        "with more care (an importance matrix). Takes the whole model's memory.",
    )
    parser.add_argument(
        "--imatrix-tokens",
        type=int,
        default=8192,
        metavar="TOKENS",
        help="Most tokens that are read of it (default: 8,192).",
    )
    parser.add_argument(
        "--text",
        metavar="FILE",
        help="What the perplexity is measured on (default: a text that comes with Penstock).",
    )
    parser.add_argument(
        "--text-tokens",
        type=int,
        default=4096,
        metavar="TOKENS",
        help="Most tokens that are read of it (default: 4,096).",
    )
    parser.add_argument(
        "--no-perplexity", action="store_true", help="Leaves it out, and the memory that it takes."
    )
    parser.add_argument("--threads", type=int, metavar="N", help="Default: all cores.")
    parser.add_argument("--cache-dir", metavar="FOLDER", help="Folder for prepared models.")
    parser.add_argument(
        "--language-model-only",
        action="store_true",
        help="Leaves out what a folder's model sees or hears with.",
    )
    parser.add_argument("--json", action="store_true", help="As JSON, for scripts.")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """0. Raises InvalidRequest, ModelNotFound, UnsupportedModel, StartupError."""
    if not arguments.model:
        raise InvalidRequest("MODEL is empty")
    for flag, most in (("imatrix_tokens", MOST_TOKENS), ("text_tokens", MOST_TOKENS)):
        _check(flag, getattr(arguments, flag), 3, most)
    if arguments.threads is not None:
        _check("threads", arguments.threads, 1, MOST_THREADS)
    import msgspec

    bars = Bars()
    try:
        outcome = _quantised(arguments, bars)
    finally:
        bars.close()
    if arguments.json:
        print(msgspec.json.encode(outcome, enc_hook=str).decode())
    else:
        print(_text(outcome))
    return 0


def _check(flag: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        name = flag.replace("_", "-")
        raise InvalidRequest(f"--{name} is {value}; allowed are {least} to {most:,}")


def _quantised(arguments: argparse.Namespace, report: Report) -> Quantized:
    from penstock_worker.machine.torch_import import import_torch

    import_torch()
    from penstock_conversion.quantize.run import QuantizeOptions, quantize

    options = QuantizeOptions(
        arguments.model,
        arguments.to,
        output=_path(arguments.output),
        imatrix=_path(arguments.imatrix),
        imatrix_tokens=arguments.imatrix_tokens,
        text=_path(arguments.text),
        text_tokens=arguments.text_tokens,
        quality=not arguments.no_perplexity,
        threads=arguments.threads,
        cache_dir=arguments.cache_dir,
        language_model_only=arguments.language_model_only,
    )
    return quantize(options, report)


def _path(value: str | None) -> Path | None:
    return None if value is None else Path(value)


def _text(outcome: Quantized) -> str:
    """What was made, for people."""
    bits = 8 * outcome.size / outcome.numbers if outcome.numbers else 0.0
    size = decimal(outcome.size) + (f", {bits:.2f} bits a number" if bits else "")
    types = ", ".join(f"{kind} {decimal(bytes_)}" for kind, bytes_ in outcome.types.items())
    rows = [
        ("file", str(outcome.path)),
        ("size", f"{size} (before: {decimal(outcome.size_before)})"),
        ("types", types),
    ]
    found = outcome.quality
    if found is not None:
        rows.append(
            (
                "perplexity",
                f"{found.after:.3f} (before: {found.before:.3f}, {found.change:+.2%} ±"
                f" {found.error:.2%}), {found.tokens:,} tokens",
            )
        )
    return columns(rows)


class Bars:
    """Shows progress on stderr, where that is a terminal, and sentences in any case."""

    def __init__(self) -> None:
        self._bar: Any = None

    def step(self, what: str, total: int, unit: str) -> None:
        """Begins a bar."""
        self.close()
        self._bar = tqdm(
            desc=what,
            total=total,
            unit=f" {unit}s",
            unit_scale=total > 1000,
            leave=False,
            disable=None,
            dynamic_ncols=True,
        )

    def done(self, count: int, what: str = "") -> None:
        """Moves it on."""
        if self._bar is not None:
            self._bar.set_postfix_str(what, refresh=False)
            self._bar.update(count)

    def say(self, what: str) -> None:
        """A line."""
        tqdm.write(f"penstock: {what}", file=sys.stderr)

    def close(self) -> None:
        """Ends the bar, if there is one."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
