#!/usr/bin/env python3
"""Goldens, corpus and figures of the trained cases. goldens/official/README.md, "Trained cases", says what they mean.

trained_goldens.py --cases DIR [--only NAME ...]      the model folders of DIR are kept, everything else is made again
trained_goldens.py --cases DIR --weights DIR          models from what train.py wrote
"""

import argparse
import json
import random
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from transformers import DynamicCache

import make_cases as M
import models
import trained_text as T
from families import Engine

BOS, EOS, STEPS = T.BOS, T.EOS, 24
MARGIN = {"trained-engine": 1.5}  # nats, at every greedy step, in float32 and in bfloat16; else 0.5
DEEP_STAGES = ["ffn_residual", "attn_context", "q_rope", "final_norm"]


# ---------------------------------------------------------------- prompts whose continuation is known


def kv_prompt(r, n, hard, index, filler=0, length=None):
    pairs = T.kv_list(r, n, hard)
    t = T.Text()
    t.ids, t.sure = [BOS], [0]
    T.kv_head(t, pairs)
    if filler:
        T.story(r, t, filler, 0)
    t.add("!" + pairs[index][0], 0)
    head = list(t.ids)
    rest = "=" + pairs[index][1] + ";" + "".join(f"{k}={v};" for k, v in pairs[index + 1 : index + 9])
    if length is not None and not length - 8 <= len(head) <= length + 8:
        return kv_prompt(r, n, hard, index, filler, length)
    return head, list(rest.encode())


def prompt_of(kind, r):
    if kind == "needle_easy":
        return kv_prompt(r, 5, False, 1)
    if kind == "needle_hard":
        return kv_prompt(r, 12, True, r.randint(2, 6), 1)
    if kind == "long":
        return kv_prompt(r, 21, True, r.randint(3, 9), 1, 300)
    if kind == "copy":
        s = T.word(r, 30, 32)
        return [BOS, *f"C:{s}|".encode()], list(s.encode())
    if kind == "arithmetic":
        a, d = r.randint(1, 9), r.randint(2, 9)
        terms = [str(a + i * d) for i in range(14)]
        return [BOS, *("S:" + ",".join(terms[:2]) + ",").encode()], list((",".join(terms[2:]) + ",").encode())
    if kind == "sentence":
        fs = T.facts(r, 3)
        w, o, p = r.choice(fs)
        head = "T:" + "".join(T.say(*f) for f in fs) + f" Who has the {o}?"
        return [BOS, *head.encode()], list(T.say(w, o, p).encode())
    raise ValueError(kind)


KINDS = ("needle_easy", "needle_hard", "copy", "arithmetic", "sentence", "long")


def find_prompts(model, low, seed, want):
    """Per kind the first prompt that float32 and bfloat16 continue as known, with margins above the wanted ones;
    else the best."""
    close = []  # least router margin of each layer of the last forward pass

    def router(m, i, o):
        top = o[0].topk(m.top_k + 1, dim=-1).values
        close.append(float((top[:, -2] - top[:, -1]).min()))

    hooks = [m.register_forward_hook(router) for n, m in model.named_modules() if n.endswith("mlp.gate")]
    found = []
    for kind in KINDS:
        best, wanted = None, M.MARGIN_ROUTER_FULL if kind == "arithmetic" else M.MARGIN_ROUTER
        for attempt in range(150 if hooks else 60):
            head, rest = prompt_of(kind, random.Random(f"{seed}/{kind}/{attempt}"))
            rest = rest[: STEPS + 1]
            if len(rest) <= STEPS or (kind == "arithmetic" and len(head) > 10):
                continue
            least = []
            for m in (low, model):
                close.clear()
                top = m(input_ids=torch.tensor([head + rest])).logits[0, len(head) - 1 : -1].double().topk(2)
                good = bool((top.indices[:, 0] == torch.tensor(rest)).all())
                least.append(float((top.values[:, 0] - top.values[:, 1]).min()) if good else -1.0)
            gap = min(close) if hooks else 1.0
            score = (min(min(least) / want, 1.0), min(gap / wanted, 1.0), min(least))
            if best is None or score > best[0]:
                best = (score, head, attempt, gap)
            if score[:2] == (1.0, 1.0):
                break
        print(
            f"   {kind}: attempt {best[2]}, least margin of float32 and bfloat16 {best[0][2]:.2f}, {len(best[1])} tokens"
            + (f", router {best[3]:.1e}" if hooks else ""),
            flush=True,
        )
        found.append({"kind": kind, "ids": best[1]})
    for h in hooks:
        h.remove()
    return found


