"""Models that bring a head of several layers, for a measurement of what its drafts gain.

    python -m loadtest.speculation.drafting_model trained FOLDER  # a tiny model that tells stories
    python -m loadtest.speculation.drafting_model fitted FOLDER   # 0.15 B, with random weights

Both are MiMo: Qwen 2 with layers that draft. Of the tiny one, model and head learn together
(DeepSeek-AI, "DeepSeek-V3 technical report", 2024, section 2.2). The weights of the large one are
random, but that it mostly counts on; its head is fitted to what it says, by least squares. The
random layers' share is set so that it counts on in some 70 % of its steps: nothing that is much
smaller than the model could foretell the rest.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import Qwen2Config, Qwen2ForCausalLM
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer, Qwen2RMSNorm

from loadtest.speculation.requests import WORDS, chat
from testing.trained.learning import learn

LAYERS = 3
"""Layers of the head."""
SPECIAL = ("<pad>", "<s>", "</s>", "<|user|>", "<|assistant|>")
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


class DraftLayer(nn.Module):
    """A layer of the head, in front of which a product joins hidden state and embedding."""

    def __init__(self, config: Qwen2Config) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.rms_norm_eps
        self.token_layernorm = Qwen2RMSNorm(width, eps)
        self.hidden_layernorm = Qwen2RMSNorm(width, eps)
        self.input_proj = nn.Linear(2 * width, width, bias=False)
        self.final_layernorm = Qwen2RMSNorm(width, eps)
        self.layer = Qwen2DecoderLayer(config, 0)

    def forward(self, embedded: Tensor, hidden: Tensor, turned: tuple[Tensor, Tensor]) -> Tensor:
        """Maps [batch, rows, hidden] of each to the same. turned: of the rows' positions."""
        pair = self.hidden_layernorm(hidden), self.token_layernorm(embedded)
        residual = self.input_proj(torch.cat(pair, -1))
        rows = hidden.shape[1]
        mask = torch.full((1, 1, rows, rows), float("-inf")).triu(1)
        made = self.layer(residual, attention_mask=mask, position_embeddings=turned)
        found: Tensor = self.final_layernorm(made[0] if isinstance(made, tuple) else made)
        return found


class DraftingModel(nn.Module):
    """A model and its head."""

    def __init__(self, config: Qwen2Config) -> None:
        super().__init__()
        self.model = Qwen2ForCausalLM(config)
        self.layers = nn.ModuleList(DraftLayer(config) for _ in range(LAYERS))

    def losses(self, tokens: Tensor) -> list[Tensor]:
        """The model's, and each layer's. tokens: [batch, rows] int64."""
        inner, rows = self.model.model, tokens.shape[1] - 1
        hidden = inner(tokens[:, :-1]).last_hidden_state
        found = [_loss(self.model.lm_head(hidden), tokens[:, 1:])]
        for ahead, layer in enumerate(self.layers, 2):
            rows -= 1
            turned = inner.rotary_emb(hidden, torch.arange(rows)[None])
            embedded = inner.embed_tokens(tokens[:, ahead - 1 : -1])
            hidden = layer(embedded, hidden[:, :rows], turned)
            found.append(_loss(self.model.lm_head(hidden), tokens[:, ahead:]))
        return found

    def save(self, folder: Path, tokens: Tokenizer) -> None:
        """Writes the model's folder, in the format of MiMo's."""
        self.model.bfloat16().save_pretrained(folder)
        path = folder / "config.json"
        said = json.loads(path.read_text())
        said |= {
            "architectures": ["MiMoForCausalLM"],
            "model_type": "mimo",
            "num_nextn_predict_layers": LAYERS,
        }
        path.write_text(json.dumps(said, indent=1))
        tensors = {
            f"model.mtp_layers.{number}.{name.removeprefix('layer.')}": each.bfloat16().contiguous()
            for number, layer in enumerate(self.layers)
            for name, each in layer.state_dict().items()
        }
        save_file(tensors, folder / "model-head.safetensors")
        index = {
            name: file.name
            for file in sorted(folder.glob("*.safetensors"))
            for name in _names(file)
        }
        whole = {"metadata": {}, "weight_map": index}
        (folder / "model.safetensors.index.json").write_text(json.dumps(whole))
        tokens.save(str(folder / "tokenizer.json"))
        stated = {"eos_token": "</s>", "bos_token": "<s>", "chat_template": TEMPLATE}
        (folder / "tokenizer_config.json").write_text(json.dumps(stated))


