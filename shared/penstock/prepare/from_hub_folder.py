"""A folder in the hub's format (config.json, tokenizer.json, *.safetensors) as a Checkpoint."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec

from penstock.config.settings import ModelImpl
from penstock.errors import ModelNotFound, UnsupportedModel
from penstock.families.eagle3 import is_eagle3, read_eagle3
from penstock.families.gemma4_assistant import is_assistant, read_assistant
from penstock.families.qwen3_asr import lifted
from penstock.formats.fields import Fields
from penstock.formats.float_types import FLOAT_DTYPES
from penstock.formats.small_file import read_json
from penstock.formats.weight_files import find_safetensors
from penstock.model.config import EncoderConfig, HeadConfig, ModelConfig, TransformersConfig
from penstock.model.media_facts import MediaFacts
from penstock.model.pooling_config import PoolingConfig, TextPadding
from penstock.model.prepared_model import GenerationDefaults, WeightFiles
from penstock.prepare.by_transformers import is_for_transformers, read_for_transformers
from penstock.prepare.chat_templates import template_of_folder, with_bos
from penstock.prepare.checkpoint import (
    Checkpoint,
    check_config,
    check_token_ids,
    head_checkpoint,
    odd_values_refused,
    stretched,
    suppressed,
)
from penstock.prepare.checkpoint_size import (
    HeldTensors,
    check_shards,
    has_own_head,
    refuse_more_than_is_held,
)
from penstock.prepare.hub_config import read_config, towers_of
from penstock.prepare.hub_encoder_config import is_encoder, read_encoder_config
from penstock.prepare.hub_late import read_late
from penstock.prepare.hub_m3 import with_m3
from penstock.prepare.hub_pooling import read_pooling
from penstock.prepare.hub_tokenizer import HubTokenizer, tokenizer_of_folder
from penstock.prepare.inputs import (
    CONFIG,
    GENERATION_CONFIG,
    MAX_JSON_BYTES,
    MODELOPT_FILE,
    PREPROCESSOR,
    PROCESSOR,
    TEMPLATE_JSON,
    TOKENIZER_CONFIG,
)
from penstock.prepare.media import read_media
from penstock.prepare.overrides import overridden
from penstock.prepare.quantised import read_quantisation
from penstock.prepare.rerankers import read_reranker
from penstock.prepare.transcription import read_transcription
from penstock.process import logs
from penstock.request.generation_config import stated_sampling

log = logs.get(__name__)

ADAPTER_CONFIG = "adapter_config.json"


def read_hub_folder(
    path: Path,
    model_impl: ModelImpl = "auto",
    *,
    language_model_only: bool = False,
    overrides: str = "",
) -> Checkpoint:
    """language_model_only: the vision tower is left out.  overrides: of config.json's settings, see
    penstock.prepare.overrides.

    Raises ModelNotFound if files are missing, UnsupportedModel if what they hold isn't
    served."""
    if not (path / CONFIG).is_file():
        if (path / ADAPTER_CONFIG).is_file():
            raise _adapter(path)
        raise ModelNotFound(
            f"{path} holds no {CONFIG}, so it isn't a folder in the hub's format"
            + ("; give one of its .gguf files itself" if any(path.glob("*.gguf")) else "")
        )
    stated = lifted(overridden(_read_json(path / CONFIG), overrides))
    if is_eagle3(stated) or is_assistant(stated):
        files = find_safetensors(path)
        held = check_shards(path, files)
        return head_checkpoint(read_head(stated), _weight_files(stated, files, held))
    config = _config(stated, model_impl, language_model_only=language_model_only)
    weights = find_safetensors(path)
    held = check_shards(path, weights)
    refuse_more_than_is_held(config, held, stated.where)
    if isinstance(config, ModelConfig) and config.tie_word_embeddings and has_own_head(weights):
        log.info("the head differs from the embedding, and is used", config=stated.where)
        config = msgspec.structs.replace(config, tie_word_embeddings=False)
    tokenizer_config = _read_json(path / TOKENIZER_CONFIG)
    tokenizer = tokenizer_of_folder(path, tokenizer_config, config.vocab_size)
    reranker = None
    if not isinstance(config, EncoderConfig):
        reranker = read_reranker(path, stated, tokenizer.json, config.hidden_size)
    pooling = reranker or read_late(path, stated, config, tokenizer)
    if pooling is None:
        pooling = _padded(read_pooling(path, stated, config), config, tokenizer, path)
        pooling = with_m3(path, pooling, config, tokenizer, tokenizer_config)
    if pooling is not None and isinstance(config, ModelConfig):
        config = _pooled(config, pooling)
    begins = any(tower.begins_with_bos for tower in towers_of(stated))
    template = template_of_folder(path, tokenizer_config, _read_json(path / TEMPLATE_JSON))
    own = _read_json(path / GENERATION_CONFIG)
    generation = msgspec.structs.replace(
        _generation(stated, own, tokenizer),
        suppress_tokens=suppressed(own, "suppress_tokens", config),
    )
    check_token_ids(generation, config, tokenizer.highest_id, str(path))
    return Checkpoint(
        config=config,
        generation=generation,
        weights=_weight_files(stated, weights, held),
        tokenizer_json=tokenizer.json,
        chat_template=with_bos(template) if begins else template,
        add_bos=tokenizer.adds_bos or begins,
        pooling=pooling,
        media=_media(path, stated, config, tokenizer.json),
    )


def _pooled(config: ModelConfig, pooling: PoolingConfig) -> ModelConfig:
    """Returns the model without what vectors aren't made of: sounds, and pictures too where the
    inputs are texts or pairs of texts, or a text's tokens have vectors of their own."""
    chats = pooling.template is not None and pooling.template.system
    if pooling.late is not None or (pooling.labels and not chats):
        config = msgspec.structs.replace(config, vision=None)
    return msgspec.structs.replace(config, audio=None)