# ---------------------------------------------------------------- corpus and needles


def corpus_prompts(seed):
    out = []
    for i in range(24):
        r = random.Random(f"corpus/{seed}/{i}")
        task = T.TASKS[i % len(T.TASKS)]
        t = T.Text()
        t.ids, t.sure = [BOS], [0]
        for _ in range(r.randint(1, 3)):
            before = len(t.ids)
            task(r, t, 160)
            if len(t.ids) > 256 and before > 1:
                t.ids, t.sure = t.ids[:before], t.sure[:before]
                break
        out.append((task.__name__[5:], t.ids[:256], t.sure[:256]))
    return out


def nll(model, ids):
    logits = model(input_ids=torch.tensor([ids])).logits[0, :-1].double()
    return F.cross_entropy(logits, torch.tensor(ids[1:]), reduction="none")


def corpus_nll(model, prompts):
    per = [nll(model, ids) for _, ids, _ in prompts]
    sure = torch.cat([torch.tensor(s[1:]).bool() for _, _, s in prompts])
    whole = torch.cat(per)
    return per, float(whole.mean()), float(whole[sure].mean())


def needles(model, seed, count=50):
    """Share of queries whose whole value is the argmax: easy is a short list, hard shares prefixes, is long and has
    text in between."""
    out = {}
    for kind in ("easy", "hard"):
        right = 0
        for i in range(count):
            r = random.Random(f"needle/{seed}/{kind}/{i}")
            n = 5 if kind == "easy" else r.randint(10, 16)
            pairs = T.kv_list(r, n, kind == "hard")
            t = T.Text()
            t.ids, t.sure = [BOS], [0]
            T.kv_head(t, pairs)
            if kind == "hard":
                T.story(r, t, 1, 0)
            k, v = pairs[r.randrange(n)]
            head = t.ids + list(f"?{k}".encode())
            rest = list(f"={v};".encode())
            got = model(input_ids=torch.tensor([head + rest])).logits[0, len(head) - 1 : -1].argmax(-1)
            right += got.tolist() == rest
        out[kind] = right / count
    return out


# ---------------------------------------------------------------- MTP acceptance

VARIANTS = {
    "right": "concat [norm(embedding of token t+1), norm(hidden t after the final norm)], position t",
    "concat_swapped": "concat [hidden, embedding]",
    "no_embedding_norm": "pre_fc_norm_embedding left out",
    "no_hidden_norm": "pre_fc_norm_hidden left out",
    "w_for_1_plus_w": "w in place of 1 + w in all norms of the head",
    "w_for_1_plus_w_pre_fc": "the same in the two norms before fc only",
    "hidden_before_final_norm": "hidden t taken before the final norm",
    "position_plus_1_drafts": "drafted rows one position further than their pair, prefilled rows right",
    "position_plus_1_all": "all rows one position further: RoPE is relative, so this cannot be seen",
    "token_t": "embedding of token t in place of token t+1 in the prefilled rows",
}


