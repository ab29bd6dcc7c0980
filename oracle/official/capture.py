"""What the official code computes: hooks on its modules, wrappers round its functions, passes over a prompt."""

import torch
from families import ZERO_CENTRED
from transformers import DynamicCache

TOP = 32  # highest logits kept of every position
GREEDY = 8  # decode steps; a spec's "greedy" and "full_decode" replace both
FULL_DECODE = 3


class Capture:
    """Hooks on official modules and wrappers round official functions."""

    def __init__(self, engine, model, spec, mtp=None):
        self.engine, self.model, self.spec, self.mtp = engine, model, spec, mtp
        self.cfg = model.config.get_text_config()
        self.text = model.model.language_model if spec.get("nested") else model.model
        self.prefix = None  # where tensors go, e.g. prompt1/prefill/0
        self.full = False
        self.layer = None
        self.rows = 0
        self.out = {}
        self.router_margins = []
        self.router_ids = {}
        self.router_all = []
        self.forced_router = None  # expert ids to use in place of the own choice, by prefix and layer
        self.l2 = None
        self._functions()
        self.text.embed_tokens.register_forward_hook(lambda m, i, o: self.put("embed", o, layer=False))
        self.text.norm.register_forward_hook(lambda m, i, o: self.put("final_norm", o, layer=False, always=True))
        for i, layer in enumerate(self.text.layers):
            self._layer(layer, f"layer.{i}")
        if mtp is not None:
            self._layer(mtp.layers[0], "mtp.0")
            mtp.pre_fc_norm_embedding.register_forward_hook(lambda m, i, o: self.put("mtp_embed_norm", o, layer=False))
            mtp.pre_fc_norm_hidden.register_forward_hook(lambda m, i, o: self.put("mtp_hidden_norm", o, layer=False))
            mtp.fc.register_forward_hook(lambda m, i, o: self.put("mtp_fc", o, layer=False))
            mtp.norm.register_forward_hook(lambda m, i, o: self.put("mtp_norm", o, layer=False, always=True))

    def put(self, stage, tensor, layer=True, always=False):
        if self.prefix is None or not (self.full or always):
            return
        if self.spec.get("stages") and stage not in self.spec["stages"]:
            return
        key = f"{self.prefix}/{self.layer}/{stage}" if layer else f"{self.prefix}/{stage}"
        assert key not in self.out, key
        self.out[key] = tensor.detach().reshape(self.rows, -1).clone()

    def _hook(self, module, stage):
        module.register_forward_hook(lambda m, i, o: self.put(stage, o[0] if isinstance(o, tuple) else o))

    def _pre(self, module, stage):
        module.register_forward_pre_hook(lambda m, i: self.put(stage, i[0]))

    def _layer(self, layer, name):
        def enter(*_):
            self.layer = name

        layer.register_forward_pre_hook(enter, with_kwargs=False)
        mlp = layer.mlp
        if hasattr(layer, "input_layernorm"):
            self._hook(layer.input_layernorm, "attn_norm")
            self._pre(layer.post_attention_layernorm, "attn_residual")
            self._hook(layer.post_attention_layernorm, "ffn_norm")
        else:  # olmo2: no norm before attention and FFN, one behind each
            self._hook(layer.post_attention_layernorm, "attn_post_norm")
            self._pre(mlp, "attn_residual")
            self._hook(layer.post_feedforward_layernorm, "ffn_post_norm")
        self._hook(layer, "ffn_residual")
        if hasattr(mlp, "experts"):
            mlp.gate.register_forward_hook(self._router)
            self._hook(mlp.experts, "moe_out")
            if hasattr(mlp, "shared_expert"):
                self._hook(mlp.shared_expert_gate, "shared_expert_gate")
                self._hook(mlp.shared_expert, "shared_expert_out")
            self._hook(mlp, "ffn_out")
        else:
            self._hook(mlp.gate_proj, "gate_proj")
            self._hook(mlp.up_proj, "up_proj")
            self._pre(mlp.down_proj, "ffn_act")
            self._hook(mlp.down_proj, "down_proj")
        if hasattr(layer, "self_attn"):
            attn = layer.self_attn
            for stage in ("q_proj", "k_proj", "v_proj", "q_norm", "k_norm", "o_proj"):
                if hasattr(attn, stage):
                    self._hook(getattr(attn, stage), stage)
            if self.spec["family"] in ZERO_CENTRED:

                def gate(m, i, o, d=attn.head_dim):
                    self.put("attn_gate", o.view(*o.shape[:-1], -1, 2 * d).chunk(2, dim=-1)[1])

                attn.q_proj.register_forward_hook(gate)
                self._pre(attn.o_proj, "attn_gated")
        else:
            gdn = layer.linear_attn
            if hasattr(gdn, "in_proj_qkvz"):
                self._hook(gdn.in_proj_qkvz, "gdn_qkvz")
                self._hook(gdn.in_proj_ba, "gdn_ba")
                inner = gdn.fix_query_key_value_ordering

                def ordering(*args):
                    q, k, v, z, b, a = res = inner(*args)
                    self.put("gdn_z", z)
                    self.put("gdn_b", b)
                    self.put("gdn_a", a)
                    return res

                gdn.fix_query_key_value_ordering = ordering
            else:
                self._hook(gdn.in_proj_z, "gdn_z")
                self._hook(gdn.in_proj_b, "gdn_b")
                self._hook(gdn.in_proj_a, "gdn_a")
            self._hook(gdn.norm, "gdn_norm")
            self._hook(gdn.out_proj, "gdn_out")

    def _router(self, module, inputs, output):
        logits, weights, ids = output
        if self.prefix is None:
            return
        top = logits.topk(module.top_k + 1, dim=-1).values if module.top_k < module.num_experts else None
        if top is not None:
            self.router_margins.append(float((top[:, -2] - top[:, -1]).min()))
            self.router_all.append(top[:, -2] - top[:, -1])
        self.router_ids[f"{self.prefix}/{self.layer}"] = ids.clone()
        if self.forced_router is not None:
            ids = self.forced_router[f"{self.prefix}/{self.layer}"]
            weights = logits.softmax(-1, dtype=torch.float).gather(-1, ids)
            if getattr(module, "norm_topk_prob", True):
                weights = weights / weights.sum(-1, keepdim=True)
            weights = weights.to(logits.dtype)
        self.put("router_logits", logits)
        self.put("router_topk_ids", ids)
        self.put("router_topk_weights", weights)
        return (logits, weights, ids) if self.forced_router is not None else None

    def _functions(self):
        mod = self.engine.module
        base = getattr(mod, "_assay_originals", None)
        if base is None:
            names = (
                "apply_rotary_pos_emb",
                "eager_attention_forward",
                "causal_conv1d_fn",
                "causal_conv1d_update",
                "l2norm",
                "torch_chunk_gated_delta_rule",
                "torch_recurrent_gated_delta_rule",
            )
            base = mod._assay_originals = {n: getattr(mod, n) for n in names if hasattr(mod, n)}

        def rope(q, k, *args, **kw):
            res = base["apply_rotary_pos_emb"](q, k, *args, **kw)
            self.put("q_rope", res[0].transpose(1, 2))
            self.put("k_rope", res[1].transpose(1, 2))
            return res

        def attention(*args, **kw):
            res = base["eager_attention_forward"](*args, **kw)
            if self.layer is not None:
                self.put("attn_context", res[0])
            return res

        def conv(which):
            def call(x, *args, **kw):
                before = x[:, :, -self.rows :].transpose(1, 2).clone()
                res = base[which](x, *args, **kw)
                self.put("gdn_qkv", before)
                self.put("gdn_conv", res[:, :, -self.rows :].transpose(1, 2))
                return res

            return call

        def l2norm(x, *args, **kw):
            res = base["l2norm"](x, *args, **kw)
            if self.l2 is not None:
                self.l2.append(res)
            return res

        def delta(which):
            def call(q, k, v, g, beta, **kw):
                self.l2 = []
                res = base[which](q, k, v, g=g, beta=beta, **kw)
                rep = self.cfg.linear_num_value_heads // self.cfg.linear_num_key_heads
                qn, kn = (t.transpose(1, 2)[:, :, ::rep] for t in self.l2)  # one row per key head
                self.l2 = None
                self.put("gdn_q", qn * qn.shape[-1] ** -0.5)
                self.put("gdn_k", kn)
                self.put("gdn_v", v)
                self.put("gdn_beta", beta)
                self.put("gdn_decay", g)
                self.put("gdn_core", res[0])
                return res

            return call

        wrapped = {"apply_rotary_pos_emb": rope, "eager_attention_forward": attention, "l2norm": l2norm}
        for n in ("causal_conv1d_fn", "causal_conv1d_update"):
            wrapped[n] = conv(n)
        for n in ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"):
            wrapped[n] = delta(n)
        for n in base:
            setattr(mod, n, wrapped[n])

    def step(self, prefix, ids, start, cache, full):
        self.prefix, self.full, self.rows = prefix, full, len(ids)
        pos = torch.arange(start, start + len(ids))[None]
        output = self.model(input_ids=torch.tensor([ids]), position_ids=pos, past_key_values=cache, use_cache=True)
        self.prefix, self.layer = None, None
        return output.logits[0]

    def mtp_step(self, prefix, ids, start, hidden, cache, full):
        self.prefix, self.full, self.rows = prefix, full, len(ids)
        pos = torch.arange(start, start + len(ids))[None]
        embeds = torch.nn.functional.embedding(torch.tensor([ids]), self.text.embed_tokens.weight)
        self.put("mtp_embed", embeds, layer=False)
        self.put("mtp_hidden", hidden, layer=False)
        x = self.mtp(embeds, hidden[None], pos, self.text.rotary_emb, cache)
        logits = self.model.lm_head(x)[0]
        self.prefix, self.layer = None, None
        return x[0], logits

    def states(self, prefix, cache, kv):
        for i, layer in enumerate(cache.layers):
            base = f"{prefix}/layer.{i}"
            if getattr(layer, "keys", None) is not None and kv:
                self.out[f"{base}/k"] = layer.keys[0].clone()
                self.out[f"{base}/v"] = layer.values[0].clone()
            if hasattr(layer, "conv_states"):
                self.out[f"{base}/conv_state"] = layer.conv_states[0][0].clone()
                self.out[f"{base}/recurrent_state"] = layer.recurrent_states[0][0].clone()


