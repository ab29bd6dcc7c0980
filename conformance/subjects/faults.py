"""Faults of the emulated engines. Each overrides the one small method of forward.Dense in which a real engine went
wrong.

`row`: the row of the fault list it plants (conformance/faults), None for a fault of this folder alone. `place`: the
first value that it makes wrong, as <pass kind>/<layer>/<phase>. Where the wrong value is an engine's input to an op
(a cache row, a constant), the place is the output of that op."""

import numpy as np
from forward import Dense


class StaleVRow(Dense):
    """The last layer's attention reads the last position's V before it was written: the row before it lies there."""

    row, place = "E7", "prefill/layer.{last}/attn_context"

    def store(self, cache, layer, k, v):
        k, v = super().store(cache, layer, k, v)
        if layer == self.c.layers - 1 and len(v) > 1:
            v = v.copy()
            v[-1] = v[-2]
        return k, v


class RopePairs(Dense):
    """RoPE turns the pairs (2j, 2j+1) instead of (j, j + d/2)."""

    row, place = "B3", "prefill/layer.0/q_rope"

    def rope(self, x, positions, layer, what):
        halves = np.concatenate([x[..., 0::2], x[..., 1::2]], axis=-1)
        turned = super().rope(halves, positions, layer, what)
        return np.stack(np.split(turned, 2, axis=-1), axis=-1).reshape(x.shape)


