#!/usr/bin/env python3
"""Makes official cases: a tiny seeded model in the Hugging Face layout, and goldens that the official modelling code
(transformers) computed in float64. goldens/official/README.md says what every tensor is; `regenerate` is the usual
way in.

    make_cases.py --out DIR [--cases cases.json] [--only NAME ...]

A spec with "weights" (a safetensors file), or with "model" (an existing folder, given relative to the case), and
with prompts as {"kind", "ids"} makes a case of a trained model; trained_goldens.py does so."""

import argparse
import json
import re
import shutil
import time
from pathlib import Path

import numpy as np
import torch
import transformers
from capture import FULL_DECODE, GREEDY, Capture, run_prompt
from families import Engine
from models import MtpHead, make_model, model_class
from safetensors.torch import load_file, save_file
from transformers import DynamicCache

HERE = Path(__file__).resolve().parent
MARGIN_LOGIT = 0.02
MARGIN_ROUTER = 5e-4
MARGIN_ROUTER_FULL = 0.04  # above bfloat16 noise, so that the stage floors of the full capture hold no other experts


def make_prompt(kind, length, vocab, seed):
    rng = np.random.default_rng([seed, length])
    ids = rng.integers(0, vocab, length)
    if kind == "random":
        pass
    elif kind == "edges":  # first and last ids of the vocabulary
        ids[:: max(1, length // 4)] = 0
        ids[1 :: max(1, length // 3)] = vocab - 1
    elif kind == "last":
        ids[:] = vocab - 1
    elif kind == "constant":
        ids[:] = ids[0]
    elif kind == "alternate":
        ids[:] = np.where(np.arange(length) % 2 == 0, ids[0], ids[-1])
    elif kind == "repeat":  # the same chunk over and over
        chunk = ids[: max(1, length // 3)]
        ids = np.resize(chunk, length)
    elif kind == "ramp":
        ids = (ids[0] + np.arange(length)) % vocab
    elif kind == "burst":  # runs of one id, of growing length
        runs, i, run = ids.copy(), 0, 1
        while i < length:
            runs[i : i + run] = ids[i]
            i, run = i + run, run + 1
        ids = runs
    else:
        raise ValueError(kind)
    return [int(i) for i in ids]


# ---------------------------------------------------------------- one case


def stage_of(key):
    parts = key.split("/")
    return ("state/" + parts[-1]) if "state" in parts else parts[-1]


def scales(golden):
    """Largest absolute value of a stage in a layer, over all prompts and steps."""
    out = {}
    for key, b in golden.items():
        where = stage_of(key) + "/" + "/".join(key.split("/")[3:])
        out[where] = max(out.get(where, 0.0), float(b.abs().max()))
    return {key: out[stage_of(key) + "/" + "/".join(key.split("/")[3:])] for key in golden}


def deviation(a, b, usual):
    """max_abs, max_rel, max_rel_row; no scale is below a tenth of what is usual for the stage."""
    diff, size = (a.double() - b).abs(), b.abs()
    row = lambda t: t.reshape(-1, t.shape[-1]).max(1).values
    least = max(0.1 * usual, 1e-300)
    return (
        float(diff.max()),
        float(diff.max()) / max(float(size.max()), least),
        float((row(diff) / row(size).clamp_min(least)).max()),
    )


def noise_floor(other, golden, usual):
    floor = {}
    for key, b in golden.items():
        stage = stage_of(key)
        if stage.endswith("_ids") or stage == "logits_top_values":
            continue
        dev = deviation(other[key], b, usual[key])
        floor[stage] = [max(x, y) for x, y in zip(floor.get(stage, dev), dev)]
    return {k: dict(zip(("max_abs", "max_rel", "max_rel_row"), v)) for k, v in sorted(floor.items())}


def router_flips(other, golden):
    """Token-layer pairs whose set of experts differs, of how many."""
    flips = sum(int((other[k].sort(-1).values != ids.sort(-1).values).any(-1).sum()) for k, ids in golden.items())
    return f"{flips}/{sum(len(ids) for ids in golden.values())}"


def single_precision_share(golden):
    """Share of golden values that a float32 cannot hold; near 1 when the run was truly double."""
    share = {}
    for key, t in golden.items():
        if t.dtype != torch.float64:
            continue
        stage = stage_of(key)
        bad, n = share.get(stage, (0, 0))
        share[stage] = (bad + int((t.float().double() != t).sum()), n + int((t != 0).sum()))
    return {k: round(b / max(n, 1), 4) for k, (b, n) in sorted(share.items())}


def load_mtp(engine, model, folder, dtype):
    head = MtpHead(engine.module, model.config.get_text_config())
    head.config._attn_implementation = "eager"
    tensors = load_file(folder / "model.safetensors")
    state = {k[4:]: v for k, v in tensors.items() if k.startswith("mtp.")}
    head.load_state_dict(state)
    return head.to(dtype).eval()


def make_engine(spec, folder, f64, dtype):
    engine = Engine(spec["family"], f64)
    model = engine.load(model_class(spec), folder, dtype)
    mtp = load_mtp(engine, model, folder, dtype) if spec.get("mtp") else None
    return Capture(engine, model, spec, mtp)


def perturbation(cap, ids):
    """How far the last logits move when the embeddings move by 1e-12: nothing in between may round to single."""
    cfg = cap.cfg
    base = cap.step(None, ids, 0, DynamicCache(config=cfg), False)
    gen = torch.Generator().manual_seed(1)
    hook = cap.text.embed_tokens.register_forward_hook(
        lambda m, i, o: o + 1e-12 * torch.randn(o.shape, generator=gen, dtype=o.dtype)
    )
    moved = cap.step(None, ids, 0, DynamicCache(config=cfg), False)
    hook.remove()
    return float((moved - base).abs().max()), float(((moved - base) != 0).double().mean())


def short(x):
    """Floats of a manifest with five digits; they are summaries, not goldens."""
    if isinstance(x, float):
        return float(f"{x:.5g}")
    if isinstance(x, dict):
        return {k: short(v) for k, v in x.items()}
    return [short(v) for v in x] if isinstance(x, (list, tuple)) else x


def write_manifest(case, manifest):
    text = json.dumps(short(manifest), indent=1)
    text = re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda m: "[" + re.sub(r"\s*\n\s*", " ", m.group(1)) + "]", text)
    (case / "manifest.json").write_text(text + "\n")


def make_case(spec, out):
    started = time.time()
    name = spec["name"]
    case = out / name
    if case.exists() and spec.get("model") != "model":
        shutil.rmtree(case)
    case.mkdir(parents=True, exist_ok=True)
    folder = (case / spec.get("model", "model")).resolve()
    size = sum(f.stat().st_size for f in folder.iterdir()) if spec.get("model") else make_model(spec, folder)
    cap = make_engine(spec, folder, True, torch.float64)
    vocab = cap.cfg.vocab_size
    full_index = spec["full_prompt"]
    trained = isinstance(spec["prompts"][0], dict)
    state_index = {full_index} if trained else {full_index, len(spec["prompts"]) - 1}
    if spec.get("states") is False:
        state_index = set()
    prompts, golden, records, router_ids, router_all = [], {}, [], {}, []
    for i, prompt in enumerate(spec["prompts"]):
        kind, length = (prompt["kind"], len(prompt["ids"])) if trained else prompt
        best = None
        experts = i == full_index and getattr(cap.cfg, "num_experts", 0)
        wanted = MARGIN_ROUTER_FULL if experts else MARGIN_ROUTER
        for attempt in range(1 if trained else 150 if experts else 40):
            seed = spec["seed"] * 1000 + i * 200 + attempt
            ids = list(prompt["ids"]) if trained else make_prompt(kind, length, vocab, seed)
            cap.out, cap.router_margins, cap.router_ids, cap.router_all = {}, [], {}, []
            greedy, margins, mtp_ids, rows = run_prompt(cap, i, ids, i == full_index, i in state_index)
            router = min(cap.router_margins) if cap.router_margins else None
            least = min(margins + mtp_ids.get("margins", []))
            score = min(least / MARGIN_LOGIT, 1.0, (router / wanted) if router is not None else 1.0)
            score += 0.1 * min(len(set(greedy)), 4) / 4
            if best is None or score > best[0]:
                best = (score, ids, greedy, margins, router, mtp_ids, rows, cap.out, cap.router_ids, cap.router_all)
            if score >= 1.1:
                break
        _, ids, greedy, margins, router, mtp_ids, rows, kept, kept_ids, kept_margins = best
        if trained:  # leave out what would be bulky
            late = tuple(f"/mtp_decode/{s}/" for s in range(GREEDY, spec["greedy"]))
            kept = {
                k: v
                for k, v in kept.items()
                if not any(x in k for x in late)
                and (i == full_index or not k.endswith(("prefill/0/final_norm", "/mtp_norm")))
            }
        router_all += kept_margins
        golden.update(kept)
        router_ids.update(kept_ids)
        prompts.append(ids)
        rec = {
            "name": f"prompt{i}",
            "kind": kind,
            "length": length,
            "ids": ids,
            "greedy_ids": greedy,
            "margins": margins,
            "min_margin": min(margins),
            "router_min_margin": router,
            "full_capture": i == full_index,
            "states": i in state_index,
            "logits_std": float(rows.std()),
            "top1_prob_mean": float(rows.softmax(-1).max(-1).values.mean()),
        }
        if mtp_ids:
            rec["mtp_draft_ids"] = mtp_ids["draft"]
            rec["mtp_decode_ids"] = mtp_ids["decode"]
            rec["mtp_min_margin"] = min(mtp_ids["margins"])
        records.append(rec)
    for key, t in golden.items():
        assert t.dtype == (torch.int64 if key.endswith("_ids") else torch.float64), (key, t.dtype)
        assert bool(torch.isfinite(t.double()).all()), key
    share = single_precision_share(golden)
    moved, moved_share = perturbation(cap, prompts[full_index])

    floors, floors_other, flips, agree, free = {}, {}, {}, {}, {}
    mine = lambda key: key.startswith(f"prompt{full_index}/")
    usual = scales(golden)
    for label, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        other = make_engine(spec, folder, False, dtype)
        other.forced_drafts = {i: r.get("mtp_draft_ids") for i, r in enumerate(records)}
        if trained and router_ids:  # the experts of float64: a flip must not enter the floors
            for i, ids in enumerate(prompts):
                run_prompt(other, i, ids, i == full_index, False, forced=records[i]["greedy_ids"])
            free[label] = router_flips(other.router_ids, router_ids)
            other.forced_router, other.router_ids = router_ids, {}
        other.out = {}
        same = total = 0
        for i, ids in enumerate(prompts):
            fed = records[i]["greedy_ids"]
            greedy, _, _, _ = run_prompt(other, i, ids, i == full_index, i in state_index, forced=fed)
            same += sum(x == y for x, y in zip(greedy, fed))
            total += len(greedy)
        floors[label] = noise_floor(other.out, {k: v for k, v in golden.items() if mine(k)}, usual)
        floors_other[label] = noise_floor(other.out, {k: v for k, v in golden.items() if not mine(k)}, usual)
        if router_ids:
            flips[label] = {
                "full_capture_prompt": router_flips(other.router_ids, {k: v for k, v in router_ids.items() if mine(k)}),
                "other_prompts": router_flips(other.router_ids, {k: v for k, v in router_ids.items() if not mine(k)}),
            }
        agree[label] = f"{same}/{total}"

    for i, ids in enumerate(prompts):
        golden[f"prompt{i}/ids"] = torch.tensor(ids)
        golden[f"prompt{i}/greedy_ids"] = torch.tensor(records[i]["greedy_ids"])
    if trained:  # half the bytes where they are many
        exact = ("/logits", "/logits_last", "/final_norm", "/mtp_norm")
        for key, t in golden.items():
            if t.dtype == torch.float64 and not (mine(key) and key.endswith(exact)):
                golden[key] = t.float()
    save_file(
        {k: golden[k].contiguous() for k in sorted(golden)},
        case / "golden.safetensors",
        metadata={"source": f"{name}, float64, transformers {transformers.__version__}"},
    )
    text = cap.cfg
    provenance = (
        "official transformers modelling code, source patched to float64 (three textual substitutions, "
        "see official/README.md); eager attention, eager experts, batch 1, DynamicCache"
    )
    manifest = {
        "case": name,
        "family": spec["family"],
        "model_type": cap.model.config.model_type,
        "architecture": model_class(spec),
        "provenance": provenance,
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "seed": spec["seed"],
        "note": spec.get("note", ""),
        "storage": spec.get("store", "BF16"),
        "layer_types": list(getattr(text, "layer_types", None) or ["full_attention"] * text.num_hidden_layers),
        "rope_parameters": text.rope_parameters,
        "tied": spec["tied"],
        "decode": {
            "steps": spec.get("greedy", GREEDY),
            "full_capture_steps": spec.get("full_decode", FULL_DECODE),
            "rule": "greedy; step s consumes greedy_ids[s]",
        },
        "prompts": records,
        "model_bytes": size,
        "golden_bytes": (case / "golden.safetensors").stat().st_size,
        "checks": {
            "not_single_precision_share": share,
            "perturb_embed_1e-12": {"max_abs_logit_move": moved, "share_moved": moved_share},
        },
        "noise_floor": floors,
        "noise_floor_other_prompts": floors_other,
        "router_flips": flips,
        "greedy_agreement_teacher_forced": agree,
    }
    if trained:
        manifest["model"] = spec.get("model", "model")
    if free:
        manifest["router_flips_forced_upstream"] = manifest.pop("router_flips")
        manifest["router_flips"] = free
        manifest["router_note"] = (
            "noise floors are taken with the experts of float64; router_flips: token-layer pairs with other experts when the "
            "code chooses freely; router_flips_forced_upstream: the same, but the layers below had the experts of float64"
        )
        q = torch.cat(router_all).sort().values
        shares = (0.0, 0.001, 0.01, 0.05, 0.25, 0.5, 0.75)
        manifest["router_margin_quantiles"] = {str(f): float(q[int(f * (len(q) - 1))]) for f in shares}
    if spec.get("mtp"):
        manifest["mtp_provenance"] = (
            "official modules, own wiring: transformers ignores mtp.*; one official full-attention decoder layer, three "
            "official (1+w) norms, fc 2H->H on concat [norm(embedding), norm(hidden)], the hidden taken AFTER the final norm, "
            "shared embedding and lm_head"
        )
    write_manifest(case, manifest)
    (case / "golden.safetensors").chmod(0o644)
    print(
        f"{name}: model {size / 1e6:.2f} MB, golden {manifest['golden_bytes'] / 1e6:.2f} MB, "
        f"least margin {min(r['min_margin'] for r in records):.4f}, greedy agreement {agree}, router flips {flips}, "
        f"an input moved by 1e-12 moves the logits by {moved:.1e}, {time.time() - started:.0f} s",
        flush=True,
    )
    return manifest


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--cases", type=Path, default=HERE / "cases.json", help="dimensions, seeds and prompts")
    ap.add_argument("--out", type=Path, required=True)
    ap.add_argument("--only", nargs="*", help="case names")
    args = ap.parse_args()
    specs = json.loads(args.cases.read_text())
    for spec in specs["cases"]:
        if not args.only or spec["name"] in args.only:
            make_case({**specs["defaults"], **spec}, args.out)


if __name__ == "__main__":
    main()
