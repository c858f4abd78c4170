"""Pooling models that tests make and run through the worker, without an engine core."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec
import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

from penstock.adapters import read_adapter
from penstock.config.model_settings import LoraSettings
from penstock.config.settings import EngineConfig, ModelSettings, SchedulerSettings, WorkerSettings
from penstock.prepare import load_manifest, prepare
from penstock.protocol.common import Pooling, TokenSampling, Vectors
from penstock.protocol.from_worker import AdapterReady, FromWorker, Result
from penstock.protocol.to_worker import NewSequence, Plan, SlotWork, ToWorker
from penstock.protocol.worker_resources import LoadAdapter
from penstock_engine.facts import EngineFacts
from penstock_worker.adapters.slot_adapters import SlotAdapters
from penstock_worker.loading.load import load
from penstock_worker.loading.loaded import Loaded
from testing.in_process import recode

VOCAB = 99
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 36,
    "intermediate_size": 50,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "max_position_embeddings": 80,
    "initializer_range": 0.4,
}
DEBERTA: dict[str, Any] = {
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_buckets": 16,
    "share_att_key": True,
    "norm_rel_ebd": "layer_norm",
    "position_biased_input": False,
    "type_vocab_size": 0,
}
"""What releases of DeBERTa's third version say, but for sizes."""


def save(folder: Path, kind: str, **config: Any) -> Any:
    """A random model of a transformers class, saved with a tokenizer of whole words; the model."""
    import transformers

    torch.manual_seed(7)
    family = kind
    ends = ("SequenceClassification", "TokenClassification", "CausalLM", "MaskedLM")
    for end in (*(f"For{name}" for name in ends), "Model"):
        family = family.removesuffix(end)
    sizes = dict(SIZES)
    if family == "DistilBert":
        names = {"hidden_size": "dim", "intermediate_size": "hidden_dim"}
        names |= {"num_hidden_layers": "n_layers", "num_attention_heads": "n_heads"}
        sizes = {names.get(name, name): value for name, value in sizes.items()}
    stated = getattr(transformers, f"{family}Config")(**{**sizes, **config})
    model = getattr(transformers, kind)(stated).eval()
    for parameter in model.parameters():  # Biases and norms are 0 and 1 when made.
        parameter.data += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    word_tokenizer(folder)
    return model


