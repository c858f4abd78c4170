"""How large everything is that is measured: on a GPU, and in a trial without one."""

from __future__ import annotations

from dataclasses import dataclass

from loadtest.gpu.shapes import MODELS, Mixture
from loadtest.peers.random_gguf import Shape
from penstock.model.config import ModelConfig

LLAMA_8B_GGUF = Shape("qwen3", 32, 4096, 32, 8, 128, 14_336)
QWEN3_30B = Mixture(48, 2048, 32, 4, 128, 768, 128, 8, 151_936)
QWEN3_30B_GGUF = Shape("qwen3moe", 8, 2048, 32, 4, 128, 768, experts=128, active=8)
"""Eight of its layers."""
CAPTURED, LAUNCHED = "default", "default, no graphs"


@dataclass(frozen=True)
class Mode:
    """A way in which the worker computes."""

    name: str
    batches: tuple[int, ...]  # of its decode steps
    batch_invariant: bool = False
    enforce_eager: bool = False
    prefill: bool = True
    profiled: tuple[int, ...] = ()  # batches whose kernels are timed by name
    each_context: bool = False
    """Whether its decode steps are measured at each of the extent's contexts, or at the first."""
    flash_attention_3: bool = True
    """False: a mode to compare with, measured only where that package is installed."""
    early_launches: bool = True
    """False: a mode to compare with, measured only where kernels are launched early."""
    quantization: str = "none"
    once: bool = False
    """Measured by parts that name it, and by no others."""


@dataclass(frozen=True)
class Extent:
    """The GPU's.  Sizes are of elements, tokens and sequences unless a name says bytes."""

    models: tuple[str, ...] = ("Llama-3.1-8B", "Qwen3-0.6B")
    copy_bytes: int = 4 << 30  # of the probe of the memory
    host_bytes: int = 1 << 30  # of copies to the host and back
    matrix: tuple[int, ...] = (4096, 8192, 16_384)  # sides, of the probe of products
    kernels: str = "Llama-3.1-8B"  # the model whose shapes the kernels get
    rows: tuple[int, ...] = (64, 8192)  # of the kernels that go row by row
    product_rows: tuple[int, ...] = (1, 64, 256, 4096)  # of bfloat16 products
    packed_rows: tuple[int, ...] = (1, 16, 64)  # of quantised products
    fp8_rows: tuple[int, ...] = (64, 4096)
    decode: tuple[tuple[int, int], ...] = (
        *((64, 8192), (1, 8192), (8, 2048), (256, 1024)),
        *((64, 1052), (256, 1052), (64, 1500)),
    )
    """(batch, context) of the attention kernels. The last ones are no multiple of a split."""
    chunks: tuple[tuple[int, int, int], ...] = ((1, 0, 8192), (8, 0, 1024), (1, 6144, 2048))
    """(sequences, before, new) of the attention kernels."""
    backends: tuple[str, ...] = ("CUDNN_ATTENTION", "FLASH_ATTENTION")
    """torch's own, of whole prompts."""
    experts: tuple[int, int, int, int] = (128, 8, 1536, 2048)
    """(experts, those of a row, outputs, inputs) of Qwen3-30B-A3B's first products."""
    expert_rows: tuple[int, ...] = (1, 64, 4096)
    sampled_rows: int = 64
    copied_blocks: int = 256
    repeats: int = 20
    context: int = 1024  # of decodes beside prompts, and of torch's own
    contexts: tuple[int, ...] = (1052, 1500)
    """Contexts of the decode steps. A context in use is rarely a multiple of attention's split."""
    decode_steps: int = 48
    warm_steps: int = 4
    prefills: tuple[tuple[int, int], ...] = ((1, 8192), (8, 1024))  # (sequences, length)
    step_tokens: int = 8192  # a step's budget
    modes: tuple[Mode, ...] = (
        Mode(CAPTURED, (256, 64, 8, 1), profiled=(256, 64, 1), each_context=True),
        Mode(LAUNCHED, (64, 1), enforce_eager=True, prefill=False),
        Mode(
            "batch-invariant",
            (256, 64, 8, 1),
            batch_invariant=True,
            profiled=(256, 64, 1),
            each_context=True,
        ),
        Mode("int4 weights", (64, 16, 1), quantization="int4", prefill=False, once=True),
        Mode("fp8 weights", (64, 1), quantization="fp8", prefill=False, once=True),
        Mode("default, our attention", (1,), flash_attention_3=False),
        Mode("default, no early launches", (8, 1), prefill=False, early_launches=False),
    )
    mixed: tuple[tuple[int, int], ...] = ((64, 448), (64, 192), (64, 64), (8, 56), (0, 512))
    """(decodes, tokens of a prompt's chunk) of mixed steps."""
    mixed_steps: int = 12  # that are timed of each, behind `warm_steps`
    mixed_modes: tuple[Mode, ...] = (Mode(CAPTURED, ()), Mode(LAUNCHED, (), enforce_eager=True))
    peer: tuple[int, ...] = (256, 64, 8, 1)  # batches of torch's own decode steps
    stored_blocks: int = 512  # of 16 tokens, that leave the device and come back
    behind_stored: int = 16  # tokens that are generated behind blocks that came back
    q4_k: Shape = LLAMA_8B_GGUF
    """Llama-3.1-8B's, with norms of queries and keys beside it."""
    mixture: Mixture = QWEN3_30B
    """Qwen3-30B-A3B's."""
    filed_layers: int = 12  # of it, where its weights are written to a file
    hosted: Shape = QWEN3_30B_GGUF
    """The same, of which experts lie in the host's memory."""
    requests: tuple[int, ...] = (256, 1024)  # at once, of the runs end to end
    served: int = 256  # sequences at a time, of these
    shortest: int = 100  # prompt and answer
    longest: int = 1024  # prompt and answer
    longest_of: tuple[int, ...] = (1024, 512)
    """The same, of each number of requests: what many make is what a full batch does."""
    small: tuple[str, ...] = ("tiny-llama", "tiny-qwen3")
    """Models whose tokens are held against the reference's."""
    asked: int = 12  # prompts of these
    short: int = 48  # their tokens at most, and the tokens of an answer
    works: tuple[str, ...] = (
        "tests/worker/cuda/test_queued_forward.py",
        "tests/worker/cuda/test_families_on_device.py",
        "tests/worker/cuda/test_experts_on_device.py",
        "tests/worker/cuda/test_fp8_experts.py",
        "tests/worker/cuda/test_recurrent_on_device.py",
        "tests/worker/cuda/test_adapters_on_device.py",
        "tests/worker/cuda/test_vision_on_device.py",
        "tests/worker/cuda/test_sounds_on_device.py",
        "tests/worker/cuda_sampler/test_device_sampler.py",
        "tests/worker/cuda_ops/test_quantised_models.py",
    )
    """Tests with a model of each mechanism."""
    features: tuple[str, ...] = ("tests/system/test_device_features.py",)
    """What a whole system does with few models, each in processes of its own."""
    alike: tuple[int, int, int] = (257, 4096, 4096)
    """(rows, outputs, inputs) of the product whose rows have the same bits in any company."""
    alike_rows: tuple[int, ...] = (
        *(1, 2, 3, 4, 8, 15, 16, 17, 32, 33, 64, 65, 100, 128, 200, 256),
        *(257, 512, 768, 1024, 2048, 3000, 4096),
    )
    """Numbers of rows whose products are held against one another."""
    promising: int = 64  # requests whose answers are held against one another, of a large model
    promising_tokens: int = 32  # of each
    promised: int = 192  # tokens of an answer across a worker's death
    tests: tuple[str, ...] = ("tests/kernels/triton", "tests/worker/cuda*", "tests/worker/device")
    test_arguments: tuple[str, ...] = ("-m", "not packaged_model")
    dry: bool = False

    def shape(self, model: str) -> ModelConfig:
        return MODELS[model]


