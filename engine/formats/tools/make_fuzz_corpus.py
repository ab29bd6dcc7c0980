#!/usr/bin/env python3
"""Writes the seeds of engine/formats/fuzz_corpus: the smallest models that load: the fuzzer starts behind every check.

    make_fuzz_corpus.py engine/formats/fuzz_corpus
"""
import json
import struct
import sys
from pathlib import Path

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN, VOCAB = 32, 2, 1, 16, 32, 8
F32, Q4_0, Q4_1, Q8_0 = 0, 2, 3, 8
BLOCK_BYTES = {F32: 128, Q4_0: 18, Q4_1: 20, Q8_0: 34}  # per 32 elements


def text(s):
    return struct.pack("<Q", len(s)) + s.encode()


def pair(key, kind, raw):
    return text(key) + struct.pack("<I", kind) + raw


def u32(key, v):
    return pair(key, 4, struct.pack("<I", v))


def f32(key, v):
    return pair(key, 6, struct.pack("<f", v))


def string(key, v):
    return pair(key, 8, text(v))


def strings(key, values):
    return pair(key, 9, struct.pack("<IQ", 8, len(values)) + b"".join(text(v) for v in values))


def gguf(arch, matrix_type, biases=False, norms=False, rope_freqs=None, tied=True, vocabulary=False):
    pairs = [string("general.architecture", arch), u32(f"{arch}.block_count", 1), u32(f"{arch}.context_length", 64),
             u32(f"{arch}.embedding_length", HIDDEN), u32(f"{arch}.feed_forward_length", FFN),
             u32(f"{arch}.attention.head_count", HEADS), u32(f"{arch}.attention.head_count_kv", KV_HEADS),
             u32(f"{arch}.attention.key_length", HEAD_DIM), f32(f"{arch}.attention.layer_norm_rms_epsilon", 1e-5),
             f32(f"{arch}.rope.freq_base", 500000.0)]
    if arch == "qwen3vl":
        pairs.append(pair(f"{arch}.rope.dimension_sections", 9, struct.pack("<IQ4i", 5, 4, 3, 3, 2, 0)))
    if vocabulary:
        pairs.append(strings("tokenizer.ggml.tokens", [f"t{i}" for i in range(VOCAB)]))
        pairs.append(pair("tokenizer.ggml.token_type", 9, struct.pack(f"<IQ{VOCAB}i", 5, VOCAB, *[3] * VOCAB)))
        pairs += [u32("tokenizer.ggml.bos_token_id", 1), u32("tokenizer.ggml.eos_token_id", 2)]
        pairs.append(pair("tokenizer.ggml.add_bos_token", 7, b"\1"))
        pairs.append(pair("nested", 9, struct.pack("<IQIQ", 9, 1, 0, 2) + b"ab"))
    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    tensors = [("token_embd.weight", (HIDDEN, VOCAB), matrix_type), ("output_norm.weight", (HIDDEN,), F32)]
    if not tied:
        tensors.append(("output.weight", (HIDDEN, VOCAB), matrix_type))
    if rope_freqs:
        tensors.append(("rope_freqs.weight", (HEAD_DIM // 2,), F32))
    for name, shape in (("attn_q", (HIDDEN, q)), ("attn_k", (HIDDEN, kv)), ("attn_v", (HIDDEN, kv)),
                        ("attn_output", (q, HIDDEN)), ("ffn_gate", (HIDDEN, FFN)), ("ffn_up", (HIDDEN, FFN)),
                        ("ffn_down", (FFN, HIDDEN))):
        tensors.append((f"blk.0.{name}.weight", shape, matrix_type))
        if biases and name in ("attn_q", "attn_k", "attn_v"):
            tensors.append((f"blk.0.{name}.bias", shape[1:], F32))
    head_norms = (("attn_q_norm", HEAD_DIM), ("attn_k_norm", HEAD_DIM)) if norms else ()
    for name, width in (("attn_norm", HIDDEN), ("ffn_norm", HIDDEN), *head_norms):
        tensors.append((f"blk.0.{name}.weight", (width,), F32))

    infos, data = b"", b""
    for name, shape, kind in tensors:
        elements = shape[0] * (shape[1] if len(shape) > 1 else 1)
        infos += text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
        infos += struct.pack("<IQ", kind, len(data))
        raw = bytes(elements * BLOCK_BYTES[kind] // 32)
        if name == "rope_freqs.weight":
            raw = struct.pack(f"<{len(rope_freqs)}f", *rope_freqs)
        data += raw + bytes(-len(raw) % 32)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs)) + b"".join(pairs) + infos
    return head + bytes(-len(head) % 32) + data


def main():
    out = Path(sys.argv[1])
    seeds = {
        "llama_q8_0": gguf("llama", Q8_0, rope_freqs=[1, 1, 1, 1, 1, 8, 8, 8], vocabulary=True),
        "qwen2_q4_1": gguf("qwen2", Q4_1, biases=True),
        "qwen3_q4_0": gguf("qwen3", Q4_0, norms=True, tied=False),
        "qwen3vl_q8_0": gguf("qwen3vl", Q8_0, norms=True),
    }
    (out / "gguf").mkdir(parents=True, exist_ok=True)
    for name, raw in seeds.items():
        (out / "gguf" / f"{name}.gguf").write_bytes(raw)

    base = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 64, "vocab_size": 50,
            "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "bos_token_id": 1, "eos_token_id": [2, 3]}
    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
              "original_max_position_embeddings": 64}
    texts = {
        "v4": {**base, "rope_theta": 500000.0, "rope_scaling": llama3, "attention_bias": True},
        "v5": {**base, "model_type": "qwen3",
               "rope_parameters": {**llama3, "rope_theta": 1e6, "partial_rotary_factor": 0.5},
               "layer_types": ["full_attention"] * 2, "hidden_act": "silu"},
        "nested": {"model_type": "qwen3_vl", "tie_word_embeddings": True,
                   "text_config": {**base, "model_type": "qwen3_vl_text",
                                   "rope_scaling": {"rope_type": "default", "mrope_section": [3, 3, 2]}}},
        "window": {**base, "model_type": "qwen2", "use_sliding_window": True, "sliding_window": 32,
                   "max_window_layers": 9},
        "index": {"metadata": {"total_size": 1},
                  "weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}},
        "tokenizer": {"added_tokens": [{"id": 1, "content": "<s>", "special": True},
                                       {"id": 2, "content": "</s>", "special": True}],
                      "model": {"type": "BPE", "vocab": {"a": 3, "b": 4}},
                      "bos_token": "<s>", "eos_token": {"content": "</s>"}},
    }
    (out / "hf_config").mkdir(parents=True, exist_ok=True)
    for name, value in texts.items():
        (out / "hf_config" / f"{name}.json").write_text(json.dumps(value))


if __name__ == "__main__":
    main()