def word_tokenizer(folder: Path) -> None:
    words = {f"w{number}": number for number in range(VOCAB)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    (folder / "tokenizer.json").write_text(tokenizer.to_str())
    (folder / "tokenizer_config.json").write_text("{}")


def sentence_files(folder: Path, mode: str, *, normalize: bool, longest: int | None = None) -> None:
    """What sentence-transformers writes beside a model."""
    kinds = ["Transformer", "Pooling", *(["Normalize"] if normalize else [])]
    paths = ["", "1_Pooling", "2_Normalize"]
    modules = [
        {"idx": i, "name": str(i), "path": paths[i], "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    flags = {"word_embedding_dimension": 36, f"pooling_mode_{mode}": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(flags))
    if longest is not None:
        stated = json.dumps({"max_seq_length": longest})
        (folder / "sentence_bert_config.json").write_text(stated)


def dense_files(
    folder: Path, layers: list[tuple[int, int, bool, str]]
) -> list[dict[str, torch.Tensor]]:
    """Mean pooling, random Dense layers (inputs, outputs, bias, activation) and Normalize, as
    sentence-transformers writes them. Returns the layers' tensors."""
    sentence_files(folder, "mean_tokens", normalize=True)
    modules = json.loads((folder / "modules.json").read_text())
    tensors = []
    for number, (inputs, outputs, bias, activation) in enumerate(layers, 2):
        own = folder / f"{number}_Dense"
        own.mkdir()
        path = "torch.nn." if activation == "ReLU" else "torch.nn.modules.linear."
        stated = {"in_features": inputs, "out_features": outputs, "bias": bias}
        stated["activation_function"] = f"{path}{activation}"
        (own / "config.json").write_text(json.dumps(stated))
        found = {"linear.weight": 0.1 * torch.randn(outputs, inputs)}
        if bias:
            found["linear.bias"] = torch.randn(outputs)
        save_file(found, own / "model.safetensors")
        tensors.append(found)
        kind = {"path": own.name, "type": "sentence_transformers.models.Dense"}
        modules.insert(number, {"idx": number, "name": str(number), **kind})
    (folder / "modules.json").write_text(json.dumps(modules))
    return tensors


def splade_files(folder: Path, **settings: Any) -> None:
    """The files that sentence-transformers writes beside naver/splade-cocondenser-ensembledistil,
    but for other settings."""
    kinds = ("MLMTransformer", "SpladePooling")
    modules = [
        {
            "idx": number,
            "name": str(number),
            "path": "" if number == 0 else "1_SpladePooling",
            "type": f"sentence_transformers.sparse_encoder.models.{kind}",
        }
        for number, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_SpladePooling").mkdir()
    stated = {"pooling_strategy": "max", "activation_function": "relu"}
    stated |= {"word_embedding_dimension": None, **settings}
    (folder / "1_SpladePooling" / "config.json").write_text(json.dumps(stated))


def name_words(folder: Path, words: dict[str, int]) -> None:
    """Gives some of the tokenizer's words other names."""
    file = folder / "tokenizer.json"
    found = json.loads(file.read_text())
    for word, number in words.items():
        del found["model"]["vocab"][f"w{number}"]
        found["model"]["vocab"][word] = number
    file.write_text(json.dumps(found))


def facts_of(
    model: str,
    cache: Path,
    *,
    threads: int = 1,
    budget: int = 2048,
    sequences: int = 64,
    worker: dict[str, Any] | None = None,
    lora: dict[str, Any] | None = None,
    **settings: Any,
):
    """worker: its settings beside the threads.  lora: those of adapters.  settings: of the
    model."""
    folder = prepare(model, cache_dir=str(cache))
    config = EngineConfig(
        model=ModelSettings(model=model, **settings),
        worker=WorkerSettings(threads=threads, **worker or {}),
        lora=LoraSettings(**lora or {}),
        scheduler=SchedulerSettings(max_num_seqs=sequences, max_num_batched_tokens=budget),
    )
    return EngineFacts(
        config=config,
        model=load_manifest(folder),
        folder=str(folder),
        tokenizer=(folder / "tokenizer.json").read_bytes(),
        template=b"",
        boot="00",
        created=0,
    )


def load_pooling(model: str, cache: Path, **settings: Any) -> Loaded:
    return load(facts_of(model, cache, **settings).setup(1))


def _held(loaded: Loaded, folders: Sequence[Path | None]) -> list[str]:
    """Loads adapters. Returns the digest of each; empty for none."""
    answers, digests = SimpleQueue[Any](), {None: ""}
    for folder in folders:
        if folder not in digests:
            digests[folder], _ = read_adapter(folder)
            message = LoadAdapter(digests[folder], str(folder))
            loaded.runner.feature(SlotAdapters).load(message, answers.put)
            assert answers.get(timeout=60) == AdapterReady(digests[folder])
    return [digests[folder] for folder in folders]


def run(
    loaded: Loaded,
    inputs: list[list[int]],
    *asked: Pooling,
    chunk: int = 0,
    adapters: Sequence[Path | None] = (),
) -> list[Any]:
    """One array for each input, of what run_vectors gives."""
    found = run_vectors(loaded, inputs, *asked, chunk=chunk, adapters=adapters)
    return [np.frombuffer(each.data, dtype="<f4").reshape(each.shape) for each in found]


def run_vectors(
    loaded: Loaded,
    inputs: list[list[int]],
    *asked: Pooling,
    chunk: int = 0,
    adapters: Sequence[Path | None] = (),
) -> list[Vectors]:
    """Vectors of each input. asked: one for all, or one each.  chunk: tokens of a step, of each
    input; 0: all.  adapters: folders of one each; None for none."""
    runner, size = loaded.runner, loaded.setup.block_size
    runner.reset()
    digests = _held(loaded, adapters)
    wanted = list(asked) * len(inputs) if len(asked) == 1 else list(asked)
    admitted, free, groups = [], 0, len(loaded.ready.kv_groups)
    for slot, (tokens, pooling) in enumerate(zip(inputs, wanted, strict=True)):
        blocks = list(range(free, free + groups * -(-len(tokens) // size)))
        free += len(blocks)
        new = NewSequence(slot, tokens, len(tokens), 0, TokenSampling(0), blocks, None, pooling)
        if adapters:
            new = msgspec.structs.replace(new, adapter=digests[slot])
        admitted.append(new)
    done, step, found = [0] * len(inputs), 0, {}
    while len(found) < len(inputs):
        work = []
        for slot, tokens in enumerate(inputs):
            count = min(chunk or len(tokens), len(tokens) - done[slot])
            if count:
                work.append(SlotWork(slot, done[slot], count))
                done[slot] += count
        plan = recode(Plan(step + 1, step, [], admitted, work), ToWorker)
        admitted, step = [], step + 1
        result = recode(runner.execute(plan), FromWorker)
        assert isinstance(result, Result)
        for outcome in result.slots:
            assert outcome.error is None, outcome.error
            if outcome.vectors is not None:
                assert outcome.vectors.is_sound()
                found[outcome.slot] = outcome.vectors
    return [found[slot] for slot in range(len(inputs))]


def random_inputs(lengths: list[int], vocab: int = VOCAB, seed: int = 3) -> list[list[int]]:
    choose = random.Random(seed)
    return [[choose.randrange(5, vocab) for _ in range(length)] for length in lengths]


def cosine_distance(one: np.ndarray, other: np.ndarray) -> float:
    one, other = one.astype(np.float64).ravel(), other.astype(np.float64).ravel()
    return 1 - float(one @ other / np.sqrt((one @ one) * (other @ other)))
