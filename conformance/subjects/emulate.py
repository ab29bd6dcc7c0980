#!/usr/bin/env python3
"""Makes the dump of an emulated engine from an official case, under foreign names and layouts, with a fault if wished.

    emulate.py bf16 goldens/official/qwen3-odd --out DIR [--fault stale-v-row]     a bfloat16 engine
    emulate.py f32  goldens/official/qwen3-odd --out DIR                            the same engine in float32
    emulate.py tp2  goldens/official/trained-engine --out DIR [--fault one-rank]    two tensor-parallel ranks, float32
    emulate.py --list [SUBJECT CASE]                                                the faults, as JSON lines

Beside DIR it writes DIR.map, the map that brings the dump to our names (single.map or tp2.map with the model's
sizes). The ids of decode passes are the case's greedy ids, so that every pass can be compared. Exit 2: usage; 3: the
fault changed no byte of this case (not planted)."""

import argparse
import json
import re
import sys
import tempfile
from pathlib import Path

import numpy as np
from faults import VALUE_FAULTS, applies
from forward import Dense, run  # puts dumps/python on the path
from parallel import (
    PAGE,
    PARALLEL_FAULTS,
    RANKS,
    TwoRanks,
    block_table,
    padded_batch,
    paged_cache,
    rank_buffers,
    rows_table,
)

from assay_dump import Dump, DumpError, DumpWriter

HERE = Path(__file__).resolve().parent
# What these do to buffers and tables that were computed right: name -> (row, place, words).
BUFFER_FAULTS = {
    "pages-exchanged": (
        "E3",
        "state/after_prefill/layer.0/k",
        "two pages in one row of the block table are exchanged",
    ),
    "padding-as-token": ("E4", "rows", "the rows table calls one padding row a token"),
    "replica-drift": (
        None,
        "prefill/layer.1/ffn_norm",
        "rank 1 holds another value than rank 0 in a replicated buffer",
    ),
    "slot-unwritten": (
        None,
        "state/after_prefill/layer.{last}/v",
        "the last position's slot of the last layer was never written",
    ),
}
SINGLE_NAMES = {  # ours -> theirs, where one tensor becomes one
    "attn_norm": "input_layernorm",
    "q_rope": "self_attn.rotary_q",
    "k_rope": "self_attn.rotary_k",
    "attn_context": "self_attn.attn",
    "o_proj": "self_attn.o_proj",
    "attn_residual": "residual",
    "ffn_norm": "post_attention_layernorm",
    "ffn_act": "mlp.act",
    "down_proj": "mlp.down_proj",
    "ffn_residual": "output",
}


class Case:
    """A case's prompts and the ids that its decode passes consume. `full`: the prompt that it captures in full. short: the
    prompts up to that one and the decode passes that it captures in full, less than the case wants."""

    def __init__(self, folder, short=False):
        folder = Path(folder)
        try:
            manifest = json.loads((folder / "manifest.json").read_text())
            prompts = manifest["prompts"]
            self.full = next(i for i, p in enumerate(prompts) if p["full_capture"])
        except (OSError, KeyError, ValueError, StopIteration) as e:
            raise SystemExit(f"{folder}: not an official case: {e!r}; wanted a folder of goldens/official") from None
        self.name, self.model = manifest["case"], folder / manifest.get("model", "model")
        self.steps = manifest["decode"]["full_capture_steps" if short else "steps"]
        prompts = prompts[: self.full + 1] if short else prompts
        self.prompts = [p["ids"] for p in prompts]
        self.fed = [p["greedy_ids"][: self.steps] for p in prompts]


def write_single(engine, case, dump):
    """One sequence after another; fused qkv and gate_up, no values of the q and k norms, cache [position, kv head, d]."""
    for s, (ids, fed) in enumerate(zip(case.prompts, case.fed)):
        passes, greedy, caches = run(engine, ids, fed)
        dump.prompt(s, ids, greedy, fed)
        for step, p in enumerate(passes):
            for name, x in single_buffers(engine, p).items():
                dump.write(f"seq{s}/step{step}/model.{name}", x, dtype=engine.dtype)
        for when, (k, v) in zip(("after_prefill", "after_decode"), caches):
            for n in range(engine.c.layers):
                dump.write(f"seq{s}/{when}/k_cache.{n}", k[n], dtype=engine.dtype)
                dump.write(f"seq{s}/{when}/v_cache.{n}", v[n], dtype=engine.dtype)