def clone_cache(cache, config):
    new = DynamicCache(config=config)
    for i, layer in enumerate(cache.layers):
        new.update(layer.keys.clone(), layer.values.clone(), i)
    return new


def run_prompt(cap, index, ids, full, states, forced=None):
    """Prefill, then greedy decode. `forced` feeds given ids instead of the own argmax."""
    name = f"prompt{index}"
    cfg = cap.cfg
    cache = DynamicCache(config=cfg)
    rows, greedy, margins = [], [], []

    def pick(logits):
        top = logits.double().topk(2)
        margins.append(float(top.values[0] - top.values[1]))
        greedy.append(int(logits.argmax()))
        return greedy[-1] if forced is None else forced[len(greedy) - 1]

    def tops(prefix, logits):
        top = logits.topk(min(cap.spec.get("logits_top", TOP), logits.shape[-1]), dim=-1)
        cap.out[f"{prefix}/logits_top_ids"] = top.indices
        cap.out[f"{prefix}/logits_top_values"] = top.values

    logits = cap.step(f"{name}/prefill/0", ids, 0, cache, full)
    if full:
        cap.out[f"{name}/prefill/0/logits"] = logits.clone()
    cap.out[f"{name}/prefill/0/logits_last"] = logits[-1:].clone()
    tops(f"{name}/prefill/0", logits)
    rows.append(logits)
    if states:
        cap.states(f"{name}/state/after_prefill", cache, kv=full)
    nxt = pick(logits[-1])
    mtp_ids = {}

    def margin(logits):
        top = logits.double().topk(2).values
        return float(top[0] - top[1])

    if cap.mtp is not None:
        mcache = DynamicCache(config=cap.mtp.config)
        hidden = cap.out[f"{name}/prefill/0/final_norm"]
        x, mlog = cap.mtp_step(f"{name}/mtp_prefill/0", ids[1:] + [nxt], 0, hidden, mcache, full)
        cap.out[f"{name}/mtp_prefill/0/logits_last"] = mlog[-1:].clone()
        draft, chain, mm = [int(mlog[-1].argmax())], clone_cache(mcache, cap.mtp.config), [margin(mlog[-1])]
        fed = draft[0] if forced is None else forced_draft(cap, index)[0]
        for k in range(1, 3):
            x, clog = cap.mtp_step(f"{name}/mtp_draft/{k}", [fed], len(ids) + k - 1, x[-1:], chain, full)
            cap.out[f"{name}/mtp_draft/{k}/logits"] = clog.clone()
            draft.append(int(clog[-1].argmax()))
            mm.append(margin(clog[-1]))
            fed = draft[-1] if forced is None else forced_draft(cap, index)[k]
        mtp_ids = {"draft": draft, "decode": [], "margins": mm}
    for s in range(cap.spec.get("greedy", GREEDY)):
        wide = full and s < cap.spec.get("full_decode", FULL_DECODE)
        pos = len(ids) + s
        logits = cap.step(f"{name}/decode/{s}", [nxt], pos, cache, wide)
        cap.out[f"{name}/decode/{s}/logits"] = logits.clone()
        tops(f"{name}/decode/{s}", logits)
        rows.append(logits)
        nxt = pick(logits[-1])
        if cap.mtp is not None:
            hidden = cap.out[f"{name}/decode/{s}/final_norm"]
            _, mlog = cap.mtp_step(f"{name}/mtp_decode/{s}", [nxt], pos, hidden, mcache, wide)
            cap.out[f"{name}/mtp_decode/{s}/logits"] = mlog.clone()
            mtp_ids["decode"].append(int(mlog[-1].argmax()))
            mm.append(margin(mlog[-1]))
    if states:
        cap.states(f"{name}/state/after_decode", cache, kv=True)
        if cap.mtp is not None:
            cap.out[f"{name}/state/after_decode/mtp.0/k"] = mcache.layers[0].keys[0].clone()
            cap.out[f"{name}/state/after_decode/mtp.0/v"] = mcache.layers[0].values[0].clone()
    return greedy, margins, mtp_ids, torch.cat(rows)


def forced_draft(cap, index):
    return cap.forced_drafts[index]
