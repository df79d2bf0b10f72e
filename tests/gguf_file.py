"""A tiny Llama model as a GGUF file, and as a wheel that holds one."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from tokenizers.pre_tokenizers import ByteLevel

VOCABULARY, DIM, LAYERS = 288, 32, 2


def write_gguf(path: Path, *, kind: str = "Q4_1", **changes: Any) -> dict[str, np.ndarray]:
    """Write a model of random weights; return what its tensors hold once dequantised.

    Args:
        path: the file.
        kind: of its matrices.
        changes: metadata ``llama.<key>``.
    """
    writer = gguf.GGUFWriter(path, "llama")
    sizes = {"context_length": 64, "embedding_length": DIM, "block_count": LAYERS, "feed_forward_length": DIM}
    sizes |= {"attention.head_count": 2, "attention.head_count_kv": 2, "rope.dimension_count": DIM // 2}
    for key, value in {**sizes, "vocab_size": VOCABULARY, **changes}.items():
        writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_string("general.license", "mit")
    letters = sorted(ByteLevel.alphabet())
    tokens = ["<|end|>", "<|user|>", *letters, "th", *(f"<{number}>" for number in range(VOCABULARY - 259))]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, *[1] * 257, *[3] * (VOCABULARY - 259)])
    writer.add_token_merges(["t h"])
    writer.add_eos_token_id(0)
    writer.add_bos_token_id(0)
    writer.add_chat_template("{% for m in messages %}<|user|>{{ m['content'] }}<|end|>{% endfor %}")
    draws = np.random.default_rng(0)
    shapes = {"token_embd": (VOCABULARY, DIM), "output_norm": (DIM,)}
    for layer in range(LAYERS):
        names = {"attn_q": 2, "attn_k": 2, "attn_v": 2, "attn_output": 2, "ffn_gate": 2, "ffn_up": 2, "ffn_down": 2}
        names |= {"attn_norm": 1, "ffn_norm": 1}
        shapes |= {f"blk.{layer}.{name}": (DIM,) * dimensions for name, dimensions in names.items()}
    kept = {}
    for name, shape in shapes.items():
        values = draws.normal(size=shape).astype(np.float32)
        if len(shape) == 1 or kind == "F32":
            writer.add_tensor(f"{name}.weight", values)
            kept[name] = values
        else:
            packed = gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind])
            writer.add_tensor(f"{name}.weight", packed, raw_dtype=gguf.GGMLQuantizationType[kind])
            kept[name] = gguf.quants.dequantize(packed, gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return kept


def write_wheel(folder: Path, name: str, members: dict[str, bytes]) -> Path:
    """Write the wheel ``name==1`` that holds ``<name>/<member>``."""
    path, info = folder / f"{name}-1-py3-none-any.whl", f"{name}-1.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, content in members.items():
            archive.writestr(f"{name}/{member}", content)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
