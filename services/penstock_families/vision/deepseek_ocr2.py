"""DeepSeek-OCR 2, in its makers' format and in transformers': SAM's layers over a page and parts of
it, learned queries in a decoder's layers over what convolutions make of these, and DeepSeek's first
mixture of experts, which has no latents.

Source: DeepSeek-AI, "DeepSeek-OCR 2: visual causal flow", 2026.
"""

from __future__ import annotations

from typing import Any

from penstock.errors import UnsupportedModel
from penstock.families import bounds
from penstock.families import hub_reading as hub
from penstock.families.bounds import layer_count
from penstock.families.family import Family
from penstock.families.media_tokens import MediaTokens
from penstock.families.tower_names import IN_LLAMA, TowerNames, under
from penstock.families.vision.image_processor import ImageSettings, pixels_of
from penstock.families.vision.internvl import square
from penstock.families.vision.pictures import side_of
from penstock.families.vision.reading import (
    MAX_HEADS,
    MAX_PATCH,
    MAX_PIXELS,
    MAX_SIDE,
    MAX_WIDTH,
    TextHalf,
    VisionFamily,
    activation,
    bounded,
    heads,
    only_colours,
    patches_in_row,
)
from penstock.formats.fields import Fields
from penstock.forms.documents import DocumentImages
from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import ModelConfig
from penstock.model.document_spec import DocumentProjector, QueryLayersSpec
from penstock.model.layer_spec import ExpertsSpec, FeedForwardSpec, LayerSpec, NormSpec
from penstock.model.media_facts import KindFacts
from penstock.model.projector_form import QUARTER
from penstock.model.tower_spec import LearnedPositions, TowerSpec, VisionSpec, WindowSpec
from penstock_families.dots1 import DOTS1

