"""GGUF files with the shapes of published models and random weights, to measure speed with.

    python bench/make_shapes.py qwen3.5-0.8b q4_k_m OUT.gguf
    python bench/make_shapes.py qwen3.6-35b-a3b-8-layers q4_k_m OUT.gguf
    python bench/against_llama_cpp.py OUT.gguf --llama-bench PATH

What weights are does not change what a pass costs, so no download is needed. Both engines read the
same file. Types follow llama.cpp's mixtures: q4_k_m has Q6_K for the LM head and for half of the
value and down projections. Blocks of random bits come out of one pool, repeated: quick to write.
"""

import argparse
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter, TokenType
from numpy.typing import NDArray

Q4_0, Q4_K = GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q4_K
Q6_K, F32 = GGMLQuantizationType.Q6_K, GGMLQuantizationType.F32
POOL_BLOCKS = 2**16


@dataclass(frozen=True)
class Shape:
    """A hybrid of gated delta nets and gated attention, dense or with experts, and an MTP layer."""

    hidden: int
    num_layers: int
    inner: int
    num_heads: int
    num_kv_heads: int
    key_heads: int
    value_heads: int
    vocab_size: int = 248_320
    head_dim: int = 256
    delta_dim: int = 128
    num_experts: int = 0
    num_chosen: int = 0
    is_tied: bool = False

    @property
    def architecture(self) -> str:
        """GGUF's name."""
        return "qwen35moe" if self.num_experts else "qwen35"


SHAPES = {
    "qwen3.5-0.8b": Shape(1024, 24, 3584, 8, 2, 16, 16, is_tied=True),
    "qwen3.6-35b-a3b-8-layers": Shape(2048, 8, 512, 16, 2, 16, 32, num_experts=256, num_chosen=8),
}


class RandomBlocks:
    """Rows of quantised blocks: finite small weights, no two neighbours alike."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self._pools: dict[GGMLQuantizationType, NDArray[np.uint8]] = {}

    def take(self, kind: GGMLQuantizationType, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """Return the bytes of a tensor, (…, bytes of a row)."""
        size, num_bytes = GGML_QUANT_SIZES[kind]
        num_blocks = int(np.prod(shape)) // size
        pool = self._pools.setdefault(kind, self._make_pool(kind, num_bytes))
        blocks = np.resize(pool, (num_blocks, num_bytes))
        return blocks.reshape(*shape[:-1], shape[-1] // size * num_bytes)

    def _make_pool(self, kind: GGMLQuantizationType, num_bytes: int) -> NDArray[np.uint8]:
        pool = self._rng.integers(0, 256, (POOL_BLOCKS, num_bytes), dtype=np.uint8)
        for place, scale in {Q4_0: {0: 4e-3}, Q4_K: {0: 1e-4, 2: 7.5e-4}, Q6_K: {208: 2e-5}}[
            kind
        ].items():
            pool[:, place : place + 2] = np.array([scale], dtype="<f2").view(np.uint8)
        return pool


def matrices(shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name every quantised tensor of the model, with its shape."""
    hidden, dim = shape.hidden, shape.head_dim
    values = shape.value_heads * shape.delta_dim
    yield "token_embd", (shape.vocab_size, hidden)
    if not shape.is_tied:
        yield "output", (shape.vocab_size, hidden)
    for layer in range(shape.num_layers + 1):  # the last one is the MTP layer's
        prefix = f"blk.{layer}."
        if layer == shape.num_layers or (layer + 1) % 4 == 0:
            yield f"{prefix}attn_q", (2 * shape.num_heads * dim, hidden)
            yield f"{prefix}attn_k", (shape.num_kv_heads * dim, hidden)
            yield f"{prefix}attn_v", (shape.num_kv_heads * dim, hidden)
            yield f"{prefix}attn_output", (hidden, shape.num_heads * dim)
        else:
            yield f"{prefix}attn_qkv", (2 * shape.key_heads * shape.delta_dim + values, hidden)
            yield f"{prefix}attn_gate", (values, hidden)
            yield f"{prefix}ssm_out", (hidden, values)
        suffix, experts = ("_shexp", (shape.num_experts,)) if shape.num_experts else ("", ())
        for stem, rows, columns in (
            ("ffn_gate", shape.inner, hidden),
            ("ffn_up", shape.inner, hidden),
            ("ffn_down", hidden, shape.inner),
        ):
            yield f"{prefix}{stem}{suffix}", (rows, columns)
            if experts:
                yield f"{prefix}{stem}_exps", (*experts, rows, columns)
    yield f"blk.{shape.num_layers}.nextn.eh_proj", (hidden, 2 * hidden)


