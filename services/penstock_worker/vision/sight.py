"""Turns the arrays of a prepared item into its encoding."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor

from penstock.errors import UnsupportedModel
from penstock.media.pixels import FRAMES, inputs, video_inputs
from penstock.model.config import EncoderConfig, ModelConfig, PreparedModel
from penstock.model.media_facts import Preparation
from penstock.model.tower_spec import LearnedPositions, VisionSpec
from penstock.model.video_facts import VideoPreparation
from penstock_worker.media.pieces import MILLION, Pieces, whole
from penstock_worker.vision.aligner_names import of_aligner
from penstock_worker.vision.crops import of_crops
from penstock_worker.vision.document_names import DOCUMENT_MODULES, of_document
from penstock_worker.vision.mmproj_names import mmproj_name, mmproj_tensors
from penstock_worker.vision.mobilenet import IN_EMBEDDER, of_mobilenet
from penstock_worker.vision.perception_names import PERCEPTION_MODULES, of_perception
from penstock_worker.vision.picture import Picture, UnfitPicture, grid_of, rows_of
from penstock_worker.vision.picture_reading import read_picture
from penstock_worker.vision.places import lay_out, table_rows
from penstock_worker.vision.projector import load_deepstack, load_projector
from penstock_worker.vision.rows import RowThreads
from penstock_worker.vision.sheets import TOWER as SHEET_TOWER
from penstock_worker.vision.sheets import of_sheet
from penstock_worker.vision.tower import make_tower
from penstock_worker.vision.two_towers import read_both
from penstock_worker.weights.opening import open_tower_weights
from penstock_worker.weights.placing import CPU
from penstock_worker.weights.weights import Weights


class Sight:
    """A model's tower, and how its pictures and videos were prepared."""

    def __init__(
        self,
        model: VisionModel,
        preparation: Preparation,
        layer_done: Callable[[], None],
        video: Preparation | None = None,
    ) -> None:
        """`layer_done` is called after each of the tower's layers. `video`: None for a model that
        takes pictures only."""
        self._model = model
        self._preparation = preparation
        self._video = video
        self._layer_done = layer_done

    def check(self, tensors: Mapping[str, np.ndarray], rows: int, grid: tuple[int, ...]) -> int:
        return self._model.check(self._inputs(tensors), rows, grid)

    def encode(self, tensors: Mapping[str, np.ndarray]) -> Tensor:
        picture = self._model.read(self._inputs(tensors))
        return self._model.encode(picture, self._layer_done)

    def pieces(self, tensors: Mapping[str, np.ndarray]) -> Pieces[Tensor]:
        return self._model.pieces(self._model.read(self._inputs(tensors)), self._layer_done)

    def _inputs(self, tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        try:
            if isinstance(self._video, VideoPreparation) and FRAMES in tensors:
                return video_inputs(self._video, tensors)
            return inputs(self._preparation, tensors)
        except ValueError as error:
            raise UnfitPicture(str(error)) from None


def load_tower(
    prepared: PreparedModel,
    dtype: torch.dtype,
    load_format: str,
    device: torch.device = CPU,
    threads: int = 1,
) -> VisionModel:
    """Raises UnsupportedModel for weights that don't fit."""
    weights = open_tower(prepared.weights, dtype, device=device, load_format=load_format)
    return VisionModel(prepared.config, weights, threads)


# Encodes prepared pictures: tower and projector together.


class VisionModel:
    """Loads its weights when it is constructed, and is read-only from then on.

    One picture is encoded at a time, so that its bits are its own.
    """

    def __init__(
        self, config: ModelConfig | EncoderConfig, weights: Weights, threads: int = 1
    ) -> None:
        """`threads`: that encode a picture on a CPU.

        Raises UnsupportedModel for a model that doesn't see, and for weights that don't fit."""
        if config.vision is None:
            raise UnsupportedModel("the model takes no images")
        self.spec: VisionSpec = config.vision
        self.row_size = config.row_size
        self.dtype = weights.dtype
        self._threads = RowThreads(threads)
        self._tower = make_tower(self.spec.tower, weights, self._threads)
        self._projector = load_projector(self.spec, weights, config.row_size, self._threads)
        self._mergers = dict(
            zip(
                self.spec.deepstack_layers,
                load_deepstack(self.spec, weights, config.row_size),
                strict=True,
            )
        )
        self._divisible = weights.device.type == "cpu"
        weights.finish()

    def check(self, tensors: Mapping[str, np.ndarray], rows: int, grid: tuple[int, ...]) -> int:
        """Returns MediaReady.work of an item.

        Raises UnfitPicture if the tower can't take what an item's tensors hold, or if that isn't
        what was said of it."""
        picture = self.read(tensors)
        found, shape = rows_of(picture, self.spec), grid_of(picture, self.spec)
        if found != rows or shape not in (None, grid[:3]):
            raise UnfitPicture(
                f"the picture becomes {found} rows with the grid {shape or ()}; {rows} with {grid} "
                "were announced"
            )
        return self._work(picture, rows) if self._divisible else 0

    def _work(self, picture: Picture, rows: int) -> int:
        """Millions of multiplications, more or less."""
        projectors = [self._projector, *self._mergers.values()]
        projected = rows * sum(projector.row_work for projector in projectors)
        towered = sum(self._tower.work(part) for part in picture.parts())
        return -(-(towered + projected) // MILLION)

    def read(self, tensors: Mapping[str, np.ndarray]) -> Picture:
        """Returns the picture that an item's tensors hold. Raises UnfitPicture."""
        if self.spec.second is not None:
            return read_both(tensors, self.spec, self.spec.second)
        picture = read_picture(tensors, self.spec)
        positions = self.spec.tower.positions
        if isinstance(positions, LearnedPositions) and not positions.stretched:
            table_rows(picture, positions)
        return picture

    def encode(self, picture: Picture, layer_done: Callable[[], None] = lambda: None) -> Tensor:
        """Returns [rows, width], in the order in which placeholders stand for them (see
        VisionSpec.row_width). `layer_done` is called after each layer."""
        return whole(self.pieces(picture, layer_done))

    def pieces(
        self, picture: Picture, layer_done: Callable[[], None] = lambda: None
    ) -> Pieces[Tensor]:
        """`encode` with pauses."""
        rows = [(yield from self._part(picture, layer_done))]
        while picture.behind is not None:
            picture = picture.behind
            rows.append((yield from self._part(picture, layer_done)))
        return torch.cat(rows) if len(rows) > 1 else rows[0]

    def _part(self, picture: Picture, layer_done: Callable[[], None]) -> Pieces[Tensor]:
        """Rows of the tiles of one size."""
        layout = lay_out(picture, self.spec)
        levels: list[Tensor] = []

        def after(layer: int, hidden: Tensor) -> Pieces[None]:
            if layer in self._mergers:
                merger = self._mergers[layer]
                levels.append((yield from merger.pieces(hidden, picture, self._threads)))
            layer_done()

        vectors = yield from self._tower.pieces(picture, layout, after)
        seen = picture.merged(self.spec.tower.merged)
        rows = yield from self._projector.pieces(vectors, seen, self._threads)
        if self.spec.row_multiplier != 1.0:
            rows = rows * self.spec.row_multiplier
        return layout.as_they_came(torch.cat((rows, *levels), 1)).contiguous()


# Names of tensors in checkpoints of the hub, and ours. Prefixes before them tell nothing.

_TOWER = re.compile(
    r"^(?:model\.)?"
    rf"(?:{SHEET_TOWER}|vision_tower\.vision_model|vision_tower|vision_model\.vision_model|vision_model|vision_encoder|visual\.vision_model|visual)\."
)
_PROJECTOR = re.compile(
    r"^(?:model\.)?(?:multi_modal_projector|vision_projection|mlp_AR|mlp1|mm_projector|projector|connector|merger|embed_vision|vision_embedder)\."
)
_LAYER = re.compile(
    r"^(?:encoder\.layers?|transformer\.layers|model\.layers|layers|blocks)\.(\d+)\.(.+?)(?:\.linear)?"
    r"(\.weight|\.bias|\.(?:in|out)put_(?:min|max))?$"
)
_MOONVIT = re.compile(r"^encoder\.blocks\.(\d+)\.(.+?)(\.weight|\.bias)?$")
"""A layer of Kimi K2.5's, whose modules count from 0."""
_IN_MOONVIT = {
    "norm0": "norm1",
    "norm1": "norm2",
    "mlp.fc0": "up_proj",
    "mlp.fc1": "down_proj",
    "wqkv": "qkv",
    "wo": "out_proj",
}
_MERGING = re.compile(r"^vit_merger\.(.+?)(\.weight|\.bias)?$")
"""What merges squares of patches between two of MiniCPM-V's layers."""
_MODULE = re.compile(r"^(.+?)(\.weight|\.bias)?$")

_IN_LAYER = {
    "layer_norm1": "norm1",
    "layer_norm2": "norm2",
    "norm1": "norm1",
    "norm2": "norm2",
    "self_attn.q_proj": "q_proj",
    "self_attn.k_proj": "k_proj",
    "self_attn.v_proj": "v_proj",
    "self_attn.out_proj": "out_proj",
    "self_attn.o_proj": "out_proj",
    "input_layernorm": "norm1",
    "post_attention_layernorm": "norm2",
    "pre_feedforward_layernorm": "norm3",
    "post_feedforward_layernorm": "norm4",
    "self_attn.q_norm": "q_norm",
    "self_attn.k_norm": "k_norm",
    "attn.qkv": "qkv",
    "attn.proj": "out_proj",
    "mlp.fc1": "up_proj",
    "mlp.linear_fc1": "up_proj",
    "mlp.linear_fc2": "down_proj",
    "mlp.fc2": "down_proj",
    "attention.q_proj": "q_proj",
    "attention.k_proj": "k_proj",
    "attention.v_proj": "v_proj",
    "attention.o_proj": "out_proj",
    "attention.projection_layer": "out_proj",
    "attn.q_norm": "q_norm",
    "attn.k_norm": "k_norm",
    "attention.q_norm": "q_norm",
    "attention.k_norm": "k_norm",
    "attention_norm": "norm1",
    "ffn_norm": "norm2",
    "layernorm_before": "norm1",
    "layernorm_after": "norm2",
    "lambda_1": "scale1",
    "lambda_2": "scale2",
    "ls1": "scale1",
    "ls2": "scale2",
    "feed_forward.gate_proj": "gate_proj",
    "feed_forward.up_proj": "up_proj",
    "feed_forward.down_proj": "down_proj",
    "block_sparse_moe.fc1": "up_proj",  # as transformers saves MiniMax M3's mlp
    "block_sparse_moe.fc2": "down_proj",
    "mlp.gate_proj": "gate_proj",
    "mlp.up_proj": "up_proj",
    "mlp.down_proj": "down_proj",
}
_IN_MERGING = _IN_LAYER | {"pre_norm": "norm2", "linear_1": "up_proj", "linear_2": "down_proj"}
_OF_TOWER = {
    "embeddings.class_embedding": "class_embedding",
    "embeddings.patch_embedding": "patch_embedding",
    "embeddings.position_embedding": "position_embedding",
    "embeddings.cls_token": "cls_token",
    "embeddings.patch_embeddings.projection": "patch_embedding",
    "embeddings.position_embeddings": "position_embeddings",
    "layernorm": "last_norm",
    "patch_embedding.linear": "patch_matrix",
    "positional_embedding_vlm": "positions_before_class",
    "layernorm_pre": "first_norm",
    "layernorm_post": "last_norm",
    "vision_adapter.mlp.fc1": "projector.adapter.1",
    "vision_adapter.mlp.fc2": "projector.adapter.2",
    "patch_conv": "patch_embedding",
    "patch_embedder.input_proj": "patch_embedding",
    "patch_embedder.position_embedding_table": "axial_positions.weight",
    "std_bias": "projector.std_bias",
    "std_scale": "projector.std_scale",
    "ln_pre": "first_norm",
    "patch_embed.proj": "patch_embedding",
    "pre_layrnorm": "first_norm",
    "post_layernorm": "last_norm",
    "merger.ln_q": "projector.norm",
    "merger.mlp.0": "projector.1",
    "merger.mlp.2": "projector.2",
    "merger.norm": "projector.norm",
    "downsample": "projector.merging",
    "merger.proj": "projector.1",
    "merger.post_projection_norm": "projector.norm",
    "merger.gate_proj": "projector.gate_proj",
    "merger.up_proj": "projector.up_proj",
    "merger.down_proj": "projector.down_proj",
    "post_conv_layernorm": "patch_norm",
    "merger.linear_fc1": "projector.1",
    "merger.linear_fc2": "projector.2",
    "pos_embed": "position_embedding",
    "encoder.final_layernorm": "last_norm",
    "encoder.patch_embed.proj": "patch_embedding",
}
_DEEPSTACK = re.compile(r"^deepstack_merger_list\.(\d+)\.")
_OF_PROJECTOR = {
    "linear_1": "projector.1",
    "linear_2": "projector.2",
    "layer_norm": "projector.norm",
    "norm": "projector.norm",
    "pre_norm": "projector.norm",
    "proj.0": "projector.1",
    "proj.2": "projector.2",
    "0": "projector.norm",  # Qianfan-OCR's makers count modules
    "1": "projector.1",
    "3": "projector.2",
    "mlp.0.pre_norm": "projector.norm",
    "mlp.0.linear_1": "projector.1",
    "mlp.0.linear_2": "projector.2",
    "merge_linear_1": "projector.squares.1",
    "merge_linear_2": "projector.squares.2",
    "patch_merger.merging_layer": "projector.merging",
    "modality_projection.proj": "projector",
    "mm_soft_emb_norm": "projector.norm",
    "mm_input_projection_weight": "projector.weight",
    "embedding_projection": "projector",
    "multimodal_embedder.embedding_projection": "projector",  # as transformers calls it itself
    "patch_ln1": "pixel_norm",
    "patch_dense": "patch_embedding",
    "patch_ln2": "patch_norm",
    "pos_embedding": "axial_positions.by_place",
    "pos_norm": "first_norm",
}
_OF_SQUARES = re.compile(r"^(?:model\.)?patch_merge_mlp\.linear_")
"""The second half of MiniMax M3's projector."""
_OF_PICTURES = re.compile(r"^visual_projection\b")
"""CLIP's names of what makes its pictures' vectors."""
_WINDOWS = re.compile(r"^(?:model\.)?(layerwise|spatial)_projectors\.(\d+)\.")
"""Granite 4 Vision's projectors, whose queries see windows."""
_NEWLINE = re.compile(r"^(?:model\.)?image_newline$")
_NOT_NEEDED = re.compile(
    r"(^|\.)(embeddings\.(position_ids|mask_token|packing_position_embedding\.weight)|pos_emb\.time_weight|rotary_pos_emb\.inv_freq)$"
)
"""Buffers that old checkpoints saved, although the configuration determines them; what stands for
hidden patches in training."""


def from_hub(name: str) -> str | None:
    """Returns our name for a tensor of a tower or a projector; None for another half's. An unknown
    name stays as it is, without its prefix."""
    if _NOT_NEEDED.search(name):
        return None
    for of_family in (of_document, of_sheet, of_perception, of_crops, of_aligner, of_mobilenet):
        if (found := of_family(name)) is not None:
            return found
    if _TOWER.match(name):
        return _in_tower(_TOWER.sub("", name))
    if _PROJECTOR.match(name):
        return _known(_PROJECTOR.sub("", name), _OF_PROJECTOR)
    if (window := _WINDOWS.match(name)) is not None:
        return f"projector.{window[1]}.{window[2]}.{name[window.end() :]}"
    if _OF_SQUARES.match(name):
        return _OF_SQUARES.sub("projector.squares.", name)
    if _OF_PICTURES.match(name):
        return _OF_PICTURES.sub("head.projection", name)
    return "projector.newline" if _NEWLINE.match(name) else None


HUB_MODULES = {*_IN_LAYER, *_OF_TOWER, *_OF_PROJECTOR, *DOCUMENT_MODULES, *PERCEPTION_MODULES}
HUB_MODULES |= IN_EMBEDDER.keys()
"""Modules in the names that from_hub knows."""
open_tower = partial(
    open_tower_weights,
    from_hub=from_hub,
    read_mmproj=mmproj_tensors,
    mmproj_name=mmproj_name,
    hub_modules=HUB_MODULES,
)
"""Opens what a model sees with (see open_tower_weights)."""


def _in_tower(name: str) -> str:
    merger = _DEEPSTACK.match(name)
    if merger is not None:
        inner = _known(_DEEPSTACK.sub("merger.", name), _OF_TOWER)
        return inner.replace("projector.", f"projector.deepstack.{merger[1]}.", 1)
    moonvit = _MOONVIT.fullmatch(name)
    if moonvit is not None:
        number, module, kind = moonvit.groups()
        return f"layers.{number}.{_IN_MOONVIT.get(module, module)}{kind or ''}"
    merging = _MERGING.fullmatch(name)
    if merging is not None:
        return f"merging.{_IN_MERGING.get(merging[1], merging[1])}{merging[2] or ''}"
    if name == "patch_embed.pos_emb.weight":
        return "position_grid"
    layer = _LAYER.fullmatch(name)
    if layer is None:
        return _known(name, _OF_TOWER)
    number, module, kind = layer.groups()
    return f"layers.{number}.{_IN_LAYER.get(module, module)}{kind or ''}"


def _known(name: str, modules: dict[str, str]) -> str:
    match = _MODULE.fullmatch(name)
    return name if match is None else modules.get(match[1], match[1]) + (match[2] or "")