GPU = Extent()
DRY = Extent(
    models=("tiny-llama", "tiny-qwen3"),
    copy_bytes=16 << 20,
    host_bytes=1 << 20,
    matrix=(256,),
    kernels="tiny-llama",
    rows=(4,),
    product_rows=(1, 4),
    packed_rows=(1,),
    fp8_rows=(2,),
    backends=("MATH",),
    experts=(4, 2, 64, 256),
    expert_rows=(3,),
    decode=((2, 40),),
    chunks=((1, 0, 20), (1, 16, 20)),
    sampled_rows=2,
    copied_blocks=4,
    repeats=1,
    context=9,
    contexts=(9, 20),
    decode_steps=2,
    warm_steps=1,
    prefills=((1, 9),),
    step_tokens=16,
    modes=(
        Mode(CAPTURED, (2, 1), profiled=(2,), each_context=True),
        Mode("batch-invariant", (1,), batch_invariant=True, prefill=False),
        Mode("int4 weights", (1,), quantization="int4", prefill=False, once=True),
        Mode("fp8 weights", (1,), quantization="fp8", prefill=False, once=True),
        Mode("default, no early launches", (1,), prefill=False, early_launches=False),
    ),
    mixed=((1, 6), (0, 7)),
    mixed_steps=2,
    peer=(2, 1),
    stored_blocks=3,
    behind_stored=2,
    q4_k=Shape("qwen3", 1, 256, 2, 1, 128, 256),
    mixture=Mixture(1, 128, 2, 1, 64, 128, 4, 2, 320),
    filed_layers=1,
    hosted=Shape("qwen3moe", 1, 256, 2, 1, 128, 256, experts=4, active=2),
    requests=(1, 2),
    served=2,
    shortest=2,
    longest=5,
    longest_of=(5, 4),
    small=("tiny-qwen3",),
    asked=2,
    short=3,
    works=("tests/kernels/triton/test_rounding.py",),
    features=("tests/kernels/triton/test_rounding.py",),
    alike=(5, 64, 128),
    alike_rows=(1, 2, 5),
    promising=2,
    promising_tokens=1,
    promised=5,
    tests=("tests/kernels/triton/test_rounding.py",),
    test_arguments=("--maxfail=3",),
    dry=True,
)
