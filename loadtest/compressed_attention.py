"""What a token takes at long contexts, where tokens see entries that stand for several of them.

    python -m loadtest.compressed_attention                     # some two minutes
    python -m loadtest.compressed_attention --longest 4096 --repeated 3

Layers with DeepSeek V4 Flash's heads and random weights, in bfloat16, on the CPU kernels: as they
are, and without an index, so that all entries are read. The cache is filled with random numbers
instead of a prompt's: chosen entries then lie far apart, which is the worst case. Steps of the two
alternate. Memory is that of the whole model.
"""

from __future__ import annotations

import sys

from msgspec.structs import replace

from loadtest.report import Document, Flags, Measurement, machine_line, markdown_table, say
from loadtest.report.table import sections
from loadtest.sparse_attention import BLOCK, CHUNK, Served, compared, contexts
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.kv_layout import blocks_needed
from penstock.model.prepared_model import WeightFiles
from penstock.prepare.describe import kv_bytes_per_token
from penstock.prepare.hub_config import read_config
from penstock.process.machine import usable_cores
from tests.worker.cpu_model import CPUModel

LAYERS = 4
FLASH = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    "vocab_size": 129280,
    "hidden_size": 4096,
    "num_hidden_layers": 43,
    "num_attention_heads": 64,
    "num_key_value_heads": 1,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "q_lora_rank": 1024,
    "o_groups": 8,
    "o_lora_rank": 1024,
    "sliding_window": 128,
    "index_n_heads": 64,
    "index_head_dim": 128,
    "index_topk": 512,
    "compress_ratios": [0, 0, *[4, 128] * 20, 4],
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "num_experts_per_tok": 6,
    "num_hash_layers": 0,
    "max_position_embeddings": 1048576,
}
SMALLER = {
    "vocab_size": 1024,
    "hidden_size": 1024,
    "num_hidden_layers": LAYERS,
    "compress_ratios": [4, 128] * (LAYERS // 2),
    "moe_intermediate_size": 64,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
}
"""What is smaller in the layers that are measured: all but attention."""
HEAD = """# Attention to entries that stand for several tokens

Milliseconds for a token in {layers} layers, by `python -m loadtest.compressed_attention`: DeepSeek
V4 Flash's {heads} heads of {head} numbers, which see {window} tokens, and entries that stand for 4
or 128 tokens in every other layer. Of the former an index of {index_heads} heads chooses {most}; or
all are read ("all"). bfloat16, one sequence, {threads:g} threads. Decodes are medians of {repeated}
steps; prompts are one step of {chunk} tokens. The cache holds random numbers, so that chosen
entries lie far apart.

Memory is what a sequence takes of the KV cache in all {whole} layers of Flash: {block:,} bytes for
{size} tokens, and {windows:.0f} MB for the last ones in {groups} groups, which forget the others.
What a token has in them and in entries is {token:,} bytes."""


def settings(**other: object) -> ModelConfig:
    return read_config(Fields(FLASH | other, "config.json"))


def measure(options: Flags) -> Document:
    config, threads = settings(**SMALLER), usable_cores()
    kinds = {"dense": _without_index(config), "sparse": config}
    served = {name: Served.of(each, options.longest, int(threads)) for name, each in kinds.items()}
    rows = []
    for context in contexts(options.longest):
        memory = held(context)["bytes"]
        found = compared(served, context, options.repeated)
        rows.append({"context": context, "memory": memory, **found})
        say(f"{context} tokens: {rows[-1]}")
    return {"figures": {"threads": threads, "repeated": options.repeated, **held(0), "rows": rows}}


def held(context: int) -> dict[str, int]:
    """Bytes that a sequence of so many tokens takes in all layers of Flash, and those of a block;
    how many groups forget, and the bytes of what they keep; the bytes of what a token has."""
    files = WeightFiles(format="safetensors", files=(), dtype="bfloat16")
    recipe = CPUModel(settings(), files, "bfloat16", positions=1 << 20).recipe()
    groups = recipe.kv_groups
    last = [group for group in groups if group.forgets]
    return {
        "bytes": blocks_needed(groups, context, BLOCK) * recipe.block_bytes,
        "block": recipe.block_bytes,
        "groups": len(last),
        "windows": blocks_needed(last, 1 << 20, BLOCK) * recipe.block_bytes,
        "token": kv_bytes_per_token(settings(), "bfloat16"),
    }


def _without_index(config: ModelConfig) -> ModelConfig:
    layers = []
    for layer in config.layers:
        spec = layer.attention.compressed
        if spec is None:
            raise ValueError("a layer's attention has no entries")
        attention = replace(layer.attention, compressed=replace(spec, index=None))
        layers.append(replace(layer, attention=attention))
    return replace(config, layers=tuple(layers))


def markdown(document: Document) -> str:
    figures = document["figures"]
    head = HEAD.format(
        layers=LAYERS,
        heads=FLASH["num_attention_heads"],
        head=FLASH["head_dim"],
        window=FLASH["sliding_window"],
        index_heads=FLASH["index_n_heads"],
        most=FLASH["index_topk"],
        threads=figures["threads"],
        repeated=figures["repeated"],
        chunk=CHUNK,
        whole=FLASH["num_hidden_layers"],
        block=figures["block"],
        size=BLOCK,
        windows=figures["windows"] / 1e6,
        groups=figures["groups"],
        token=figures["token"],
    )
    kinds = ("dense_decode", "sparse_decode", "dense_chunk", "sparse_chunk")
    rows = [
        [
            f"{row['context']:,}",
            f"{row['memory'] / 1e6:,.0f} MB",
            *(f"{row[kind]:.2f}" for kind in kinds[:2]),
            f"{row['dense_decode'] / row['sparse_decode']:.2f} ×",
            *(f"{row[kind]:.2f}" for kind in kinds[2:]),
            f"{row['dense_chunk'] / row['sparse_chunk']:.2f} ×",
        ]
        for row in figures["rows"]
    ]
    columns = ["tokens before", "memory", "decode, all", "chosen", "gain"]
    columns += ["prompt, all", "chosen", "gain"]
    return sections([head, markdown_table(columns, rows), machine_line(document)])


COMMAND = Measurement(
    "compressed_attention",
    __doc__,
    measure,
    markdown,
    {
        "--longest": (131072, "context, tokens"),
        "--repeated": (5, "decodes of each context"),
    },
)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
