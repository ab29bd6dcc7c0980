#!/usr/bin/env python3
"""Races assay against llama.cpp's llama-bench on the same files, interleaved, and prints the ratio of medians.

usage: bench/race_llama.py --llama-bench PATH [--assay build/assay] [--threads 1,2] [--prefill 128] [--decode 16] [--rounds 3] [--first]
                           [--device cuda] [--out FILE.jsonl] MODEL.gguf ...

Each round runs llama-bench, then assay with s16, then with s8, each in a process of its own with one repetition after a warm-up; a figure is
the median over the rounds. Absolute figures are of this machine in this hour: the ratio is what counts. --first asks the system to prefer
these processes (nice level and, on Linux, autogroup), on a machine that has other work. Models come from `assay synth` or `assay convert`.
--device cuda: all layers on the GPU, flash attention and one ubatch for the whole prompt on llama.cpp's side, graphs on both.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

LLAMA_PASS = {"prefill": lambda r: r["n_prompt"] > 0, "decode": lambda r: r["n_gen"] > 0}


def first_in_line():
    os.setsid()
    try:
        os.nice(-20)
        with open("/proc/self/autogroup", "w") as f:
            f.write("-15")
    except OSError:
        pass


def run(command, first):
    p = subprocess.run(command, capture_output=True, text=True, preexec_fn=first_in_line if first else None)
    if p.returncode:
        sys.exit(f"{' '.join(command)}\n{p.stderr[-1500:]}")
    return [json.loads(line) for line in p.stdout.splitlines() if line.startswith("{")]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", nargs="+")
    p.add_argument("--llama-bench", required=True)
    p.add_argument("--assay", default="build/assay")
    p.add_argument("--threads", default="1,2")
    p.add_argument("--prefill", type=int, default=128)
    p.add_argument("--decode", type=int, default=16)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--first", action="store_true")
    p.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    p.add_argument("--out")
    a = p.parse_args()
    passes = [("prefill", a.prefill), ("decode", a.decode)]
    theirs, ours, reference = [], [], "plain_read"
    if a.device == "cuda":
        theirs, ours, reference = ["-ngl", "99", "-fa", "1", "-ub", str(a.prefill or 512), "-b", "4096"], ["--backend", "cuda"], "copy"
    for model in a.model:
        for threads in a.threads.split(","):
            pin = [] if a.device == "cuda" else ["taskset", "-c", ",".join(map(str, sorted(os.sched_getaffinity(0))[: int(threads)]))]
            seen = {}
            share = []
            for _ in range(a.rounds):
                rows = run([*pin, a.llama_bench, "-m", model, "-t", threads, "-p", str(a.prefill), "-n", str(a.decode), "-r", "1", "-o", "jsonl", *theirs], a.first)
                for name, _ in passes:
                    seen.setdefault((name, "llama"), []).extend(r["avg_ts"] for r in rows if LLAMA_PASS[name](r))
                for kind in ("s16", "s8"):
                    rows = run([*pin, a.assay, "bench", model, "--threads", threads, "--prefill", str(a.prefill), "--decode", str(a.decode),
                                "--reps", "1", "--activations", kind, "--json", "-", *ours], a.first)
                    for r in rows:
                        seen.setdefault((r["pass"], kind), []).append(r["tokens_per_second"])
                        if r["pass"] == "decode" and kind == "s16":
                            share.append(r["tokens_per_second"] * r["bytes_per_pass"] / 1e9 / r[reference + "_gbps"])
            for name, count in passes:
                if count == 0:
                    continue
                m = {who: statistics.median(seen[(name, who)]) for who in ("llama", "s16", "s8")}
                row = {"model": os.path.basename(model), "device": a.device, "threads": int(threads), "pass": name, "tokens": count, "llama_tps": round(m["llama"], 2),
                       "s16_tps": round(m["s16"], 2), "s8_tps": round(m["s8"], 2), "s16_ratio": round(m["s16"] / m["llama"], 2),
                       "s8_ratio": round(m["s8"] / m["llama"], 2), "all": {who: [round(x, 2) for x in seen[(name, who)]] for who in m}}
                if name == "decode":
                    row["s16_share_of_" + reference] = round(statistics.median(share), 3)
                print(f"{row['model']:<40} t{threads} {name:<8} llama {m['llama']:8.2f}  s16 {m['s16']:8.2f} ({row['s16_ratio']:.2f}x)  "
                      f"s8 {m['s8']:8.2f} ({row['s8_ratio']:.2f}x)"
                      + (f"  s16 reads {100 * statistics.median(share):.0f}% of {reference.replace('_', ' ')}" if name == "decode" else ""), flush=True)
                if a.out:
                    with open(a.out, "a") as f:
                        f.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