def single_buffers(engine, p):
    out = {"embed_tokens": p["embed"]}
    for n in range(engine.c.layers):
        ours, theirs = f"layer.{n}/", f"layers.{n}."
        out[theirs + "self_attn.qkv_proj"] = np.concatenate([p[f"{ours}{x}_proj"] for x in "qkv"], axis=1)
        out[theirs + "mlp.gate_up"] = np.concatenate([p[ours + "gate_proj"], p[ours + "up_proj"]], axis=1)
        out |= {theirs + name: p[ours + phase] for phase, name in SINGLE_NAMES.items()}
    return out | {"norm": p["final_norm"], "lm_head": p["logits"]}


def write_parallel(engine, case, dump, fault):
    """All sequences in one padded batch per step; two ranks; paged cache."""
    sequences, lengths = [], [len(ids) for ids in case.prompts]
    for s, (ids, fed) in enumerate(zip(case.prompts, case.fed)):
        sequences.append(run(engine, ids, fed, lambda p: [rank_buffers(engine, p, r) for r in range(RANKS)]))
        dump.prompt(s, ids, sequences[-1][1], fed)
    for step in range(case.steps + 1):
        now = [1 if step else n for n in lengths]
        rows = max(now) + 1
        table = rows_table(now, [n + step - 1 if step else 0 for n in lengths], rows)
        if fault == "padding-as-token" and step == 0:
            table[now[0]] = [0, lengths[0], 0]  # the place of the first decode row
        dump.write(f"step{step}/rows", table)
        for r in range(RANKS):
            batch = padded_batch([passes[step][r] for passes, _, _ in sequences], rows, np.random.default_rng(step))
            if fault == "replica-drift" and r == 1 and step == 0:
                batch["layers.1.post_attention_layernorm"][0, 3] += 1e-3
            for name, x in batch.items():
                dump.write(f"rank{r}/step{step}/{name}", x)
    write_cache(engine, [caches for _, _, caches in sequences], lengths, case, dump, fault)


