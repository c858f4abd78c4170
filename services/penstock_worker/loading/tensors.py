"""Whether a model's files hold the tensors that its configuration asks for, and what these take in
memory. The loaders themselves are asked, on torch's device without data: what a worker would refuse
after it has read half of the weights, it refuses before the first of them, where torch runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import torch

from penstock.errors import PenstockError
from penstock.model.config import EncoderConfig, HeadConfig, ModelConfig, TransformersConfig
from penstock.model.prepared_model import PreparedModel
from penstock.prepare.describe import ExpertBytes
from penstock.protocol.to_worker import Setup
from penstock_kernels.cpu.library import load
from penstock_kernels.cpu.matrix import SOURCES, MatrixKind
from penstock_worker.forward.cpu.dtypes import dtype_of, kind_of
from penstock_worker.forward.interface import Unable
from penstock_worker.models.decoder import HEAD, DecoderModel, headless
from penstock_worker.pooling.heads import VECTORS, head_of
from penstock_worker.quantisation.registry import FORMATS
from penstock_worker.weights.opening import open_weights
from penstock_worker.weights.placing import nowhere
from penstock_worker.weights.repacking import bytes_on_card
from penstock_worker.weights.stored import StoredTensor

DTYPE = torch.float32
"""The dtype of tensors without data; any would do."""


def check_tensors(prepared: PreparedModel) -> None:
    """Reads headers, and of the data a few numbers at most. Raises UnsupportedModel for tensors
    that are missing, of another shape, of a type that can't be read, or that nothing asks for. Of
    what transformers' code computes, asks whether it can; raises Unable without transformers."""
    config = prepared.config
    if isinstance(config, HeadConfig):
        return  # It is no model, and drafts for one.
    if isinstance(config, TransformersConfig):
        from penstock_worker.by_transformers.model_class import model_class

        model_class(config, headless=prepared.pooling is not None)
        return
    with torch.inference_mode():
        if isinstance(config, ModelConfig):
            _check_decoder(prepared, config)
        elif isinstance(config, EncoderConfig):
            from penstock_worker.pooling.encoders import build_encoder

            build_encoder(prepared, setup_of_loaders(prepared), DTYPE, device=nowhere())
        of_text = isinstance(config, ModelConfig) and prepared.pooling is not None
        if config.takes_media and prepared.media is not None and not of_text:
            from penstock_worker.media.loading import load_senses

            load_senses(prepared, DTYPE, "auto", nowhere())


def refusal(prepared: PreparedModel) -> str:
    """Returns why a worker won't load the model; empty if it will."""
    try:
        check_tensors(prepared)
    except (PenstockError, Unable) as error:
        return str(error)
    return ""


def _check_decoder(prepared: PreparedModel, config: ModelConfig) -> None:
    weights = open_weights(prepared.weights, config, DTYPE, device=nowhere())
    if prepared.pooling is not None:
        head_of(weights, config, prepared.pooling, VECTORS)
        config = headless(config)
    DecoderModel(config, weights, positions=1)


def setup_of_loaders(prepared: PreparedModel) -> Setup:
    """Returns what loaders of encoders read of a Setup, and values for the rest."""
    return Setup(
        version=0,
        model_dir="",
        dtype="auto",
        attention_backend="reference",
        threads=1,
        block_size=1,
        num_kv_blocks=None,
        kv_memory_fraction=1.0,
        max_num_seqs=1,
        max_num_batched_tokens=1,
        max_model_len=1,
        pooling=prepared.pooling,
    )


def cpu_bytes(prepared: PreparedModel) -> int | None:
    """Returns what the matrices of a decoder take in the CPU kernels' layouts with the usual
    settings. None: the kernels aren't built, other code computes the model, or a quantised
    checkpoint's own numbers say how it is held. Raises UnsupportedModel for a broken file."""
    tensors = _decoders(prepared)
    if tensors is None:
        return None
    if prepared.decoder.tie_word_embeddings:
        tensors = {name: stored for name, stored in tensors.items() if name != HEAD}
    return _held(prepared, tensors.values())


def expert_bytes(prepared: PreparedModel) -> ExpertBytes | None:
    """Returns what the matrices of routed experts take. None as for cpu_bytes, and without any.
    Raises UnsupportedModel for a broken file."""
    tensors = _decoders(prepared)
    if tensors is None:
        return None
    own = [each for name, each in tensors.items() if _EXPERT.match(name) and len(each.shape) == 2]
    if not own:
        return None
    return ExpertBytes(
        file=sum(each.content.nbytes for each in own),
        host=_held(prepared, own),
        card=sum(map(bytes_on_card, own)),
    )


_EXPERT = re.compile(r"layers\.\d+\.mlp\.experts\.\d+\.")


def _decoders(prepared: PreparedModel) -> Mapping[str, StoredTensor] | None:
    config = prepared.config
    others = EncoderConfig | HeadConfig | TransformersConfig
    if isinstance(config, others) or prepared.weights.quantised:
        return None
    try:
        load()
    except ImportError:
        return None
    return open_weights(prepared.weights, config, DTYPE, device=nowhere()).tensors


def _held(prepared: PreparedModel, tensors: Iterable[StoredTensor]) -> int:
    whole, library = kind_of(dtype_of(setup_of_loaders(prepared), prepared.weights.dtype)), load()
    return sum(
        int(library.pk_matrix_bytes(_kind(stored, whole), *stored.shape))
        for stored in tensors
        if len(stored.shape) == 2
    )


def _kind(stored: StoredTensor, whole: MatrixKind | None) -> MatrixKind:
    """`whole`: the kind of all matrices; None: each as the file has it."""
    if whole is not None:
        return whole
    source, form = SOURCES.get(stored.format), FORMATS.get(stored.format)
    if source is None and form is not None and form.grouped is not None:
        return form.grouped.kind
    return MatrixKind.BF16 if source is None else source.kind