def _padded(
    pooling: PoolingConfig | None,
    config: ModelConfig | EncoderConfig,
    tokenizer: HubTokenizer,
    path: Path,
) -> PoolingConfig | None:
    """Adds the padding of texts to the pooling, if the model needs texts of one length."""
    space = config.space if isinstance(config, EncoderConfig) else None
    if pooling is None or space is None or not space.padded:
        return pooling
    if tokenizer.pad_id is None:
        raise UnsupportedModel(
            f"{path / TOKENIZER_CONFIG} names no pad_token, with which the model's texts are filled"
            f" up to {config.max_position} tokens"
        )
    padding = TextPadding(
        token=tokenizer.pad_id, length=config.max_position, left=tokenizer.pads_left
    )
    return msgspec.structs.replace(pooling, padding=padding)


def _media(
    path: Path, stated: Fields, config: ModelConfig | EncoderConfig, tokenizer_json: bytes
) -> MediaFacts | None:
    """None where no tower is part of the model that is described, or nothing says how media are
    prepared. Raises UnsupportedModel for an encoder-decoder model then: it can't do without."""
    if not config.takes_media:
        if config.encoder_rows:
            raise UnsupportedModel(
                f"{path} holds an encoder-decoder model, which isn't served as a pooling model"
            )
        return None
    media = read_media(path, stated, tokenizer_json, config.audio)
    if media is None:
        if config.encoder_rows:
            raise UnsupportedModel(
                f"{path} holds no {PREPROCESSOR}, nor a {PROCESSOR} with a feature_extractor: an "
                "encoder-decoder model isn't served unless one says how sounds are prepared"
            )
        return None
    if isinstance(config, EncoderConfig):
        return msgspec.structs.replace(media, alone=True)
    transcription = read_transcription(path, stated, tokenizer_json, media)
    return msgspec.structs.replace(media, transcription=transcription)


