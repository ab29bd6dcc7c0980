#!/usr/bin/env python3
"""Writes a Hugging Face folder of llama, qwen2, qwen3 or qwen3_vl as a GGUF file. Needs numpy only.

    make_gguf.py goldens/official/llama-rope3/model out.gguf --type f32
    make_gguf.py MODEL out.gguf --type q4_1 --embed-type q8_0

It applies the transforms of llama.cpp's convert_hf_to_gguf.py: q and k rows of llama files are interleaved within each
head, llama3 rope scaling becomes the divisors rope_freqs.weight, a tied output head is left out, norms and biases are
F32. A float type must hold every value exactly, else the file is not written. Quantised blocks are valid and simply
rounded (no search for better scales as in llama.cpp), which is what tests of loading need.
Format: github.com/ggml-org/ggml, docs/gguf.md.
"""
import argparse
import json
import struct
import sys
from pathlib import Path

import numpy as np

ALIGNMENT = 32
TYPE_NUMBER = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q8_0": 8, "q6_k": 14, "bf16": 30}
BLOCK = {"f32": 1, "f16": 1, "bf16": 1, "q4_0": 32, "q4_1": 32, "q8_0": 32, "q6_k": 256}
ARCHITECTURE = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "qwen3_vl": "qwen3vl", "qwen3_vl_text": "qwen3vl"}
LAYER_NAMES = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}


# --- Hugging Face side ---------------------------------------------------------------------------------------------

