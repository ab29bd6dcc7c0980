"""A forward pass of llama, qwen2 and qwen3 in numpy, for one sequence, in float64, float32 or bfloat16.

Written for emulating other people's engines, so that every place where such an engine can go wrong is a small method
that a fault (faults.py) overrides. In bfloat16 every op's output is rounded (to nearest even), sums are float32, as
engines of that type do. Formulas: the families' published code (Hugging Face transformers,
modeling_{llama,qwen2,qwen3}.py)."""

import json
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "dumps/python"))

from assay_dump import from_bf16_bits, read_safetensors, to_bf16_bits  # noqa: E402

FAMILIES = ("llama", "qwen2", "qwen3")


class Config:
    """The keys of config.json that a forward pass needs; both spellings of RoPE."""

    def __init__(self, folder):
        path = Path(folder) / "config.json"
        c = json.loads(path.read_text())
        if c["model_type"] not in FAMILIES:
            raise SystemExit(f"{path}: model_type {c['model_type']}; wanted one of {' '.join(FAMILIES)}")
        rope = c.get("rope_parameters") or {**(c.get("rope_scaling") or {}), "rope_theta": c.get("rope_theta", 10000.0)}
        if rope.get("rope_type", "default") != "default":
            raise SystemExit(f"{path}: RoPE of type {rope['rope_type']}; wanted default")
        self.family = c["model_type"]
        self.layers = c["num_hidden_layers"]
        self.hidden = c["hidden_size"]
        self.heads = c["num_attention_heads"]
        self.kv_heads = c["num_key_value_heads"]
        self.head_dim = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
        self.ffn = c["intermediate_size"]
        self.vocab = c["vocab_size"]
        self.eps = c["rms_norm_eps"]
        self.theta = rope["rope_theta"]
        self.tied = c["tie_word_embeddings"]


class Cache:
    """Keys and values of one sequence: per layer arrays [position, kv_heads, head_dim], keys after RoPE."""

    def __init__(self, layers):
        self.k, self.v = [None] * layers, [None] * layers

    def length(self):
        return 0 if self.k[0] is None else len(self.k[0])