def write_cache(engine, caches, lengths, case, dump, fault):
    table, pages = block_table([n + case.steps for n in lengths], np.random.default_rng(20))
    mine = case.full  # the faults' sequence: the one whose cache the goldens have
    for w, when in enumerate(("after_prefill", "after_decode")):
        for r in range(RANKS):
            for n in range(engine.c.layers):
                cache = paged_cache([c[w] for c in caches], n, r, table, pages, engine.c.head_dim)
                if fault == "slot-unwritten" and w == 0 and n == engine.c.layers - 1:
                    last = lengths[mine] - 1
                    cache[1, table[mine, last // PAGE], last % PAGE] = 0
                dump.write(f"rank{r}/{when}/kv.{n}", cache)
    if fault == "pages-exchanged":
        table[mine, [0, 1]] = table[mine, [1, 0]]
    dump.write("block_table", table)


def engine_of(subject, fault, model):
    """The engine, with the fault where it is one of arithmetic."""
    if subject == "tp2":
        return PARALLEL_FAULTS.get(fault, TwoRanks)(model, "F32")
    return VALUE_FAULTS.get(fault, Dense)(model, {"bf16": "BF16", "f32": "F32"}[subject])


def options_of(engine):
    """What an engine says of itself; eps as the float32 that it computes with."""
    return {
        "rms_eps": float(np.float32(engine.eps)),
        "tied": engine.c.tied,
        "rope": {"theta": engine.theta, "rotary": engine.c.head_dim, "type": "default"},
    }


def write_dump(subject, case, out, fault=None, replace=False):
    engine = engine_of(subject, fault, case.model)
    if not applies(engine):
        raise SystemExit(f"{fault}: does not apply to {case.name}: {type(engine).__doc__.strip()}")
    with DumpWriter(
        out, replace=replace, engine={"name": f"emulated-{subject}", "version": "1"}, options=options_of(engine)
    ) as dump:
        if subject == "tp2":
            write_parallel(engine, case, dump, fault)
        else:
            write_single(engine, case, dump)
    return engine


def write_map(subject, engine, path):
    """The subject's map with this model's sizes."""
    text = (HERE / ("tp2.map" if subject == "tp2" else "single.map")).read_text()
    ranks = RANKS if subject == "tp2" else 1
    for name, size in (
        ("heads", engine.c.heads // ranks),
        ("kv", engine.c.kv_heads // ranks),
        ("all_kv", engine.c.kv_heads),
    ):
        text = re.sub(rf"(?m)^let {name} = \d+", f"let {name} = {size}", text)
    Path(path).write_text(text)


def faults_of(subject):
    return [*PARALLEL_FAULTS, *BUFFER_FAULTS] if subject == "tp2" else list(VALUE_FAULTS)


def list_faults(case):
    """One JSON line per fault; with a case, `applies` says whether it can show there, and places name its last layer."""
    for subject in ("bf16", "tp2"):
        for name in faults_of(subject):
            line = {"fault": name, "subject": subject}
            if name in BUFFER_FAULTS:
                line["row"], line["place"], line["what"] = BUFFER_FAULTS[name]
            else:
                cls = (PARALLEL_FAULTS if subject == "tp2" else VALUE_FAULTS)[name]
                line |= {"row": cls.row, "place": cls.place, "what": cls.__doc__.strip()}
            if case:
                try:
                    engine = engine_of(subject, name, case.model)
                    line["applies"] = applies(engine)
                    line["place"] = line["place"].format(last=engine.c.layers - 1)
                except SystemExit:
                    line["applies"] = False
            print(json.dumps(line))


def planted(subject, case, out, fault):
    """Did the fault change a byte of the values, or an option?"""
    with tempfile.TemporaryDirectory() as clean:
        write_dump(subject, case, Path(clean) / "d")
        theirs, clean = Dump(out, raw=True), Dump(Path(clean) / "d", raw=True)
        same = all(x.tobytes() == theirs[name].tobytes() for name, x in clean.items())
        return not same or clean.manifest["options"] != theirs.manifest["options"]


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("subject", nargs="?", choices=("bf16", "f32", "tp2"))
    ap.add_argument("case", nargs="?", type=Path, help="folder of an official case of llama, qwen2 or qwen3")
    ap.add_argument("--out", type=Path, metavar="DIR", help="the dump; its map becomes DIR.map")
    ap.add_argument("--fault", metavar="NAME", help="one of --list")
    ap.add_argument("--short", action="store_true", help="the prompts up to the one captured in full, its decode passes")
    ap.add_argument("--force", action="store_true", help="replace a finished dump")
    ap.add_argument(
        "--list", action="store_true", help="the faults as JSON lines; with SUBJECT and CASE, whether each applies"
    )
    args = ap.parse_args()
    if args.list:
        list_faults(args.case and Case(args.case))
        return 0
    if not (args.subject and args.case and args.out):
        ap.error("wanted SUBJECT CASE --out DIR, or --list")
    if args.fault and args.fault not in faults_of(args.subject):
        ap.error(f"--fault {args.fault}: wanted one of {' '.join(faults_of(args.subject))}")
    case = Case(args.case, args.short)
    engine = write_dump(args.subject, case, args.out, args.fault, args.force)
    write_map(args.subject, engine, args.out.with_name(args.out.name + ".map"))
    if args.fault and not planted(args.subject, case, args.out, args.fault):
        print(f"{args.fault}: not planted: no value and no option of {case.name} changed", file=sys.stderr)
        return 3
    print(f"{args.out}: {args.subject}, {case.name}" + (f", fault {args.fault}" if args.fault else ""))
    print(f"next: assay map {args.out} --map {args.out}.map")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (DumpError, OSError) as e:
        sys.exit(f"emulate.py: {e}")
