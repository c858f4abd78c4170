"""DeepSeek-OCR 2 with few queries, for tiny pictures: how many there are isn't a setting of
transformers' class."""

from __future__ import annotations

from typing import Any

import msgspec
import torch

from penstock.model.config import ModelConfig
from penstock.model.document_spec import DocumentProjector

QUERIES = (4, 9)
"""Of a tile of 8 x 8 patches, and of a page of 12 x 12."""


def with_few_queries(config: ModelConfig) -> ModelConfig:
    """The config itself for other models."""
    vision = config.vision
    if vision is None or not isinstance(vision.projector, DocumentProjector):
        return config
    projector = msgspec.structs.replace(vision.projector, queries=QUERIES)
    found: ModelConfig = msgspec.structs.replace(
        config, vision=msgspec.structs.replace(vision, projector=projector)
    )
    return found


def set_documents(model: Any, *, fewer: bool) -> None:
    """Values for what starts as zeros. fewer: whether the model has fewer queries, of which a tile
    has the first table's and a page the second's."""
    if fewer:
        fewer_queries(model.model.vision_tower)
    for name, parameter in model.named_parameters():
        if any(each in name for each in ("rel_pos", "pos_embed", "view_separator", "newline")):
            parameter.normal_(0, 0.3)
        elif "neck.conv" in name or "proj.conv" in name or name.endswith("projection.weight"):
            parameter.normal_(0, 0.2)


def fewer_queries(tower: Any) -> None:
    size = tower.query_768_resolution.weight.shape[1]
    tower.query_768_resolution, tower.query_1024_resolution = (
        torch.nn.Embedding(count, size) for count in QUERIES
    )
    own = tower.query_768_resolution

    def choose(module: Any, given: tuple[Any, ...]) -> None:
        small = (given[0].shape[-1] // 16) ** 2 <= QUERIES[0]
        module.query_768_resolution = own if small else module.query_1024_resolution

    def put_back(module: Any, given: Any, found: Any) -> None:
        module.query_768_resolution = own

    tower.register_forward_pre_hook(choose)
    tower.register_forward_hook(put_back)