def _loss(logits: Tensor, tokens: Tensor) -> Tensor:
    return cross_entropy(logits.flatten(0, 1), tokens.flatten())


def _names(file: Path) -> Sequence[str]:
    from safetensors import safe_open

    with safe_open(file, "pt") as opened:
        return list(opened.keys())


def config_of(ids: dict[str, int], **sizes: int) -> Qwen2Config:
    return Qwen2Config(
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        bos_token_id=ids["<s>"],
        eos_token_id=ids["</s>"],
        pad_token_id=ids["<pad>"],
        attn_implementation="eager",
        **sizes,
    )


# A tiny model that tells stories.

BATCH, CONTEXT = 8, 96
OPENINGS = ("Once upon a time there was", "Long ago there lived", "Far away there stood")
DID = ("walked to", "looked for", "dreamt of", "carried home", "painted", "forgot")
ENDINGS = ("and nobody ever knew why.", "and all were glad.", "but nothing came of it.")


def story(draws: random.Random) -> str:
    """Sentences of which the words are drawn: half of what is said can be foretold."""
    said = [f"{draws.choice(OPENINGS)} a {draws.choice(WORDS)} near the {draws.choice(WORDS)}."]
    for _ in range(draws.randrange(6, 12)):
        one, other = draws.sample(WORDS, 2)
        said.append(
            f"On day {draws.randrange(1, 99)} the {one} {draws.choice(DID)} the {other},"
            f" {draws.choice(ENDINGS)}"
        )
    return " ".join(said)


def conversation(draws: random.Random) -> str:
    asked = chat(draws)["messages"][0]["content"]
    return f"<|user|>{asked}<|assistant|>{story(draws)}</s>"


def story_tokens(vocabulary: int) -> Tokenizer:
    draws = random.Random(1)
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[AddedToken(text, special=True, normalized=False) for text in SPECIAL],
        show_progress=False,
    )
    made.train_from_iterator([conversation(draws) for _ in range(400)], trainer)
    return made


def trained(steps: int) -> tuple[DraftingModel, Tokenizer]:
    """Learns from stories that are never the same."""
    torch.manual_seed(0)
    tokens, draws = story_tokens(384), random.Random(2)
    config = config_of(
        tokens.get_vocab(),
        vocab_size=tokens.get_vocab_size(),
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=3,
        num_key_value_heads=1,
    )
    both = DraftingModel(config).train()
    rows: list[int] = []

    def loss() -> Tensor:
        while len(rows) < BATCH * CONTEXT:
            rows.extend(tokens.encode(conversation(draws)).ids)
        batch = torch.tensor(rows[: BATCH * CONTEXT]).view(BATCH, CONTEXT)
        del rows[: BATCH * CONTEXT]
        own, *further = both.losses(batch)
        return own + sum(further, torch.zeros(())) / len(further)

    learn("stories", list(both.parameters()), loss, steps, 4e-3)
    return both.eval(), tokens


# A large one with random weights, and a head that is fitted to it.

SHARE = 0.94
"""What is kept of the outputs of the random layers, which are 24: with 0.5 the model always counts
on, with 1.0 in 65 % of its steps."""
WANTED = 0.7
"""Share of its tokens that are the id behind the last one."""


