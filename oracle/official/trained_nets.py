"""The trained cases' models in training form: parameters in one flat buffer, forward passes, loss. train.py trains
them.

Plain PyTorch with the tensor names of transformers; the official code only reads what training wrote.
"""

import math

import torch
import torch.nn.functional as F

# ---------------------------------------------------------------- parameters


def layer_shapes(cfg, family, prefix, kind):
    H, hd = cfg["hidden_size"], cfg["head_dim"]
    nh, nkv = cfg["num_attention_heads"], cfg["num_key_value_heads"]
    gated = 2 if family == "qwen3_5" else 1
    s = {"input_layernorm.weight": (H,), "post_attention_layernorm.weight": (H,)}
    if kind == "full_attention":
        s |= {
            "self_attn.q_proj.weight": (nh * hd * gated, H),
            "self_attn.k_proj.weight": (nkv * hd, H),
            "self_attn.v_proj.weight": (nkv * hd, H),
            "self_attn.o_proj.weight": (H, nh * hd),
            "self_attn.q_norm.weight": (hd,),
            "self_attn.k_norm.weight": (hd,),
        }
    else:
        hk, hv = cfg["linear_num_key_heads"], cfg["linear_num_value_heads"]
        dk, dv = cfg["linear_key_head_dim"], cfg["linear_value_head_dim"]
        ch = 2 * hk * dk + hv * dv
        s |= {
            "linear_attn.in_proj_qkv.weight": (ch, H),
            "linear_attn.in_proj_z.weight": (hv * dv, H),
            "linear_attn.in_proj_b.weight": (hv, H),
            "linear_attn.in_proj_a.weight": (hv, H),
            "linear_attn.conv1d.weight": (ch, 1, cfg["linear_conv_kernel_dim"]),
            "linear_attn.dt_bias": (hv,),
            "linear_attn.A_log": (hv,),
            "linear_attn.norm.weight": (dv,),
            "linear_attn.out_proj.weight": (H, hv * dv),
        }
    if family == "qwen3_moe":
        E, M = cfg["num_experts"], cfg["moe_intermediate_size"]
        s |= {"mlp.gate.weight": (E, H), "mlp.experts.gate_up_proj": (E, 2 * M, H), "mlp.experts.down_proj": (E, H, M)}
    else:
        M = cfg["intermediate_size"]
        s |= {"mlp.gate_proj.weight": (M, H), "mlp.up_proj.weight": (M, H), "mlp.down_proj.weight": (H, M)}
    return {prefix + k: v for k, v in s.items()}


def shapes(spec):
    cfg = spec["config"]
    out = {
        "model.embed_tokens.weight": (cfg["vocab_size"], cfg["hidden_size"]),
        "model.norm.weight": (cfg["hidden_size"],),
    }
    if not spec["tied"]:
        out["lm_head.weight"] = (cfg["vocab_size"], cfg["hidden_size"])
    types = cfg.get("layer_types") or ["full_attention"] * cfg["num_hidden_layers"]
    for i, kind in enumerate(types):
        out |= layer_shapes(cfg, spec["family"], f"model.layers.{i}.", kind)
    return out


def mtp_shapes(spec):
    H = spec["config"]["hidden_size"]
    out = {
        "mtp.fc.weight": (H, 2 * H),
        "mtp.norm.weight": (H,),
        "mtp.pre_fc_norm_embedding.weight": (H,),
        "mtp.pre_fc_norm_hidden.weight": (H,),
    }
    return out | layer_shapes(spec["config"], spec["family"], "mtp.layers.0.", "full_attention")


def initial(name, shape, spec, gen):
    depth = spec["config"]["num_hidden_layers"]
    zero = spec["family"] == "qwen3_5"
    n = lambda std: torch.randn(shape, generator=gen) * std
    if name.endswith("A_log"):
        return torch.empty(shape).uniform_(1.0, 8.0, generator=gen).log()
    if name.endswith("dt_bias"):
        dt = torch.exp(torch.empty(shape).uniform_(math.log(1e-3), math.log(0.1), generator=gen))
        return dt + torch.log(-torch.expm1(-dt))
    if name.endswith("conv1d.weight"):
        return n(0.4)
    if name in ("model.norm.weight", "mtp.pre_fc_norm_embedding.weight", "mtp.pre_fc_norm_hidden.weight"):
        w = torch.exp(n(0.6))  # uneven, as in real models, so that a forgotten norm shows
        return w - 1.0 if zero else w
    if name.endswith("linear_attn.norm.weight"):
        return torch.ones(shape)
    if name.endswith("norm.weight"):
        return torch.zeros(shape) if zero else torch.ones(shape)
    if name.endswith("embed_tokens.weight"):
        return n(0.1)
    std = shape[-1] ** -0.5
    if name.endswith(("o_proj.weight", "down_proj.weight", "down_proj", "out_proj.weight")):
        std *= (2 * depth) ** -0.5
    return n(std)