def read_safetensors(path):
    """{name: float32 array}; BF16 and F16 are widened exactly."""
    raw = Path(path).read_bytes()
    (n,) = struct.unpack_from("<Q", raw)
    out = {}
    for name, t in json.loads(raw[8:8 + n]).items():
        if name == "__metadata__" or ".visual." in name:
            continue
        begin, end = t["data_offsets"]
        data = raw[8 + n + begin:8 + n + end]
        if t["dtype"] == "BF16":
            values = (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
        elif t["dtype"] in ("F16", "F32"):
            values = np.frombuffer(data, {"F16": "<f2", "F32": "<f4"}[t["dtype"]]).astype(np.float32)
        else:
            sys.exit(f"{path}: tensor {name}: type {t['dtype']} is not supported; wanted F32, F16 or BF16")
        out[name.replace("model.language_model.", "model.")] = values.reshape(t["shape"])
    return out


def read_folder(folder):
    folder = Path(folder)
    outer = json.loads((folder / "config.json").read_text())
    config = {**outer, **outer.get("text_config", {})}
    config["tie_word_embeddings"] = outer.get("tie_word_embeddings", config.get("tie_word_embeddings", False))
    tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors.update(read_safetensors(file))
    return config, tensors


# --- The converter's transforms ------------------------------------------------------------------------------------

def permute(rows, heads):
    """Row half * d/2 + j of a head becomes row 2*j + half (LlamaModel.permute)."""
    d = rows.shape[0] // heads
    return rows.reshape(heads, 2, d // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def llama3_divisors(theta, dim, scaling):
    """LlamaModel.generate_extra_tensors, in float32 as there."""
    factor, low, high = (scaling[k] for k in ("factor", "low_freq_factor", "high_freq_factor"))
    context = scaling["original_max_position_embeddings"]
    freqs = np.float32(1) / (np.float32(theta) ** (np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)))
    out = []
    for freq in freqs:
        wavelen = np.float32(2 * np.pi) / freq
        if wavelen < context / high:
            out.append(1.0)
        elif wavelen > context / low:
            out.append(factor)
        else:
            smooth = (np.float32(context) / wavelen - np.float32(low)) / np.float32(high - low)
            out.append(1 / ((1 - smooth) / np.float32(factor) + smooth))
    return np.array(out, dtype=np.float32)


def gguf_tensors(config, tensors):
    """[(GGUF name, float32 array)] in file order."""
    heads, kv_heads = config["num_attention_heads"], config.get("num_key_value_heads") or config["num_attention_heads"]
    llama = config["model_type"] == "llama"
    out = []
    for name, values in tensors.items():
        if name == "lm_head.weight":
            if not config["tie_word_embeddings"]:
                out.append(("output.weight", values))
        elif name in ("model.embed_tokens.weight", "model.norm.weight"):
            out.append(({"model.embed_tokens.weight": "token_embd.weight"}.get(name, "output_norm.weight"), values))
        else:
            _, _, layer, rest = name.split(".", 3)
            stem, _, kind = rest.rpartition(".")
            if llama and stem in ("self_attn.q_proj", "self_attn.k_proj"):
                values = permute(values, heads if stem.endswith("q_proj") else kv_heads)
            out.append((f"blk.{layer}.{LAYER_NAMES[stem]}.{kind}", values))
    return out


# --- Element types -------------------------------------------------------------------------------------------------

def encode_float(values, type_name, tensor):
    if type_name == "f32":
        return values.astype("<f4").tobytes()
    if type_name == "bf16":
        bits = values.astype("<f4").view(np.uint32)
        exact, data = not np.any(bits & 0xFFFF), (bits >> 16).astype("<u2").tobytes()
    else:
        half = values.astype("<f2")
        exact, data = np.array_equal(half.astype(np.float32), values), half.tobytes()
    if not exact:
        sys.exit(f"tensor {tensor}: has values that {type_name} can't hold exactly; use --type f32")
    return data


def encode_blocks(values, type_name):
    """Blocks of ggml (engine/formats/quant.h), rounded to nearest."""
    x = values.astype(np.float32).reshape(-1, BLOCK[type_name])
    with np.errstate(divide="ignore", invalid="ignore"):
        if type_name == "q8_0":
            d = (np.abs(x).max(axis=1) / 127).astype("<f2")
            codes = np.nan_to_num(np.rint(x / d.astype(np.float32)[:, None])).clip(-127, 127).astype(np.int8)
            return np.concatenate([d[:, None].view(np.uint8), codes.view(np.uint8)], axis=1).tobytes()
        if type_name == "q4_0":
            extreme = x[np.arange(len(x)), np.abs(x).argmax(axis=1)]
            d = (extreme / -8).astype("<f2")
            codes = np.nan_to_num(np.rint(x / d.astype(np.float32)[:, None]) + 8, nan=8).clip(0, 15).astype(np.uint8)
            head = [d[:, None].view(np.uint8)]
        elif type_name == "q4_1":
            low = x.min(axis=1)
            d, m = ((x.max(axis=1) - low) / 15).astype("<f2"), low.astype("<f2")
            codes = np.rint((x - m.astype(np.float32)[:, None]) / d.astype(np.float32)[:, None])
            codes = np.nan_to_num(codes).clip(0, 15).astype(np.uint8)
            head = [d[:, None].view(np.uint8), m[:, None].view(np.uint8)]
        else:
            return encode_q6_k(x)
    return np.concatenate([*head, codes[:, :16] | codes[:, 16:] << 4], axis=1).tobytes()


def encode_q6_k(x):
    groups = x.reshape(-1, 16, 16)
    extreme = np.take_along_axis(groups, np.abs(groups).argmax(axis=2)[..., None], 2)[..., 0]
    wanted = extreme / -32  # scale of each group of 16
    d = (np.abs(wanted).max(axis=1) / 127).astype("<f2")
    scales = np.nan_to_num(np.rint(wanted / d.astype(np.float32)[:, None])).clip(-127, 127).astype(np.int8)
    step = (d.astype(np.float32)[:, None] * scales)[..., None]
    codes = (np.nan_to_num(np.rint(groups / step)).clip(-32, 31) + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    # [half, quarter, j]: low nibbles of quarters 0 | 2 and 1 | 3 share a byte; the top two bits of all four share one.
    low = (codes & 15)[:, :, :2] | (codes & 15)[:, :, 2:] << 4
    high = (codes >> 4)[:, :, 0] | (codes >> 4)[:, :, 1] << 2 | (codes >> 4)[:, :, 2] << 4 | (codes >> 4)[:, :, 3] << 6
    n = len(x)
    return np.concatenate([low.reshape(n, 128), high.reshape(n, 64), scales.view(np.uint8), d[:, None].view(np.uint8)],
                          axis=1).tobytes()


# --- File ----------------------------------------------------------------------------------------------------------

def text(s):
    raw = s.encode()
    return struct.pack("<Q", len(raw)) + raw


def pair(key, value):
    if isinstance(value, str):
        return text(key) + struct.pack("<I", 8) + text(value)
    if isinstance(value, float):
        return text(key) + struct.pack("<If", 6, value)
    if isinstance(value, list):
        return text(key) + struct.pack("<IIQ", 9, 5, len(value)) + struct.pack(f"<{len(value)}i", *value)
    return text(key) + struct.pack("<II", 4, value)


def metadata(config):
    arch = ARCHITECTURE[config["model_type"]]
    rope = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    theta = rope.get("rope_theta", config.get("rope_theta", 10000.0))
    out = {
        "general.architecture": arch, "general.type": "model",
        f"{arch}.block_count": config["num_hidden_layers"], f"{arch}.context_length": config["max_position_embeddings"],
        f"{arch}.embedding_length": config["hidden_size"], f"{arch}.feed_forward_length": config["intermediate_size"],
        f"{arch}.attention.head_count": heads,
        f"{arch}.attention.head_count_kv": config.get("num_key_value_heads") or heads,
        f"{arch}.attention.key_length": head_dim, f"{arch}.attention.value_length": head_dim,
        f"{arch}.attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        f"{arch}.rope.freq_base": float(theta),
    }
    if arch == "llama":
        out["llama.rope.dimension_count"] = head_dim
        out["llama.vocab_size"] = config["vocab_size"]
    if rope.get("mrope_section"):
        out[f"{arch}.rope.dimension_sections"] = [*rope["mrope_section"], 0]
    if config.get("bos_token_id") is not None:
        out["tokenizer.ggml.bos_token_id"] = config["bos_token_id"]
    eos = config.get("eos_token_id")
    if eos is not None:
        out["tokenizer.ggml.eos_token_id"] = eos[0] if isinstance(eos, list) else eos
    divisors = None
    if rope.get("rope_type", rope.get("type")) == "llama3":
        divisors = llama3_divisors(theta, head_dim, rope)
    return out, divisors


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", help="folder with config.json and *.safetensors")
    parser.add_argument("out", help="GGUF file to write")
    parser.add_argument("--type", choices=TYPE_NUMBER, default="f32", help="type of the matrices")
    parser.add_argument("--embed-type", choices=TYPE_NUMBER, help="type of embedding and output head")
    args = parser.parse_args()

    config, tensors = read_folder(args.model)
    pairs, divisors = metadata(config)
    entries = gguf_tensors(config, tensors)
    if divisors is not None:
        entries.insert(0, ("rope_freqs.weight", divisors))

    infos, data = b"", bytearray()
    for name, values in entries:
        kind = "f32" if values.ndim == 1 else args.type
        if name in ("token_embd.weight", "output.weight") and args.embed_type:
            kind = args.embed_type
        if values.shape[-1] % BLOCK[kind]:
            print(f"{name}: {values.shape[-1]} columns are no multiple of {BLOCK[kind]}, written as f32",
                  file=sys.stderr)
            kind = "f32"
        raw = encode_float(values, kind, name) if BLOCK[kind] == 1 else encode_blocks(values, kind)
        infos += text(name) + struct.pack("<I", values.ndim) + struct.pack(f"<{values.ndim}Q", *values.shape[::-1])
        infos += struct.pack("<IQ", TYPE_NUMBER[kind], len(data))
        data += raw + bytes(-len(raw) % ALIGNMENT)

    head = b"GGUF" + struct.pack("<IQQ", 3, len(entries), len(pairs))
    head += b"".join(pair(k, v) for k, v in pairs.items()) + infos
    Path(args.out).write_bytes(head + bytes(-len(head) % ALIGNMENT) + data)


if __name__ == "__main__":
    main()