class Dense:
    """x @ W.T throughout: weights are [out, in], activations [rows, columns]."""

    def __init__(self, folder, dtype="F32"):
        self.c = Config(folder)
        self.dtype = dtype
        self.kind = np.float64 if dtype == "F64" else np.float32
        tensors = {}
        for file in sorted(Path(folder).glob("*.safetensors")):
            tensors.update(read_safetensors(file))
        self.weights = {k.removeprefix("model."): self.rounded(v.astype(self.kind)) for k, v in tensors.items()}
        self.eps, self.theta, self.scale_dim = self.c.eps, self.c.theta, self.c.head_dim

    # ---- ops, each with one output

    def rounded(self, x):
        return from_bf16_bits(to_bf16_bits(x)).reshape(x.shape) if self.dtype == "BF16" else x

    def weight(self, name):
        return self.weights[name]

    def lm_head(self):
        return self.weight("embed_tokens.weight" if self.c.tied else "lm_head.weight")

    def embed(self, ids):
        return self.weight("embed_tokens.weight")[ids]

    def norm(self, x, name):
        """x * w / sqrt(mean(x^2) + eps), over the last axis."""
        scale = 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True, dtype=self.kind) + self.kind(self.eps))
        return self.rounded(x * scale * self.weight(name))

    def linear(self, x, name):
        y = self.product(x, self.weight(name + ".weight"), name)
        return self.rounded(y + self.weights[name + ".bias"] if name + ".bias" in self.weights else y)

    def product(self, x, w, name):
        return x @ w.T

    def rope_angles(self, positions):
        """[rows, head_dim / 2]; column j turns by position * theta^(-2j/head_dim)."""
        d = self.c.head_dim
        return np.asarray(positions, self.kind)[:, None] / self.kind(self.theta) ** (
            np.arange(0, d, 2, dtype=self.kind) / d
        )

    def rope(self, x, positions, layer, what):
        """x [rows, heads, head_dim]: turns the pairs (j, j + head_dim/2)."""
        angles = self.rope_angles(positions)[:, None, :]
        cos, sin = np.cos(angles), np.sin(angles)
        a, b = np.split(x, 2, axis=-1)
        return self.rounded(np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1))

    def visible(self, rows, positions, first):
        """[rows, positions]: row t sees the positions up to first + t."""
        return np.arange(positions)[None, :] <= first + np.arange(rows)[:, None]

    def per_head(self, kv):
        """[positions, kv_heads, d] -> [positions, heads, d]: query head h uses kv head h / group."""
        return np.repeat(kv, self.c.heads // self.c.kv_heads, axis=1)

    def attention(self, q, k, v, first, layer):
        """softmax(q k^T / sqrt(head_dim)) v over the visible positions; [rows, heads * head_dim]."""
        q, k, v = q.transpose(1, 0, 2), self.per_head(k).transpose(1, 2, 0), self.per_head(v).transpose(1, 0, 2)
        scores = q @ k / self.kind(np.sqrt(self.scale_dim))
        scores = np.where(self.visible(q.shape[1], k.shape[2], first), scores, self.kind(-np.inf))
        p = np.exp(scores - scores.max(axis=-1, keepdims=True))
        p = self.rounded(p / p.sum(axis=-1, keepdims=True))
        return self.rounded((p @ v).transpose(1, 0, 2).reshape(q.shape[1], -1))

    def store(self, cache, layer, k, v):
        """Appends the pass's rows to the cache and returns what attention reads."""
        if cache.k[layer] is not None:
            k, v = np.concatenate([cache.k[layer], k]), np.concatenate([cache.v[layer], v])
        cache.k[layer], cache.v[layer] = k, v
        return k, v

    def activation(self, gate, up, layer):
        """silu(gate) * up"""
        return self.rounded(gate / (1 + np.exp(-gate)) * up)

    def add(self, x, y, layer, what):
        return self.rounded(x + y)

    # ---- the wiring

    def forward(self, ids, cache):
        """One pass of `ids` behind what the cache holds. Returns {phase: [rows, columns]}, names as in
        goldens/official/README.md ("layer.0/q_rope"), in execution order; the cache grows."""
        c, out, rows = self.c, {}, len(ids)
        first = cache.length()
        positions = np.arange(first, first + rows)
        x = out["embed"] = self.embed(np.asarray(ids))
        for layer in range(c.layers):
            w, to = f"layers.{layer}.", f"layer.{layer}/"
            h = out[to + "attn_norm"] = self.norm(x, w + "input_layernorm.weight")
            for p in "qkv":
                out[to + f"{p}_proj"] = self.linear(h, w + f"self_attn.{p}_proj")
            q, k, v = (out[to + f"{p}_proj"].reshape(rows, -1, c.head_dim) for p in "qkv")
            if c.family == "qwen3":
                q, k = self.norm(q, w + "self_attn.q_norm.weight"), self.norm(k, w + "self_attn.k_norm.weight")
                out[to + "q_norm"], out[to + "k_norm"] = q.reshape(rows, -1), k.reshape(rows, -1)
            q, k = self.rope(q, positions, layer, "q"), self.rope(k, positions, layer, "k")
            out[to + "q_rope"], out[to + "k_rope"] = q.reshape(rows, -1), k.reshape(rows, -1)
            context = out[to + "attn_context"] = self.attention(q, *self.store(cache, layer, k, v), first, layer)
            h = out[to + "o_proj"] = self.linear(context, w + "self_attn.o_proj")
            x = out[to + "attn_residual"] = self.add(x, h, layer, "attn")
            h = out[to + "ffn_norm"] = self.norm(x, w + "post_attention_layernorm.weight")
            gate = out[to + "gate_proj"] = self.linear(h, w + "mlp.gate_proj")
            up = out[to + "up_proj"] = self.linear(h, w + "mlp.up_proj")
            h = out[to + "ffn_act"] = self.activation(gate, up, layer)
            h = out[to + "down_proj"] = self.linear(h, w + "mlp.down_proj")
            x = out[to + "ffn_residual"] = self.add(x, h, layer, "ffn")
        x = out["final_norm"] = self.norm(x, "norm.weight")
        out["logits"] = self.rounded(self.product(x, self.lm_head(), "lm_head"))
        return out


def run(engine, ids, fed, buffers=lambda phases: phases):
    """Prefill of `ids`, then one decode pass per id of `fed`. Returns what `buffers` makes of each pass's phases,
    the greedy ids (one more than passes of decode) and the caches (k, v) after the prefill and after the last
    pass."""
    cache, passes, greedy, caches = Cache(engine.c.layers), [], [], []
    for step in [list(ids)] + [[i] for i in fed]:
        phases = engine.forward(step, cache)
        passes.append(buffers(phases))
        greedy.append(int(phases["logits"][-1].argmax()))
        caches.append((list(cache.k), list(cache.v)))
    return passes, greedy, (caches[0], caches[-1])