class Flat:
    """All parameters in one buffer: one optimizer kernel chain, one bf16 copy a step."""

    def __init__(self, shape_of, spec, seed, device):
        gen = torch.Generator().manual_seed(seed)
        self.shape_of = dict(sorted(shape_of.items()))
        parts = [initial(k, s, spec, gen).reshape(-1) for k, s in self.shape_of.items()]
        self.sizes = [p.numel() for p in parts]
        self.p = torch.cat(parts).to(device).requires_grad_(True)
        decay = [
            torch.full((n,), 1.0 if len(s) > 1 and "conv1d" not in k else 0.0)
            for (k, s), n in zip(self.shape_of.items(), self.sizes)
        ]
        self.decay = torch.cat(decay).to(device)
        self.m, self.v = torch.zeros_like(self.p), torch.zeros_like(self.p)
        self.hyper = torch.zeros(3, device=device)  # lr, 1 / (1 - b1^t), 1 / (1 - b2^t)
        self.t = 0

    def views(self, dtype=torch.bfloat16, rounded=True):
        p = self.p.to(torch.bfloat16) if rounded else self.p
        return {k: x.view(s).to(dtype) for (k, s), x in zip(self.shape_of.items(), p.split(self.sizes))}

    def set_lr(self, lr, b1=0.9, b2=0.95):
        self.t += 1
        self.hyper.copy_(torch.tensor([lr, 1 / (1 - b1**self.t), 1 / (1 - b2**self.t)]), non_blocking=True)

    @torch.no_grad()
    def update(self, b1=0.9, b2=0.95, wd=0.05, clip=1.0):
        g = self.p.grad
        g = g * (clip / g.norm().clamp_min(clip))
        self.m.lerp_(g, 1 - b1)
        self.v.lerp_(g * g, 1 - b2)
        lr, c1, c2 = self.hyper[0], self.hyper[1], self.hyper[2]
        self.p.sub_(lr * (self.m * c1 / ((self.v * c2).sqrt() + 1e-9) + wd * self.decay * self.p))
        self.p.grad.zero_()


# ---------------------------------------------------------------- forward passes, training form


def rms(x, w, zero, eps=1e-6):
    x = x.float()
    x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    return x * (1.0 + w.float()) if zero else x * w.float()


