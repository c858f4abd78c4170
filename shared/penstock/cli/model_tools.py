"""What `quantize` and `merge` ask of the worker's code, each in its own process."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli.models import columns, decimal

if TYPE_CHECKING:
    from penstock_worker.merge.run import MergedModel
    from penstock_worker.quantize.run import Quantized, Report


def quantised(arguments: argparse.Namespace, report: Report) -> Quantized:
    """Quantises a model. Raises InvalidRequest, ModelNotFound, UnsupportedModel, StartupError."""
    from penstock_worker.machine.torch_import import import_torch

    import_torch()
    from penstock_worker.quantize.run import QuantizeOptions, quantize

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


def text(outcome: Quantized) -> str:
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


def merged(arguments: argparse.Namespace) -> MergedModel:
    """Merges an adapter into its base. Raises as `quantised` does."""
    from penstock_worker.machine.torch_import import import_torch

    import_torch()
    from penstock_worker.merge.run import MergeOptions, merge

    return merge(
        MergeOptions(
            arguments.model,
            arguments.adapter,
            output=Path(arguments.output),
            most_shard_bytes=round(arguments.max_shard_gb * 1e9),
            cache_dir=arguments.cache_dir,
        )
    )


def _path(value: str | None) -> Path | None:
    return None if value is None else Path(value)