def _config(
    stated: Fields, model_impl: ModelImpl, *, language_model_only: bool
) -> ModelConfig | TransformersConfig | EncoderConfig:
    if is_for_transformers(stated, model_impl):
        return read_for_transformers(stated)
    return (
        read_encoder_config(stated, language_model_only=language_model_only)
        if is_encoder(stated)
        else read_config(stated, language_model_only=language_model_only)
    )


def _adapter(path: Path) -> UnsupportedModel:
    """An adapter's folder holds the difference to another model, and no model."""
    base = _read_json(path / ADAPTER_CONFIG).values.get("base_model_name_or_path")
    of = f" of {base}" if isinstance(base, str) and base else ""
    return UnsupportedModel(
        f"{path} holds a LoRA adapter{of}, and no model: serve that model with --enable-lora "
        f"--lora-modules NAME={path}"
    )


def _read_json(path: Path) -> Fields:
    """The settings in a file; none if there is no such file."""
    try:
        values = read_json(path, MAX_JSON_BYTES)
    except FileNotFoundError:
        return Fields({}, str(path))
    if not isinstance(values, dict):
        raise UnsupportedModel(f"{path} is not a JSON object")
    return Fields(values, str(path))


def _generation(config: Fields, stated: Fields, tokenizer: HubTokenizer) -> GenerationDefaults:
    """EOS ids are those of the tokenizer, generation_config.json and config.json, in this order:
    the first is the one that chat templates call eos_token."""
    ends = [] if tokenizer.eos_id is None else [tokenizer.eos_id]
    ends += _token_ids(stated, "eos_token_id") + _token_ids(config, "eos_token_id")
    return GenerationDefaults(
        eos_token_ids=tuple(dict.fromkeys(ends)),
        bos_token_id=tokenizer.bos_id,
        **stated_sampling(stated),
    )


def _token_ids(fields: Fields, key: str) -> list[int]:
    if isinstance(fields.values.get(key), list):
        return fields.listed(key, int)
    return [fields.integer(key)] if key in fields else []


def tower_of(stated: Fields) -> str:
    """WeightFiles.tower of a model's config.json."""
    return next((each.name for each in towers_of(stated)), "")


def _weight_files(stated: Fields, files: tuple[Path, ...], held: HeldTensors) -> WeightFiles:
    quantised = read_quantisation(stated, _read_json(files[0].parent / MODELOPT_FILE))
    sizes = held.first_types
    if quantised is None:
        dtype = _dtype(sizes, files[0])
    elif is_encoder(stated):
        raise UnsupportedModel(
            f"{stated.where}: encoders quantised by {quantised.method} are not served; "
            f"unquantised ones are ({', '.join(FLOAT_DTYPES.values())})"
        )
    else:
        floats = Counter({kind: size for kind, size in sizes.items() if kind in FLOAT_DTYPES})
        if floats:
            plain = FLOAT_DTYPES[floats.most_common(1)[0][0]]
            quantised = msgspec.structs.replace(quantised, plain_dtype=plain)
        dtype = quantised.name
    return WeightFiles(
        format="safetensors",
        files=tuple(str(file) for file in files),
        dtype=dtype,
        quantised=quantised,
        size=held.size,
        numbers=held.numbers,
        tower=tower_of(stated),
    )


def _dtype(sizes: Counter[str], shard: Path) -> str:
    """The type that most bytes have."""
    kind = sizes.most_common(1)[0][0] if sizes else "none"
    if kind not in FLOAT_DTYPES:
        raise UnsupportedModel(
            f"{shard}: weights of type {kind} are not served; {', '.join(FLOAT_DTYPES)} are"
        )
    return FLOAT_DTYPES[kind]


def read_head(stated: Fields) -> HeadConfig:
    """Raises UnsupportedModel for a head that isn't served."""
    with odd_values_refused(stated.where):
        config = read_assistant(stated) if is_assistant(stated) else read_eagle3(stated)
    check_config(config, stated.where)
    return stretched(config)