class GqaTile(Dense):
    """Query head h reads kv head h % kv_heads instead of h / group."""

    row, place = "D19", "prefill/layer.0/attn_context"

    def applies(self):
        return 1 < self.c.kv_heads < self.c.heads

    def per_head(self, kv):
        return np.tile(kv, (1, self.c.heads // self.c.kv_heads, 1))


class QNormSkipped(Dense):
    """Layer 1 does not normalise its queries."""

    row, place = None, "prefill/layer.1/q_norm"

    def applies(self):
        return self.c.family == "qwen3" and self.c.layers > 1

    def norm(self, x, name):
        return x if name == "layers.1.self_attn.q_norm.weight" else super().norm(x, name)


class OtherEps(Dense):
    """The norms add another family's epsilon: 1e-6 where 1e-5 is right, and the other way round."""

    row, place = "E6", "prefill/layer.0/attn_norm"

    def __init__(self, *args):
        super().__init__(*args)
        self.eps = 1e-6 if self.c.eps > 3e-6 else 1e-5


class LastKNotRotated(Dense):
    """Layer 1 stores the key of a pass's last position before RoPE."""

    row, place = None, "prefill/layer.1/k_rope"

    def applies(self):
        return self.c.layers > 1

    def rope(self, x, positions, layer, what):
        y = super().rope(x, positions, layer, what)
        if what == "k" and layer == 1:
            y = y.copy()
            y[-1] = x[-1]
        return y


class ThetaDefault(Dense):
    """RoPE's base is 500000 whatever the config says."""

    row, place = None, "prefill/layer.0/q_rope"

    def __init__(self, *args):
        super().__init__(*args)
        self.theta = 500000.0


class DecodePosition(Dense):
    """In decode passes queries are one position ahead."""

    row, place = None, "decode/layer.0/q_rope"

    def rope(self, x, positions, layer, what):
        ahead = what == "q" and len(positions) == 1 and positions[0] > 0
        return super().rope(x, positions + 1 if ahead else positions, layer, what)


class ScaleHidden(Dense):
    """Scores are divided by sqrt(hidden / heads) instead of sqrt(head_dim)."""

    row, place = None, "prefill/layer.0/attn_context"

    def applies(self):
        return self.c.head_dim * self.c.heads != self.c.hidden

    def __init__(self, *args):
        super().__init__(*args)
        self.scale_dim = self.c.hidden / self.c.heads


class MaskAhead(Dense):
    """Each row sees one position too many."""

    row, place = None, "prefill/layer.0/attn_context"

    def visible(self, rows, positions, first):
        return super().visible(rows, positions, first + 1)


class OldestForgotten(Dense):
    """In decode passes position 0 is masked out."""

    row, place = None, "decode/layer.0/attn_context"

    def visible(self, rows, positions, first):
        seen = super().visible(rows, positions, first)
        if rows == 1 and positions > 1:
            seen[:, 0] = False
        return seen


class Gelu(Dense):
    """Layer 1 has gelu (tanh form) instead of silu."""

    row, place = None, "prefill/layer.1/ffn_act"

    def applies(self):
        return self.c.layers > 1

    def activation(self, gate, up, layer):
        if layer != 1:
            return super().activation(gate, up, layer)
        inner = np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)
        return self.rounded((0.5 * gate * (1 + np.tanh(inner)) * up).astype(gate.dtype))


class GateUpSwapped(Dense):
    """The last layer's fused gate/up halves are read the wrong way round."""

    row, place = None, "prefill/layer.{last}/ffn_act"

    def activation(self, gate, up, layer):
        swap = layer == self.c.layers - 1
        return super().activation(up if swap else gate, gate if swap else up, layer)


class ResidualDropped(Dense):
    """The last layer's attention residual is not added."""

    row, place = None, "prefill/layer.{last}/attn_residual"

    def add(self, x, y, layer, what):
        return y if (layer, what) == (self.c.layers - 1, "attn") else super().add(x, y, layer, what)


class WeightsOfNeighbour(Dense):
    """Layer 2's up_proj runs with the weights of layer 1 (a prefetch window that evicted too late)."""

    row, place = "A6", "prefill/layer.2/up_proj"

    def applies(self):
        return self.c.layers > 2

    def weight(self, name):
        return super().weight(name.replace("layers.2.mlp.up_proj", "layers.1.mlp.up_proj"))


class HeadsExchanged(Dense):
    """o_proj of layer 0 reads the first two heads' context in exchanged order."""

    row, place = None, "prefill/layer.0/o_proj"

    def applies(self):
        return self.c.heads > 1

    def product(self, x, w, name):
        if name == "layers.0.self_attn.o_proj":
            d = self.c.head_dim
            x = np.concatenate([x[:, d : 2 * d], x[:, :d], x[:, 2 * d :]], axis=1)
        return super().product(x, w, name)


class TailOfSum(Dense):
    """The last layer's down_proj leaves the last four inputs out of every sum (a tail loop that is not there)."""

    row, place = None, "prefill/layer.{last}/down_proj"

    def product(self, x, w, name):
        if name == f"layers.{self.c.layers - 1}.mlp.down_proj":
            x, w = x[:, :-4], w[:, :-4]
        return super().product(x, w, name)


class CoarseSums(Dense):
    """o_proj of layer 1 rounds its running sum to bfloat16 after every 16 inputs."""

    row, place = None, "prefill/layer.1/o_proj"

    def applies(self):
        return self.c.layers > 1 and self.dtype == "BF16"

    def product(self, x, w, name):
        if name != "layers.1.self_attn.o_proj":
            return super().product(x, w, name)
        total = np.zeros((len(x), len(w)), self.kind)
        for i in range(0, x.shape[1], 16):
            total = self.rounded(total + x[:, i : i + 16] @ w[:, i : i + 16].T)
        return total


class DecodeKLost(Dense):
    """In decode passes layer 0 attends before the new key is written: zeros lie there."""

    row, place = None, "decode/layer.0/attn_context"

    def store(self, cache, layer, k, v):
        new = len(k)
        k, v = super().store(cache, layer, k, v)
        if layer == 0 and new == 1 and len(k) > 1:
            k = k.copy()
            k[-1] = 0
        return k, v


class TiedAssumed(Dense):
    """lm_head is taken to be the embedding."""

    row, place = "D17", "prefill/logits"

    def applies(self):
        return not self.c.tied

    def lm_head(self):
        return self.weight("embed_tokens.weight")


class EmbedNeighbour(Dense):
    """The embedding of the last id of the vocabulary is that of the id before."""

    row, place = None, "prefill/embed"

    def embed(self, ids):
        return super().embed(np.where(ids == self.c.vocab - 1, ids - 1, ids))


class FinalNormWeight(Dense):
    """The final norm's weight is rounded to eight bits."""

    row, place = None, "prefill/final_norm"

    def weight(self, name):
        w = super().weight(name)
        if name != "norm.weight":
            return w
        step = np.abs(w).max() / 127
        return self.rounded((np.rint(w / step) * step).astype(w.dtype))


VALUE_FAULTS = {
    "stale-v-row": StaleVRow,
    "rope-pairs": RopePairs,
    "gqa-tile": GqaTile,
    "q-norm-skipped": QNormSkipped,
    "other-eps": OtherEps,
    "last-k-not-rotated": LastKNotRotated,
    "theta-default": ThetaDefault,
    "decode-position": DecodePosition,
    "scale-hidden": ScaleHidden,
    "mask-ahead": MaskAhead,
    "oldest-forgotten": OldestForgotten,
    "gelu": Gelu,
    "gate-up-swapped": GateUpSwapped,
    "residual-dropped": ResidualDropped,
    "weights-of-neighbour": WeightsOfNeighbour,
    "heads-exchanged": HeadsExchanged,
    "tail-of-sum": TailOfSum,
    "coarse-sums": CoarseSums,
    "decode-k-lost": DecodeKLost,
    "tied-assumed": TiedAssumed,
    "embed-neighbour": EmbedNeighbour,
    "final-norm-weight": FinalNormWeight,
}


def applies(engine):
    """Can this fault show on this model?"""
    return getattr(engine, "applies", lambda: True)()
