"""Two tensor-parallel ranks, float32: which weights a rank holds, what it sums, and how its buffers look.

Rank r holds half of the heads, of the kv heads and of the FFN columns: q_r|k_r|v_r in one fused matrix, gate_r|up_r in
another; o_proj and down_proj give partial sums that an all-reduce adds. The faults of this engine stand at the end.
"""

import numpy as np
from forward import Dense

RANKS = 2
PAGE = 4  # positions per cache page


class TwoRanks(Dense):
    """Dense whose row-parallel products are the sum of two partial ones, kept in `partials` by weight name."""

    def __init__(self, folder, dtype="F32"):
        super().__init__(folder, dtype)
        c = self.c
        for what, n in (("query heads", c.heads), ("kv heads", c.kv_heads), ("FFN columns", c.ffn), ("ids", c.vocab)):
            if n % RANKS:
                raise SystemExit(
                    f"{folder}: {n} {what}; wanted a multiple of {RANKS} for {RANKS} ranks (try trained-engine or llama-base)"
                )
        self.partials = {}

    def partial(self, rank, x, w, name):
        half = slice(rank * x.shape[1] // RANKS, (rank + 1) * x.shape[1] // RANKS)
        return x[:, half] @ w[:, half].T

    def product(self, x, w, name):
        if not name.endswith(("o_proj", "down_proj")):
            return super().product(x, w, name)
        self.partials[name] = [self.partial(r, x, w, name) for r in range(RANKS)]
        return self.partials[name][0] + self.partials[name][1]


def shard(x, rank):
    """The columns of rank `rank`."""
    return np.split(x, RANKS, axis=-1)[rank]


def interleaved(x, head_dim):
    """Columns (head, pair, j) -> (head, j, pair): the layout of engines whose RoPE pairs lie side by side."""
    return x.reshape(len(x), -1, 2, head_dim // 2).swapaxes(2, 3).reshape(x.shape)


def rank_buffers(engine, phases, rank):
    """The buffers of one pass of one sequence as rank `rank` holds them: {their name: ([rows, ...], axis of the rows)}."""
    c, out = engine.c, {}

    def put(name, x, rows_axis=0):
        out[name] = (x if rows_axis == 0 else x.T, rows_axis)

    put("embed_tokens", phases["embed"])
    for n in range(c.layers):
        p, to = (
            {k.removeprefix(f"layer.{n}/"): v for k, v in phases.items() if k.startswith(f"layer.{n}/")},
            f"layers.{n}.",
        )
        put(to + "input_layernorm", p["attn_norm"])
        put(to + "qkv_proj", np.concatenate([shard(p[k], rank) for k in ("q_proj", "k_proj", "v_proj")], axis=1))
        put(to + "rotary_q", interleaved(shard(p["q_rope"], rank), c.head_dim))
        every = interleaved(p["k_rope"], c.head_dim).reshape(len(p["k_rope"]), c.kv_heads, -1)
        put(to + "gathered_k", every[:, ::-1].reshape(len(every), -1))
        put(to + "attn", shard(p["attn_context"], rank), rows_axis=1)
        put(to + "o_proj", engine.partials[f"layers.{n}.self_attn.o_proj"][rank])
        put(to + "hidden", p["attn_residual"])
        put(to + "post_attention_layernorm", p["ffn_norm"])
        put(to + "gate_up", np.concatenate([shard(p[k], rank) for k in ("gate_proj", "up_proj")], axis=1))
        put(to + "act", shard(p["ffn_act"], rank), rows_axis=1)
        put(to + "down_proj", engine.partials[f"layers.{n}.mlp.down_proj"][rank])
        put(to + "output", p["ffn_residual"])
    put("norm", phases["final_norm"])
    put("lm_head", shard(phases["logits"], rank))
    return out


def padded_batch(buffers, rows, rng):
    """Sequences one behind the other, each padded to `rows` rows; what lies in padding rows is noise."""
    out = {}
    for name, (first, axis) in buffers[0].items():
        parts = []
        for sequence in buffers:
            x = sequence[name][0] if axis == 0 else sequence[name][0].T
            noise = rng.standard_normal((rows - len(x), x.shape[1])).astype(x.dtype)
            parts.append(np.concatenate([x, noise]))
        whole = np.concatenate(parts)
        out[name] = whole if axis == 0 else np.ascontiguousarray(whole.T)
    return out


def rows_table(lengths, firsts, rows):
    """I64 [sequences * rows, 3]: prompt, position, kind (0 token, 1 padding)."""
    return np.array(
        [
            [p, first + r, 0] if r < n else [0, 0, 1]
            for p, (n, first) in enumerate(zip(lengths, firsts))
            for r in range(rows)
        ],
        dtype=np.int64,
    )


def block_table(lengths, rng):
    """Pages of each sequence, I32 [sequences, blocks], shuffled over the cache; -1 where a sequence has no page."""
    needed = [-(-n // PAGE) for n in lengths]
    pages = rng.permutation(sum(needed) + 3)
    table = np.full((len(lengths), max(needed)), -1, dtype=np.int32)
    for row, n in enumerate(needed):
        table[row, :n], pages = pages[:n], pages[n:]
    return table, sum(needed) + 3


def paged_cache(caches, layer, rank, table, pages, head_dim):
    """One layer's cache of one rank, [k or v, page, slot, kv head, d], keys interleaved as the rotated keys are; NaN where
    nothing was written. caches: per sequence (k, v), lists by layer of [position, kv head, d]."""
    per_rank = caches[0][0][layer].shape[1] // RANKS
    out = np.full((2, pages, PAGE, per_rank, head_dim), np.nan, dtype=np.float32)
    for s, (k, v) in enumerate(caches):
        heads = slice(rank * per_rank, (rank + 1) * per_rank)
        turned = k[layer].reshape(*k[layer].shape[:2], 2, -1).swapaxes(2, 3).reshape(k[layer].shape)
        for which, x in enumerate((turned, v[layer])):
            for position in range(len(x)):
                out[which, table[s, position // PAGE], position % PAGE] = x[position, heads]
    return out


# ---- faults of the arithmetic; those of buffers and tables stand in emulate.py, where the buffers are written


class ShardOrder(TwoRanks):
    """The loader halves the fused matrix q|k|v as it lies, instead of giving each rank its q_r|k_r|v_r."""

    row, place = "E1", "prefill/layer.0/q_proj"

    def __init__(self, *args):
        super().__init__(*args)
        for n in range(self.c.layers):
            for tail in ("weight", "bias"):
                names = [f"layers.{n}.self_attn.{p}_proj.{tail}" for p in "qkv"]
                if names[0] not in self.weights:
                    continue
                fused = np.concatenate([self.weights[name] for name in names])
                sizes = [len(self.weights[name]) // RANKS for name in names]
                halves = [np.split(h, np.cumsum(sizes)[:-1]) for h in np.split(fused, RANKS)]
                for i, name in enumerate(names):
                    self.weights[name] = np.concatenate([h[i] for h in halves])


class OneRank(TwoRanks):
    """Rank 1 never adds its part of layer 0's o_proj."""

    row, place = "E2", "prefill/layer.0/o_proj"

    def partial(self, rank, x, w, name):
        y = super().partial(rank, x, w, name)
        return np.zeros_like(y) if rank == 1 and name == "layers.0.self_attn.o_proj" else y


PARALLEL_FAULTS = {"shard-order": ShardOrder, "one-rank": OneRank}