def circle(ids: int, width: int) -> tuple[Tensor, Tensor]:
    """Embeddings of all ids, [ids, width], and the matrix that rows are multiplied with to become
    those of the ids before: a row's product with `embeddings @ step` is largest at the next id."""
    turns = 1 + torch.randperm(ids // 2 - 1)[: width // 2]
    angles = 2 * torch.pi * turns / ids
    each = torch.arange(ids)[:, None] * angles
    cos, sin = angles.cos().diag(), angles.sin().diag()
    step = torch.cat((torch.cat((cos, -sin), 1), torch.cat((sin, cos), 1)))
    return torch.cat((each.cos(), each.sin()), 1), step


@torch.no_grad()
def fitted(layers: int) -> tuple[DraftingModel, Tokenizer]:
    torch.manual_seed(0)
    tokens = story_tokens(384)
    vocabulary, width = 4096, 768
    config = config_of(
        tokens.get_vocab(),
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=2048,
        num_hidden_layers=layers,
        num_attention_heads=12,
        num_key_value_heads=4,
    )
    both = DraftingModel(config).eval()
    hub, (embeddings, step) = both.model, circle(vocabulary, width)
    for name, each in both.named_parameters():
        if each.dim() > 1:
            each.copy_(torch.randn(each.shape) / each.shape[-1] ** 0.5)
        if name.endswith(("o_proj.weight", "down_proj.weight")) and name.startswith("layers"):
            each.mul_(1e-3)
    hub.model.embed_tokens.weight.copy_(embeddings)
    hub.lm_head.weight.copy_(embeddings @ step)
    for name, each in hub.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            each.mul_(SHARE)
    counts = _counting(hub, _likely(vocabulary, 192))
    print(f"it counts on in {counts:.2f} of its steps", file=sys.stderr)
    _fit(both, _likely(vocabulary, 1600))
    return both, tokens


def _likely(ids: int, count: int) -> Tensor:
    """What such a model might say, as a few sequences, [sequences, count]: it counts on, mostly."""
    shape = 8, count // 8
    steps = torch.where(torch.rand(shape) < WANTED, 1, torch.randint(ids, shape))
    return steps.cumsum(1) % ids


def _counting(hub: Qwen2ForCausalLM, said: Tensor) -> float:
    """How often the model says the id behind the last one's."""
    found = hub(said).logits.argmax(-1)
    return float(((found - said) % hub.config.vocab_size == 1).float().mean())


def _fit(both: DraftingModel, said: Tensor) -> None:
    """Fits what joins in front of each layer: its rows are to be what the model's head reads one
    token on."""
    inner = both.model.model
    true = inner(said).last_hidden_state
    embedded, hidden = inner.embed_tokens(said), true
    for ahead, layer in enumerate(both.layers, 1):
        assert isinstance(layer, DraftLayer)
        rows = said.shape[1] - ahead
        hidden = hidden[:, :rows]
        tokens, wanted = embedded[:, ahead:], true[:, ahead:]
        pair = layer.hidden_layernorm(hidden), layer.token_layernorm(tokens)
        read = torch.cat(pair, -1).flatten(0, 1)
        ridge = 0.1 * len(read) * torch.eye(read.shape[1])
        weights = torch.linalg.solve(read.T @ read + ridge, read.T @ wanted.flatten(0, 1))
        layer.input_proj.weight.copy_(weights.T)
        turned = inner.rotary_emb(hidden, torch.arange(rows)[None])
        hidden = layer(tokens, hidden, turned)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("trained", "fitted"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=250, help="of learning")
    parser.add_argument("--layers", type=int, default=24, help="of the model that is fitted to")
    flags = parser.parse_args(arguments)
    made: Any = trained(flags.steps) if flags.kind == "trained" else fitted(flags.layers)
    model, tokens = made
    model.save(flags.folder, tokens)
    return 0


if __name__ == "__main__":
    if "trained" in sys.argv:
        torch.set_num_threads(1)  # Its matrices are so small that more threads mostly wait.
    sys.exit(main())
