"""Tiny models: seeded weights, Hugging Face folders in both spellings, and the head for multi-token prediction."""

import copy
import importlib
import json
import re
import shutil
import zlib

import numpy as np
import torch
from families import FAMILIES, ZERO_CENTRED, Engine
from safetensors.torch import load_file, save_file

# ---------------------------------------------------------------- weights


def name_rng(seed, name):
    return np.random.default_rng([seed, zlib.crc32(name.encode())])


def bf16_round(x):
    return torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32)).to(torch.bfloat16).to(torch.float32)


def init_weights(named_shapes, spec):
    """Weights by name: every tensor has its own random stream, so order does not matter."""
    init = spec.get("init", {})
    zero_centred = spec["family"] in ZERO_CENTRED
    out = {}
    for name, shape in named_shapes:
        rng = name_rng(spec["seed"], name)
        n = lambda std: rng.standard_normal(shape) * std
        if name.endswith("A_log"):
            w = np.log(rng.uniform(*init.get("A", [1.0, 16.0]), size=shape))
        elif name.endswith("dt_bias"):
            dt = np.exp(rng.uniform(np.log(1e-3), np.log(init.get("dt_max", 0.1)), size=shape))
            w = dt + np.log(-np.expm1(-dt))
            if init.get("fast_head") is not None:  # one head that forgets at once
                w[init["fast_head"]] = 1.0
        elif name.endswith("conv1d.weight"):
            w = n(0.6)
            if init.get("faint_head") is not None:  # q and k nearly zero: the epsilon of the l2 norm counts
                heads, dim = spec["config"]["linear_num_key_heads"], spec["config"]["linear_key_head_dim"]
                for first in (init["faint_head"] * dim, (heads + init["faint_head"]) * dim):
                    w[first : first + dim] *= 2e-3
        elif ".visual." in name or name.startswith("visual."):
            w = n(0.05)
        elif name.endswith("linear_attn.norm.weight"):
            w = 1.0 + n(0.25)
        elif re.search(r"norm[^.]*\.weight$", name):
            w = n(0.3) if zero_centred else 1.0 + n(init.get("norm_spread", 0.25))
            if init.get("outlier"):  # a few channels far off, as real models have
                w.reshape(-1)[rng.integers(0, w.size, 2)] *= 6.0
        elif name.endswith(".bias"):
            w = n(init.get("bias", 0.5))
            if "k_proj" in name:
                w.reshape(-1)[rng.integers(0, w.size, 2)] *= 8.0
        elif name.endswith("embed_tokens.weight"):
            w = n(init.get("embed", 3.0 / np.sqrt(shape[-1]) if spec["tied"] else 1.0))
        elif name.endswith("lm_head.weight"):
            w = n(init.get("head", 2.0) / np.sqrt(shape[-1]))
        elif name.endswith("mlp.gate.weight"):
            w = n(init.get("router", 2.0) / np.sqrt(shape[-1]))
        elif name.endswith("shared_expert_gate.weight"):
            w = n(1.5 / np.sqrt(shape[-1]))
        elif name.endswith(("in_proj_a.weight", "in_proj_b.weight", "in_proj_ba.weight")):
            w = n(1.0 / np.sqrt(shape[-1]))
        else:  # fan-in is the last axis in every linear weight
            gain = init.get("gain", 1.0) * (1.0 + 0.5 * rng.random())
            w = n(gain / np.sqrt(shape[-1]))
        out[name] = bf16_round(w)
    return out


# ---------------------------------------------------------------- model folders


def build_config(spec):
    modname, text_cls, _, nested_cls, _ = FAMILIES[spec["family"]]
    cfgmod = importlib.import_module(f"transformers.models.{modname}.configuration_{modname}")
    text = dict(spec["config"])
    text["tie_word_embeddings"] = spec["tied"]
    if not spec.get("nested"):
        return getattr(cfgmod, text_cls)(**text)
    return getattr(cfgmod, nested_cls)(
        text_config=text, vision_config=spec["vision"], tie_word_embeddings=spec["tied"], **spec.get("top", {})
    )


def model_class(spec):
    return FAMILIES[spec["family"]][4 if spec.get("nested") else 2]


MTP_SHARED = ("mtp.fc.weight", "mtp.norm.weight", "mtp.pre_fc_norm_embedding.weight", "mtp.pre_fc_norm_hidden.weight")


def mtp_config(text_config):
    cfg = copy.deepcopy(text_config)
    cfg.num_hidden_layers = 1
    cfg.layer_types = ["full_attention"]
    return cfg