def acceptance(engine, model, folder, prompts, records):
    """Per wiring: chains started, and how many had their first 1, 2, 3 drafts equal to the greedy ids."""
    head = M.load_mtp(engine, model, folder, torch.float64)
    bare, half = (M.load_mtp(engine, model, folder, torch.float64) for _ in range(2))
    for name, p in bare.named_parameters():
        if "norm" in name:
            p.data -= 1.0
    for n in ("pre_fc_norm_embedding", "pre_fc_norm_hidden"):
        getattr(half, n).weight.data -= 1.0
    embed = lambda ids: F.embedding(torch.tensor([ids]), model.model.embed_tokens.weight)
    before = []
    hook = model.model.norm.register_forward_pre_hook(lambda m, i: before.append(i[0]))
    runs = []
    for prompt, rec in zip(prompts, records):
        ids = prompt["ids"] + rec["greedy_ids"]
        before.clear()
        after = model.model(input_ids=torch.tensor([ids])).last_hidden_state
        runs.append((ids, len(prompt["ids"]), after, before[0]))
    hook.remove()
    table = {}
    for name in VARIANTS:
        h = bare if name == "w_for_1_plus_w" else half if name == "w_for_1_plus_w_pre_fc" else head

        def forward(e, x, pos, cache, h=h, name=name):
            e = e if name == "no_embedding_norm" else h.pre_fc_norm_embedding(e)
            x = x if name == "no_hidden_norm" else h.pre_fc_norm_hidden(x)
            x = h.fc(torch.cat([x, e] if name == "concat_swapped" else [e, x], -1))
            mask = h.module.create_causal_mask(
                config=h.config, inputs_embeds=x, attention_mask=None, past_key_values=cache, position_ids=pos
            )
            x = h.layers[0](
                x,
                position_embeddings=model.model.rotary_emb(x, pos[None].expand(3, -1, -1)),
                attention_mask=mask,
                position_ids=pos,
                past_key_values=cache,
                use_cache=True,
            )
            return h.norm(x)

        n, good = 0, [0, 0, 0]
        for ids, length, after, raw in runs:
            hidden = raw if name == "hidden_before_final_norm" else after
            rows = len(ids) - 1
            pos = torch.arange(rows)[None] + (name == "position_plus_1_all")
            cache = DynamicCache(config=h.config)
            out = forward(embed(ids[:-1] if name == "token_t" else ids[1:]), hidden[:, :rows], pos, cache)
            first = model.lm_head(out)[0].argmax(-1)
            for r in range(length - 1, len(ids) - 4):
                n += 1
                if int(first[r]) != ids[r + 2]:
                    continue
                good[0] += 1
                chain = DynamicCache(config=h.config)
                chain.update(
                    cache.layers[0].keys[:, :, : r + 1].clone(), cache.layers[0].values[:, :, : r + 1].clone(), 0
                )
                x, tok = out[:, r : r + 1], int(first[r])
                for k in (1, 2):
                    at = torch.tensor([[r + k + (name in ("position_plus_1_all", "position_plus_1_drafts"))]])
                    x = forward(embed([tok]), x, at, chain)
                    tok = int(model.lm_head(x)[0, -1].argmax())
                    if tok != ids[r + 2 + k]:
                        break
                    good[k] += 1
        table[name] = {
            "chains": n,
            "accepted_1": good[0] / n,
            "accepted_2": good[1] / n,
            "accepted_3": good[2] / n,
            "what": VARIANTS[name],
        }
    return table


# ---------------------------------------------------------------- rounded activations


def rounded(model, levels, prompts, corpus, records, seed):
    """Every input of a linear layer rounded per group of 32 to -levels..levels, the weights exact, float64 otherwise."""

    def pre(m, args):
        x = args[0]
        g = x.reshape(*x.shape[:-1], -1, 32)
        scale = g.abs().amax(-1, keepdim=True).clamp_min(1e-300) / levels
        return (((g / scale).round() * scale).reshape(x.shape),)

    exact = [model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1) for _, ids, _ in corpus]
    hooks = [m.register_forward_pre_hook(pre) for m in model.modules() if isinstance(m, torch.nn.Linear)]
    prefix = []
    for prompt, rec in zip(prompts, records):
        ids, n = prompt["ids"], 0
        logits = model(input_ids=torch.tensor([ids + rec["greedy_ids"][:-1]])).logits[0, len(ids) - 1 :]
        while n < len(rec["greedy_ids"]) and int(logits[n].argmax()) == rec["greedy_ids"][n]:
            n += 1
        prefix.append(n)
    _, mean, sure = corpus_nll(model, corpus)
    kl = torch.cat(
        [
            (e.exp() * (e - model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1))).sum(-1)
            for e, (_, ids, _) in zip(exact, corpus)
        ]
    )
    out = {
        "nll": mean,
        "nll_determined": sure,
        "kl_mean": float(kl.mean()),
        "kl_max": float(kl.max()),
        "greedy_prefix": prefix,
        "greedy_of": len(records[0]["greedy_ids"]),
        "needle": needles(model, seed, 25),
        "linear_layers": len(hooks),
    }
    for h in hooks:
        h.remove()
    return out


# ---------------------------------------------------------------- one case