OF_LATENTS = ("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
"""What the makers' files say of latents, which there are none of."""
QUERIES = (144, 256)
"""Queries for parts of 768 pixels, and for a page of 1024."""
NECK_NORM = NormSpec(kind="layer", eps=1e-6, bias=True)
SAM_DEFAULTS: dict[str, object] = {
    "hidden_size": 768,
    "output_channels": 256,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "window_size": 14,
    "global_attn_indexes": [2, 5, 8, 11],
    "downsample_channels": [512, 896],
}
QUERY_DEFAULTS: dict[str, object] = {
    "hidden_size": 4096,
    "intermediate_size": 22_016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}
TEXT_DEFAULTS: dict[str, object] = {
    "vocab_size": 102_400,
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "moe_intermediate_size": 1407,
}
"""Defaults of transformers' classes of configurations."""
WIDTHS = "width"
"""What the makers' section about the tower has, and transformers' hasn't."""
IN_SAM = ("global_attn_indexes", "downsample_channels")
BUILT_IN: dict[str, object] = {
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
}
METHODS = ("greedy", "group_limited_greedy")


def _decoder(fields: Fields) -> ModelConfig:
    fields = fields.without("head_dim")  # of latents, in the makers' files
    hub.activation(fields, "silu")
    hub.only(fields, mlp_bias=False, use_mla=False, norm_topk_prob=False, scoring_func="softmax")
    fields.ignore("use_mla", "norm_topk_prob", "scoring_func", *OF_LATENTS)
    sizes = hub.sizes(fields)
    experts, bias = _experts(fields), fields.flag("attention_bias", False)
    attention = AttentionSpec(qkv_bias=bias, output_bias=bias)
    return ModelConfig(
        architecture=DOTS1.name,
        **sizes,
        norm=NormSpec(eps=fields.number("rms_norm_eps", 1e-6)),
        ropes=(hub.rope(fields, sizes["head_dim"]),),
        layers=hub.shared(
            LayerSpec(
                attention=attention,
                feed_forward=FeedForwardSpec(experts=experts if sparse else None),
            )
            for sparse in hub.sparse_behind(fields, sizes["num_layers"])
        ),
    )


def _experts(fields: Fields) -> ExpertsSpec:
    method, inner = fields.text("topk_method", "greedy"), fields.integer("moe_intermediate_size")
    if method not in METHODS:
        raise fields.wrong("topk_method", " or ".join(METHODS))
    grouped = method != "greedy"
    if not grouped:
        fields.ignore("n_group", "topk_group")
    experts = ExpertsSpec(
        **hub.expert_counts(fields, "n_routed_experts", "num_local_experts"),
        inner=inner,
        normalised=False,
        scale=fields.positive("routed_scaling_factor", 1.0),
        shared_inner=inner * fields.integer("n_shared_experts"),
        groups=fields.integer("n_group", 1) if grouped else 1,
        active_groups=fields.integer("topk_group", 1) if grouped else 1,
        group_best=1,
    )
    bounds.check_expert_groups(fields, experts)
    return experts


def sam_tower(section: Fields) -> TowerSpec:
    hub.only(section, use_abs_pos=True, use_rel_pos=True)
    section.ignore("use_abs_pos", "use_rel_pos")
    only_colours(section, "num_channels")
    hidden = bounded(section, "hidden_size", MAX_WIDTH)
    count = layer_count(section, "num_hidden_layers")
    patch = square(section, "patch_size", MAX_PATCH, 16)
    side = patches_in_row(section, square(section, "image_size", MAX_PIXELS, 1024), patch)
    whole = tuple(section.listed("global_attn_indexes", int))
    if not all(0 <= number < count for number in whole):
        raise section.wrong("global_attn_indexes", f"layers of 0 to {count - 1}")
    ratio = section.number("mlp_ratio", 4.0)
    inner = section.integer("mlp_dim", int(hidden * ratio) if 0 < ratio < MAX_WIDTH else 0)
    if not 1 <= inner <= MAX_WIDTH:
        raise section.wrong("mlp_dim", f"1 to {MAX_WIDTH}")
    return TowerSpec(
        hidden_size=hidden,
        intermediate_size=inner,
        num_layers=count,
        num_heads=heads(section, "num_attention_heads", hidden),
        patch=patch,
        norm=NormSpec(kind="layer", eps=section.number("layer_norm_eps", 1e-6), bias=True),
        activation=activation(section, "gelu"),
        patch_bias=True,
        qkv_bias=section.flag("qkv_bias", True),
        positions=LearnedPositions(side=side, stretched=True, cubic=True),
        windows=WindowSpec(side=bounded(section, "window_size", MAX_SIDE), whole=whole, grid=side),
    )


def _query_layers(section: Fields) -> QueryLayersSpec:
    hidden = bounded(section, "hidden_size", MAX_WIDTH)
    count = layer_count(section, "num_hidden_layers")
    hub.only(section, use_sliding_window=False)
    section.ignore("use_sliding_window", "sliding_window", "max_window_layers")
    section.ignore("max_position_embeddings")  # a tile's sequence is far shorter
    hub.no_windows(section, count)
    queries = heads(section, "num_attention_heads", hidden)
    kept = bounded(section, "num_key_value_heads", MAX_HEADS, queries)
    size = hidden // queries
    if queries % kept:
        raise section.wrong("num_key_value_heads", f"a divisor of {queries} attention heads")
    if section.integer("head_dim", size) != size:
        raise section.wrong("head_dim", f"hidden_size / num_attention_heads ({size})")
    rope = hub.rope(section, size)
    if rope.scaling is not None:
        raise UnsupportedModel(f"{section.where}: stretched positions of queries are not served")
    return QueryLayersSpec(
        hidden_size=hidden,
        intermediate_size=bounded(section, "intermediate_size", MAX_WIDTH),
        num_layers=count,
        num_heads=queries,
        num_kv_heads=kept,
        norm=NormSpec(eps=section.number("rms_norm_eps", 1e-6)),
        theta=rope.theta,
        activation=activation(section, "silu"),
    )


def _of_makers(fields: Fields, section: Fields) -> Fields:
    """The section as transformers has it. The makers' code has most of the layers over queries
    built in."""
    hub.only(fields.section("projector_config"), projector_type="linear")
    fields.ignore("projector_config")
    widths = section.section(WIDTHS)
    tower = sam_of_makers(section, widths).values
    layers = BUILT_IN | {"hidden_size": widths.section("qwen2-0-5b").integer("dim", 896)}
    return Fields({"sam_config": tower, "encoder_config": layers}, section.where)


def sam_of_makers(section: Fields, widths: Fields) -> Fields:
    """SAM's settings as transformers has them. widths: a part of the section."""
    sam = widths.section("sam_vit_b")
    section.ignore(WIDTHS, "model_name", "mlp_ratio")
    tower = {
        "hidden_size": sam.integer("width", 768),
        "num_hidden_layers": sam.integer("layers", 12),
        "num_attention_heads": sam.integer("heads", 12),
        "image_size": section.integer("image_size", 1024),
        **{key: sam.values[key] for key in IN_SAM if key in sam},
    }
    return Fields(tower, section.where).completed(**SAM_DEFAULTS)


def channels_of(sam: Fields, outputs: int) -> tuple[int, int]:
    """Outputs of the convolutions but for the last, which has so many."""
    channels = sam.listed("downsample_channels", int)
    if len(channels) != 2 or not 1 <= channels[0] <= MAX_WIDTH:
        raise sam.wrong("downsample_channels", f"two numbers of 1 to {MAX_WIDTH}")
    if channels[1] != outputs:
        raise sam.wrong("downsample_channels", f"ones that end with {outputs}")
    return bounded(sam, "output_channels", MAX_WIDTH), channels[0]


def _encoder(section: Fields) -> Fields:
    """A null means as many heads of keys as of queries."""
    return section.section("encoder_config").with_absent({"num_key_value_heads": 32})


def _read(fields: Fields, section: Fields, text: ModelConfig) -> VisionSpec:
    if WIDTHS in section:
        section = _of_makers(fields, section)
    sam = section.section("sam_config").completed(**SAM_DEFAULTS)
    layers = _query_layers(_encoder(section).completed(**QUERY_DEFAULTS))
    projector = DocumentProjector(
        channels=channels_of(sam, layers.hidden_size),
        norm=NECK_NORM,
        layers=layers,
        queries=QUERIES,
    )
    return VisionSpec(tower=sam_tower(sam), projector=projector)


WITHOUT_LATENTS = Family(DOTS1.name, (), "DeepSeek-OCR", _decoder, hub_names=DOTS1.hub_names)


def pictures(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """How many tiles there may be isn't the file's to say, as in transformers'
    DeepseekOcr2Processor."""
    settings.ignore("crop_to_patches", "min_patches", "max_patches")
    return document(settings, config, tokens, settings.integer("tile_size", 768))


def document(
    settings: ImageSettings, config: Fields, tokens: MediaTokens, tile: int, **own: Any
) -> KindFacts:
    """tile: side, pixels.  own: further fields of DocumentImages."""
    patch = side_of(config.section("vision_config").section("sam_config"), "patch_size", 16)
    page, wide = settings.side("size")
    if not 1 <= patch <= 1024 or page != wide:
        raise settings.wrong("size", "a square")
    rows = [(-(-side // (patch * QUARTER))) ** 2 for side in (tile, page)]
    for key, count in zip(("tile_size", "size"), rows, strict=True):
        if not own and count not in QUERIES:
            raise settings.wrong(key, f"pictures of {' or '.join(map(str, QUERIES))} embeddings")
    colours = settings.listed("background_color", int) if "background_color" in settings else [127]
    if len(colours) not in (1, 3) or not all(0 <= colour <= 255 for colour in colours):
        raise settings.wrong("background_color", "three numbers of 0 to 255")
    red, green, blue = colours * (3 // len(colours))
    image = DocumentImages(
        pixels=pixels_of(settings),
        patch=patch,
        tile=tile,
        page=page,
        tile_rows=rows[0],
        page_rows=rows[1],
        background=(red, green, blue),
        **own,
    )
    named = "image_token_id" in config
    return KindFacts.marked(
        image, tokens.named("image_token_id") if named else tokens.called("<image>")
    )


def of_makers(values: dict[str, Any], whole: dict[str, Any], where: str) -> dict[str, Any]:
    """What the makers' processor_config.json says, as transformers' image processor has it; empty
    for another processor's."""
    if values or whole.get("processor_class") != "DeepseekVLV2Processor":
        return values
    said: dict[str, Any] = {key: whole[key] for key in ("image_mean", "image_std") if key in whole}
    normalised = {"do_normalize": whole.get("normalize", True)}
    return {"image_processor_type": "DeepseekOcr2ImageProcessor", **normalised, **said}


_IN_SAM: TowerNames = {
    "layer_norm1": "norm1",
    "layer_norm2": "norm2",
    "attn": "",
    "attn.proj": "out_proj",
    "attn.rel_pos_h": "distances.rows",
    "attn.rel_pos_w": "distances.columns",
    "mlp.lin1": "up_proj",
    "mlp.lin2": "down_proj",
}
NECK: TowerNames = {
    "0": "0",
    "1": "norm0",
    "2": "1",
    "3": "norm1",
    "conv1": "0",
    "layer_norm1": "norm0",
    "conv2": "1",
    "layer_norm2": "norm1",
}
SAM: TowerNames = {
    "patch_embed.proj": "sam_embedding",
    "patch_embed.projection": "sam_embedding",
    "pos_embed": "position_grid",
    "net_2": "projector.smaller.0",
    "net_3": "projector.smaller.1",
    **under("neck", NECK, "projector.neck"),
    **under("proj", {"conv1": "0", "conv2": "1"}, "projector.smaller"),
    **under("blocks.*", _IN_SAM, "layers.*"),
    **under("layers.*", _IN_SAM, "layers.*"),
}
"""SAM's tower and what follows it, in the makers' files and in transformers'."""
BEHIND: TowerNames = {
    "projector.layers": "projector.out",
    "multi_modal_projector": "projector.out",
    "view_seperator": "projector.end",
    "view_separator": "projector.end",
}
_QUERIES: TowerNames = {
    "query_768": "queries.0",
    "query_1024": "queries.1",
    "query_768_resolution": "queries.0",
    "query_1024_resolution": "queries.1",
    **under("layers.*", IN_LLAMA, "layers.*"),
}
NAMES = BEHIND | {
    theirs: ours
    for begin in ("qwen2_model", "qwen2_model.model.model", "vision_tower")
    for theirs, ours in (
        under(begin, _QUERIES, "projector")
        | under(f"{begin}.vision_encoder", _QUERIES, "projector")
    ).items()
}
NAMES = NAMES | under("sam_model", SAM) | under("vision_tower.sam_encoder", SAM)

DEEPSEEK_OCR2 = VisionFamily(
    "deepseek_ocr2",
    ("DeepseekOcr2ForConditionalGeneration", "DeepseekOCR2ForCausalLM"),
    "DeepSeek-OCR 2",
    {"deepseek_ocr2_text": TextHalf(WITHOUT_LATENTS, TEXT_DEFAULTS)},
    _read,
    usual="deepseek_ocr2_text",
    flat=lambda fields: fields.section("language_config"),
    harmless=frozenset({"language_config"}),
    pictures=pictures,
    makers=of_makers,
    hub_names=NAMES,
)