def vectors(shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name every float32 tensor of the model, with its shape."""
    hidden = shape.hidden
    yield "output_norm.weight", (hidden,)
    for layer in range(shape.num_layers + 1):
        prefix = f"blk.{layer}."
        yield f"{prefix}attn_norm.weight", (hidden,)
        yield f"{prefix}post_attention_norm.weight", (hidden,)
        if layer == shape.num_layers or (layer + 1) % 4 == 0:
            yield f"{prefix}attn_q_norm.weight", (shape.head_dim,)
            yield f"{prefix}attn_k_norm.weight", (shape.head_dim,)
        else:
            channels = (2 * shape.key_heads + shape.value_heads) * shape.delta_dim
            yield f"{prefix}ssm_conv1d.weight", (channels, 4)
            yield f"{prefix}ssm_dt.bias", (shape.value_heads,)
            yield f"{prefix}ssm_a", (shape.value_heads,)
            yield f"{prefix}ssm_norm.weight", (shape.delta_dim,)
            yield f"{prefix}ssm_alpha.weight", (shape.value_heads, hidden)
            yield f"{prefix}ssm_beta.weight", (shape.value_heads, hidden)
        if shape.num_experts:
            yield f"{prefix}ffn_gate_inp.weight", (shape.num_experts, hidden)
            yield f"{prefix}ffn_gate_inp_shexp.weight", (hidden,)
    for part in ("enorm", "hnorm", "shared_head_norm"):
        yield f"blk.{shape.num_layers}.nextn.{part}.weight", (hidden,)


def choose_type(name: str, mixture: str) -> GGMLQuantizationType:
    """Return the type llama.cpp's mixtures give a matrix."""
    if name in ("output", "token_embd"):
        return Q6_K
    if mixture == "q4_0":
        return Q4_0
    is_dear = "ffn_down" in name or name.endswith("attn_v")
    return Q6_K if is_dear and int(name.split(".")[1]) % 2 else Q4_K


def write_settings(writer: GGUFWriter, shape: Shape) -> None:
    """Write sizes and constants under the keys that llama.cpp reads."""
    writer.add_block_count(shape.num_layers + 1)
    writer.add_context_length(4096)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.num_heads)
    writer.add_head_count_kv(shape.num_kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_freq_base(1e7)
    writer.add_rope_dimension_count(shape.head_dim // 4)
    writer.add_rope_dimension_sections([11, 11, 10, 0])
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_ssm_conv_kernel(4)
    writer.add_ssm_state_size(shape.delta_dim)
    writer.add_ssm_inner_size(shape.value_heads * shape.delta_dim)
    writer.add_ssm_time_step_rank(shape.value_heads)
    writer.add_ssm_group_count(shape.key_heads)
    prefix = shape.architecture
    writer.add_uint32(f"{prefix}.full_attention_interval", 4)
    writer.add_uint32(f"{prefix}.nextn_predict_layers", 1)
    if shape.num_experts:
        writer.add_expert_count(shape.num_experts)
        writer.add_expert_used_count(shape.num_chosen)
        writer.add_expert_feed_forward_length(shape.inner)
        writer.add_expert_shared_feed_forward_length(shape.inner)


def write_tokenizer(writer: GGUFWriter, vocab_size: int) -> None:
    """Write a byte-level vocabulary of the right size; what its tokens are called is no matter."""
    letters = [chr(code) for code in (*range(33, 127), *range(161, 173), *range(174, 256))]
    letters += [chr(256 + i) for i in range(256 - len(letters))]
    pairs = list(itertools.islice(itertools.product(letters, repeat=3), vocab_size - 257))
    merges = [f"{a} {b}" for a, b in itertools.islice(itertools.product(letters, repeat=2), 1)]
    tokens = [*letters, *("".join(three) for three in pairs), "<|im_end|>"]
    tokens[256] = merges[0].replace(" ", "")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    kinds = [TokenType.NORMAL] * (vocab_size - 1) + [TokenType.CONTROL]
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_eos_token_id(vocab_size - 1)


def main() -> None:
    """Write one file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("mixture", choices=("q4_0", "q4_k_m"))
    parser.add_argument("output", type=Path)
    args = parser.parse_args()
    shape, blocks = SHAPES[args.shape], RandomBlocks()
    rng = np.random.default_rng(1)
    writer = GGUFWriter(args.output, shape.architecture, use_temp_file=False)
    write_settings(writer, shape)
    write_tokenizer(writer, shape.vocab_size)
    named = [
        (f"{name}.weight", size, choose_type(name, args.mixture)) for name, size in matrices(shape)
    ]
    named += [(name, size, F32) for name, size in vectors(shape)]
    for name, size, kind in named:
        quant_size, quant_bytes = GGML_QUANT_SIZES[kind]
        num_bytes = int(np.prod(size)) // quant_size * quant_bytes
        raw = (*size[:-1], size[-1] // quant_size * quant_bytes)
        is_float = kind == F32
        writer.add_tensor_info(
            name,
            size if is_float else raw,
            np.dtype(np.float32 if is_float else np.uint8),
            num_bytes,
            raw_dtype=kind,
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, size, kind in named:
        if kind != F32:
            writer.write_tensor_data(blocks.take(kind, size))
            continue
        values = rng.standard_normal(size, dtype=np.float32) * np.float32(0.1)
        if name.endswith(("norm.weight", "ssm_norm.weight")):
            values += 1
        writer.write_tensor_data(-np.exp(values) if name.endswith("ssm_a") else values)
    writer.close()


if __name__ == "__main__":
    main()