def build_case(name, weights, out, seed, model_path=None):
    started = time.time()
    model_spec = T.MODELS[name]
    spec = {
        "name": name,
        "family": model_spec["family"],
        "tied": model_spec["tied"],
        "mtp": bool(model_spec.get("mtp")),
        "config": model_spec["config"],
        "extra_config": model_spec.get("extra_config", {}),
        "store": "BF16",
        "style": "new" if model_spec["family"] == "qwen3_5" else "legacy",
        "seed": seed,
        "greedy": STEPS,
        "full_decode": 2,
        "logits_top": 8,
        "full_prompt": KINDS.index("arithmetic"),
        "note": "trained on synthetic text (train_cases.py); byte-level, 256 begins a text, 257 ends a task",
    }
    if name == "trained-deep":
        spec |= {"stages": DEEP_STAGES, "states": False}
    case = out / name
    folder = (case / model_path) if model_path else case / "model"
    if model_path:
        case.mkdir(parents=True, exist_ok=True)
        spec["model"] = model_path
    else:
        spec["weights"] = str(weights)
        models.make_model(spec, folder)
    load = lambda f64, dtype: Engine(spec["family"], f64).load(models.model_class(spec), folder.resolve(), dtype)
    plain, low = load(False, torch.float32), load(False, torch.bfloat16)
    print(f"{name} (prompts of seed {seed})", flush=True)
    spec["prompts"] = find_prompts(plain, low, seed, MARGIN.get(name, 0.5))
    manifest = M.make_case(spec, out)
    records = manifest["prompts"]
    manifest["seed"] = {"prompts": seed, "training": 5}

    engine = Engine(spec["family"], True)
    model = engine.load(models.model_class(spec), folder.resolve(), torch.float64)
    corpus = corpus_prompts(seed)
    per, mean, sure = corpus_nll(model, corpus)
    with open(case / "corpus.jsonl", "w") as f:
        for i, ((kind, ids, det), x) in enumerate(zip(corpus, per)):
            f.write(
                json.dumps(
                    {
                        "name": f"held{i}",
                        "kind": kind,
                        "ids": ids,
                        "scored": len(x),
                        "nll": float(x.mean()),
                        "nll_sum": float(x.sum()),
                        "text": "".join(chr(c) if c < 256 else "\n" for c in ids[1:]),
                    }
                )
                + "\n"
            )
        f.write(
            json.dumps({"name": "all", "prompts": len(corpus), "scored": sum(len(x) for x in per), "nll": mean}) + "\n"
        )
    manifest["corpus"] = {
        "file": "corpus.jsonl",
        "prompts": len(corpus),
        "scored": sum(len(x) for x in per),
        "nll_unit": "nats per token; every token but the first is scored; mean over tokens",
        "nll_determined_is": "the same over those tokens that the text before them determines",
    }
    figures = {"float64": (mean, sure)}
    accuracy = {"float64": needles(model, seed)}
    agree = {}
    for label, m in (("float32", plain), ("bfloat16", low)):
        figures[label] = corpus_nll(m, corpus)[1:]
        accuracy[label] = needles(m, seed)
        agree[label] = free_greedy(m, spec["prompts"], records)
    manifest["nll"] = {k: {"mean": v[0], "determined": v[1]} for k, v in figures.items()}
    manifest["needle_accuracy"] = accuracy | {"queries": 50, "counted": "the whole value and its ; are the argmax"}
    manifest["greedy_prefix_free_running"] = agree
    if spec["mtp"]:
        manifest["mtp_acceptance"] = acceptance(engine, model, folder.resolve(), spec["prompts"], records)
    if name == "trained-deep":
        manifest["rounded_activations"] = {
            "what": "simulated: the input of every linear layer rounded per group of 32, scale = largest value / levels; float64 otherwise",
            "int8": rounded(model, 127, spec["prompts"], corpus, records, seed),
            "int16": rounded(model, 32767, spec["prompts"], corpus, records, seed),
        }
    M.write_manifest(case, manifest)
    print(f"   nll {figures} needle {accuracy} greedy {agree} {time.time() - started:.0f}s", flush=True)
    for k, v in manifest.get("mtp_acceptance", {}).items():
        print("   mtp", k, v["chains"], *(f"{v[f'accepted_{i}']:.3f}" for i in (1, 2, 3)))
    for k, v in manifest.get("rounded_activations", {}).items():
        print("   rounded", k, v)


def free_greedy(model, prompts, records):
    """Per prompt, how many ids a free run has in common with the golden ids before the first difference."""
    out = []
    for prompt, rec in zip(prompts, records):
        logits = model(input_ids=torch.tensor([prompt["ids"] + rec["greedy_ids"][:-1]])).logits[
            0, len(prompt["ids"]) - 1 :
        ]
        same = (logits.argmax(-1) == torch.tensor(rec["greedy_ids"])).long()
        out.append(int(same.cumprod(0).sum()))
    return out


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--cases", type=Path, required=True)
    ap.add_argument("--weights", type=Path, help="folder of train.py; without it the model folders of --cases are kept")
    ap.add_argument("--only", nargs="*", help="case names")
    args = ap.parse_args()
    for name in args.only or ("trained-hybrid", "trained-moe", "trained-engine", "trained-deep"):
        if args.weights:
            build_case(name, args.weights / f"{name}.safetensors", args.cases, 1)
        else:
            build_case(name, None, args.cases, 1, "model")


if __name__ == "__main__":
    main()