def rotate(x, cos, sin):
    rd = cos.shape[-1] * 2
    a, b = x[..., : rd // 2], x[..., rd // 2 : rd]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, x[..., rd:]], -1)


def attention(h, w, cos, sin, nh, nkv, hd, zero):
    B, T, _ = h.shape
    q, k, v = (
        F.linear(h, w["self_attn.q_proj.weight"]),
        F.linear(h, w["self_attn.k_proj.weight"]),
        F.linear(h, w["self_attn.v_proj.weight"]),
    )
    gate = None
    if zero:
        q, gate = q.view(B, T, nh, 2 * hd).chunk(2, -1)
        gate = gate.reshape(B, T, nh * hd)
    q, k, v = q.reshape(B, T, nh, hd), k.view(B, T, nkv, hd), v.view(B, T, nkv, hd)
    q = rotate(rms(q, w["self_attn.q_norm.weight"], zero).transpose(1, 2), cos, sin).to(h.dtype)
    k = rotate(rms(k, w["self_attn.k_norm.weight"], zero).transpose(1, 2), cos, sin).to(h.dtype)
    v = v.transpose(1, 2)
    if nkv != nh:
        k, v = k.repeat_interleave(nh // nkv, 1), v.repeat_interleave(nh // nkv, 1)
    o = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, nh * hd)
    if gate is not None:
        o = o * torch.sigmoid(gate)
    return F.linear(o, w["self_attn.o_proj.weight"]).float()


def inverse_unit_lower(m):
    """Inverse of a unit lower triangular matrix, by blocks of 1, 2, 4, ...: plain forward substitution."""
    C = m.shape[-1]
    d = torch.ones(*m.shape[:-1], 1, 1, device=m.device, dtype=m.dtype)
    s = 1
    while s < C:
        a, b = d[..., 0::2, :, :], d[..., 1::2, :, :]
        n = C // (2 * s)
        blocks = m.reshape(*m.shape[:-2], n, 2 * s, n, 2 * s).diagonal(dim1=-4, dim2=-2).movedim(-1, -3)
        off = -(b @ blocks[..., s:, :s] @ a)
        d = torch.cat([torch.cat([a, torch.zeros_like(a)], -1), torch.cat([off, b], -1)], -2)
        s *= 2
    return d.squeeze(-3)


def delta_rule(q, k, v, g, beta, C=64):
    """Gated delta rule in chunks; q, k, v [B, heads, T, dim], g and beta [B, heads, T]."""
    B, h, T, dk = q.shape
    C = min(C, T)
    pad = -T % C
    if pad:
        q, k, v = (F.pad(x, (0, 0, 0, pad)) for x in (q, k, v))
        g, beta = F.pad(g, (0, pad)), F.pad(beta, (0, pad))
    n = (T + pad) // C
    q, k, v = (x.reshape(B, h, n, C, -1) for x in (q, k, v))
    g, beta = g.reshape(B, h, n, C).cumsum(-1), beta.reshape(B, h, n, C, 1)
    tri = torch.ones(C, C, device=q.device, dtype=torch.bool).tril()
    decay = (g.unsqueeze(-1) - g.unsqueeze(-2)).masked_fill(~tri, -1e30).exp()
    kb = k * beta
    low = ((kb @ k.transpose(-1, -2)) * decay).tril(-1)
    inv = inverse_unit_lower(low + torch.eye(C, device=q.device, dtype=q.dtype))
    val, kd = inv @ (v * beta), inv @ (kb * g.exp().unsqueeze(-1))
    att = (q @ k.transpose(-1, -2)) * decay
    qd = q * g.exp().unsqueeze(-1)
    tail = (g[..., -1:] - g).exp().unsqueeze(-1) * k
    last = g[..., -1].exp()[..., None, None]
    S, out = torch.zeros(B, h, dk, v.shape[-1], device=q.device, dtype=q.dtype), []
    for i in range(n):
        new = val[:, :, i] - kd[:, :, i] @ S
        out.append(qd[:, :, i] @ S + att[:, :, i] @ new)
        S = S * last[:, :, i] + tail[:, :, i].transpose(-1, -2) @ new
    return torch.stack(out, 2).reshape(B, h, n * C, -1)[:, :, :T]


def gdn_before(h, w, hk, hv, dk, dv):
    B, T, _ = h.shape
    x = F.linear(h, w["linear_attn.in_proj_qkv.weight"]).float()
    cw = w["linear_attn.conv1d.weight"].float()[:, 0]
    W = cw.shape[-1]
    x = F.pad(x, (0, 0, W - 1, 0))
    x = F.silu(sum(x[:, i : i + T] * cw[:, i] for i in range(W)))
    q, k, v = x.split([hk * dk, hk * dk, hv * dv], -1)
    q, k, v = q.reshape(B, T, hk, dk), k.reshape(B, T, hk, dk), v.reshape(B, T, hv, dv)
    q, k = (t * torch.rsqrt(t.pow(2).sum(-1, keepdim=True) + 1e-6) for t in (q, k))
    q = q * dk**-0.5
    q, k = (t.repeat_interleave(hv // hk, 2) for t in (q, k))
    beta = torch.sigmoid(F.linear(h, w["linear_attn.in_proj_b.weight"]).float())
    g = -w["linear_attn.A_log"].float().exp() * F.softplus(
        F.linear(h, w["linear_attn.in_proj_a.weight"]).float() + w["linear_attn.dt_bias"].float()
    )
    return (
        *(t.transpose(1, 2).contiguous() for t in (q, k, v)),
        g.transpose(1, 2).contiguous(),
        beta.transpose(1, 2).contiguous(),
    )


def gdn_after(core, h, w, hv, dv):
    B, T, _ = h.shape
    z = F.linear(h, w["linear_attn.in_proj_z.weight"]).float().view(B, T, hv, dv)
    y = rms(core.transpose(1, 2), w["linear_attn.norm.weight"], False) * F.silu(z)
    return F.linear(y.reshape(B, T, -1).to(h.dtype), w["linear_attn.out_proj.weight"]).float()


def dense_ffn(h, w):
    return F.linear(
        F.silu(F.linear(h, w["mlp.gate_proj.weight"])) * F.linear(h, w["mlp.up_proj.weight"]), w["mlp.down_proj.weight"]
    ).float()


def moe_ffn(h, w, top):
    """All experts for all tokens, unused ones times zero: small enough, and no host sync."""
    B, T, H = h.shape
    E = w["mlp.gate.weight"].shape[0]
    prob = F.linear(h, w["mlp.gate.weight"]).float().softmax(-1)
    val, ids = prob.topk(top, -1)
    val = val / val.sum(-1, keepdim=True)
    dense = torch.zeros_like(prob).scatter(-1, ids, val)
    g, u = F.linear(h, w["mlp.experts.gate_up_proj"].reshape(-1, H)).view(B, T, E, -1).chunk(2, -1)
    act = (F.silu(g) * u) * dense.unsqueeze(-1).to(h.dtype)
    out = F.linear(act.reshape(B, T, -1), w["mlp.experts.down_proj"].permute(1, 0, 2).reshape(H, -1)).float()
    used = torch.zeros_like(prob).scatter(-1, ids, 1.0).mean((0, 1)) / top
    return out, E * (used * prob.mean((0, 1))).sum()


def layer_attention(x, w, cos, sin, nh, nkv, hd, zero, top, dt):
    x = x + attention(rms(x, w["input_layernorm.weight"], zero).to(dt), w, cos, sin, nh, nkv, hd, zero)
    h = rms(x, w["post_attention_layernorm.weight"], zero).to(dt)
    if top:
        y, aux = moe_ffn(h, w, top)
        return x + y, aux
    return x + dense_ffn(h, w), None


def gdn_first(x, w, hk, hv, dk, dv, dt):
    h = rms(x, w["input_layernorm.weight"], True).to(dt)
    return h, *gdn_before(h, w, hk, hv, dk, dv)


def gdn_last(x, core, h, w, hv, dv, dt):
    x = x + gdn_after(core, h, w, hv, dv)
    return x + dense_ffn(rms(x, w["post_attention_layernorm.weight"], True).to(dt), w)


class Net:
    def __init__(self, spec, device, dtype=torch.bfloat16, compiled=False):
        self.spec, self.cfg, self.dt = spec, spec["config"], dtype
        self.zero = spec["family"] == "qwen3_5"
        rope = self.cfg["rope_parameters"]
        rd = int(self.cfg["head_dim"] * rope.get("partial_rotary_factor", 1.0))
        inv = rope["rope_theta"] ** (-torch.arange(0, rd, 2, dtype=torch.float64) / rd)
        ang = (torch.arange(1024, dtype=torch.float64)[:, None] * inv).to(device)
        self.cos, self.sin = ang.cos().float(), ang.sin().float()
        self.types = self.cfg.get("layer_types") or ["full_attention"] * self.cfg["num_hidden_layers"]
        wrap = (lambda f: torch.compile(f, dynamic=False)) if compiled else (lambda f: f)
        self.att, self.g1, self.g2 = wrap(layer_attention), wrap(gdn_first), wrap(gdn_last)
        self.keys = {}

    def layer(self, x, p, prefix, kind):
        c, T = self.cfg, x.shape[1]
        if prefix not in self.keys:
            self.keys[prefix] = [k for k in p if k.startswith(prefix)]
        w = {k[len(prefix) :]: p[k] for k in self.keys[prefix]}
        if kind == "full_attention":
            return self.att(
                x,
                w,
                self.cos[:T],
                self.sin[:T],
                c["num_attention_heads"],
                c["num_key_value_heads"],
                c["head_dim"],
                self.zero,
                c.get("num_experts_per_tok", 0),
                self.dt,
            )
        hk, hv, dk, dv = (
            c[k]
            for k in ("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim")
        )
        h, *parts = self.g1(x, w, hk, hv, dk, dv, self.dt)
        return self.g2(x, delta_rule(*parts), h, w, hv, dv, self.dt), None

    def trunk(self, ids, p):
        x, aux = F.embedding(ids, p["model.embed_tokens.weight"]).float(), []
        for i, kind in enumerate(self.types):
            x, a = self.layer(x, p, f"model.layers.{i}.", kind)
            if a is not None:
                aux.append(a)
        return rms(x, p["model.norm.weight"], self.zero), (sum(aux) / len(aux) if aux else None)

    def logits(self, hidden, p):
        return F.linear(
            hidden.to(self.dt), p["model.embed_tokens.weight" if self.spec["tied"] else "lm_head.weight"]
        ).float()

    def mtp(self, hidden, ids, p, m):
        """hidden [B, T, H] of positions 0.., ids [B, T] the token after each."""
        e = F.embedding(ids, p["model.embed_tokens.weight"])
        x = torch.cat(
            [
                rms(e, m["mtp.pre_fc_norm_embedding.weight"], self.zero),
                rms(hidden, m["mtp.pre_fc_norm_hidden.weight"], self.zero),
            ],
            -1,
        )
        x = F.linear(x.to(self.dt), m["mtp.fc.weight"]).float()
        x, _ = self.layer(x, m, "mtp.layers.0.", "full_attention")
        return rms(x, m["mtp.norm.weight"], self.zero)


def loss_of(logits, target, weight):
    ce = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), target.reshape(-1), reduction="none")
    weight = weight.reshape(-1)
    return (ce * weight).sum() / weight.sum(), ce