class MtpHead(torch.nn.Module):
    """Own wiring of official modules, see README.md."""

    def __init__(self, module, text_config):
        super().__init__()
        prefix = "Qwen3_5Moe" if "moe" in text_config.model_type else "Qwen3_5"
        norm = lambda: getattr(module, prefix + "RMSNorm")(text_config.hidden_size, eps=text_config.rms_norm_eps)
        self.config = mtp_config(text_config)
        self.pre_fc_norm_embedding = norm()
        self.pre_fc_norm_hidden = norm()
        self.fc = torch.nn.Linear(2 * text_config.hidden_size, text_config.hidden_size, bias=False)
        self.layers = torch.nn.ModuleList([getattr(module, prefix + "DecoderLayer")(self.config, 0)])
        self.norm = norm()
        self.module = module

    def forward(self, embeds, hidden, positions, rotary, cache):
        x = torch.cat([self.pre_fc_norm_embedding(embeds), self.pre_fc_norm_hidden(hidden)], dim=-1)
        x = self.fc(x)
        mask = self.module.create_causal_mask(
            config=self.config, inputs_embeds=x, attention_mask=None, past_key_values=cache, position_ids=positions
        )
        cos_sin = rotary(x, positions[None].expand(3, -1, -1))
        x = self.layers[0](
            x,
            position_embeddings=cos_sin,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
        )
        return self.norm(x)


def style_config(path, spec):
    """Older checkpoints name things differently; both spellings must be read."""
    cfg = json.loads(path.read_text())
    cfg.pop("transformers_version", None)
    parts = [cfg] + ([cfg["text_config"]] if "text_config" in cfg else [])
    for part in parts:
        part.pop("_name_or_path", None)
        for k in [k for k, v in part.items() if v is None and k not in ("rope_scaling", "sliding_window")]:
            part.pop(k)
    text = parts[-1]
    for k, v in spec.get("extra_config", {}).items():
        text[k] = v
    if spec.get("style") == "legacy":
        rope = text.pop("rope_parameters")
        text["rope_theta"] = rope.pop("rope_theta")
        if "partial_rotary_factor" in rope:
            text["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
        if rope.get("rope_type") == "default" and len(rope) == 1:
            text["rope_scaling"] = None
        else:
            text["rope_scaling"] = rope
        for part in parts:
            if "dtype" in part:
                part["torch_dtype"] = part.pop("dtype")
    path.write_text(json.dumps(cfg, indent=2, sort_keys=True) + "\n")


def make_model(spec, folder):
    """Build, initialise and save the official model; returns the number of bytes."""
    if folder.exists():
        shutil.rmtree(folder)
    engine = Engine(spec["family"], f64=False)
    config = build_config(spec)
    with torch.device("cpu"):
        model = getattr(engine.module, model_class(spec))(config)
    shapes = [(n, tuple(p.shape)) for n, p in model.named_parameters()]
    given = {k: v.float() for k, v in load_file(spec["weights"]).items()} if spec.get("weights") else None
    weights = given or init_weights(shapes, spec)
    for name, param in model.named_parameters():
        param.data.copy_(weights[name])
    store = torch.bfloat16 if spec.get("store", "BF16") == "BF16" else torch.float32
    model.to(store)
    model.config.dtype = store
    model.save_pretrained(folder)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    if spec.get("fused_experts"):  # as the real checkpoints of this family store them
        tensors = {k: v for k, v in tensors.items() if ".mlp.experts." not in k}
        tensors.update({k: v for k, v in model.state_dict().items() if ".mlp.experts." in k})
    if spec.get("mtp"):
        head = MtpHead(engine.module, config.get_text_config())
        mtp = {"mtp." + n: tuple(p.shape) for n, p in head.named_parameters()}
        mtp = {n: given[n] for n in mtp} if given else init_weights(list(mtp.items()), spec)
        tensors.update({k: v.to(store) for k, v in mtp.items()})
    for name in tensors:  # real hybrid checkpoints mix storage types
        if spec.get("f32_tensors") and re.search(spec["f32_tensors"], name):
            tensors[name] = tensors[name].float()
    save_file({k: tensors[k].contiguous() for k in sorted(tensors)}, path, metadata={"format": "pt"})
    style_config(folder / "config.json", spec)
    gen = folder / "generation_config.json"
    if gen.exists():
        gen.unlink()
    path.chmod(0o644)
    return sum(f.stat().st_size for f in folder.iterdir())
