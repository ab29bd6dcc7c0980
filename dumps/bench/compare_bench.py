#!/usr/bin/env python3
"""Races `assay compare` against numpy and against a plain read, on two dumps of 1 GiB, in one run.

Two dumps of --tensors f32 tensors [1024, 1024] are written (once): `base`, and targets that are equal but for one element
(`one`) or differ by float32 noise everywhere (`noise`). All files are in the page cache. Each way is run --reps times, the ways
taking turns; the best wall time counts (other load only ever adds). GB/s counts the bytes of both dumps. Ways:

    read            every byte of both dumps seen by --threads threads: what the machine can do at most
    numpy_f64       max_abs, max_rel, cosine, bit-equal share in float64: what one writes first
    numpy_f32       the same with reused float32 buffers and BLAS dots
    assay           assay compare --level max_rel: all metrics, from the values

One JSON line per target: GB/s of each way, assay's ratio to each by wall time and by CPU time (which other load disturbs
less), its peak memory, and whether it named the place. Absolute figures mean nothing on a shared machine; ratios within one
line do. The numpy ways leave out the row maxima, the locations and the ULPs that assay brings.

usage: compare_bench.py --assay build/assay [--dir DIR] [--tensors 256] [--reps 5] [--threads 2]
"""
import argparse
import concurrent.futures
import json
import os
import resource
import struct
import subprocess
import sys
import time

import numpy as np

SHAPE = (1024, 1024)
BYTES = 4 * SHAPE[0] * SHAPE[1]


def odd(n):
    return n * 200 // 256


def write_dump(path, n, value):
    """A dump in Assay's format (dumps/FORMAT.md): 64 tensors a file, statistics, no hashes."""
    if os.path.exists(os.path.join(path, "manifest.json")):
        return
    os.makedirs(path, exist_ok=True)
    files, tensors = [], []
    for first in range(0, n, 64):
        names = [f"prompt0/prefill/0/layer.{i}/ffn_residual" for i in range(first, min(n, first + 64))]
        head = {name: {"dtype": "F32", "shape": SHAPE, "data_offsets": [k * BYTES, (k + 1) * BYTES]} for k, name in enumerate(names)}
        text = json.dumps(head).encode()
        text += b" " * (-(8 + len(text)) % 4096)  # values begin on a page
        file = f"part-{first // 64:04}.safetensors"
        with open(os.path.join(path, file), "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text)
            for k, name in enumerate(names):
                x = value(first + k)
                f.write(x.tobytes())
                wide = x.astype(np.float64)
                tensors.append({"name": name, "dtype": "F32", "shape": SHAPE, "order": first + k, "file": file,
                                "min": float(x.min()), "max": float(x.max()), "mean": float(wide.mean()),
                                "rms": float(np.sqrt((wide * wide).mean())), "non_finite": 0})
        files.append({"name": file, "bytes": os.path.getsize(os.path.join(path, file))})
    manifest = {"format": {"name": "assay-dump", "version": 1}, "capture": {"mode": "full"}, "files": files, "tensors": tensors}
    with open(os.path.join(path, "manifest.json"), "w") as f:
        json.dump(manifest, f)


def make(root, n):
    rng = np.random.default_rng(1)
    seeds = rng.integers(1 << 62, size=n)

    def base(i):
        return np.random.default_rng(seeds[i]).standard_normal(SHAPE, dtype=np.float32)

    def one(i):
        x = base(i)
        if i == odd(n):
            x[777, 555] += 1e-3
        return x

    def noise(i):
        x = base(i)
        return x * (1 + 1e-6 * np.random.default_rng(seeds[i] + 1).standard_normal(SHAPE, dtype=np.float32))

    for name, value in (("base", base), ("one", one), ("noise", noise)):
        write_dump(os.path.join(root, name), n, value)


def arrays(path, n):
    out = []
    for first in range(0, n, 64):
        file = os.path.join(path, f"part-{first // 64:04}.safetensors")
        with open(file, "rb") as f:
            (head,) = struct.unpack("<Q", f.read(8))
        out.append(np.memmap(file, np.float32, "r", 8 + head).reshape(-1, *SHAPE))
    return [x for part in out for x in part]


def read(a, b, n, threads):
    """The or of all 64-bit words, 4 MiB at a time: numpy's loop for it is vectorised and lets go of the interpreter lock."""
    parts = [x.view(np.uint64) for x in arrays(a, n) + arrays(b, n)]
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(lambda x: int(np.bitwise_or.reduce(x, axis=None)), parts)) > 0


def numpy_f64(a, b, n, threads):
    found = []
    for i, (y, x) in enumerate(zip(arrays(a, n), arrays(b, n))):
        d = np.abs(x.astype(np.float64) - y.astype(np.float64))
        stats = (d.max(), (d / np.maximum(np.abs(y), 1e-12)).max(),
                 np.dot(x.ravel().astype(np.float64), y.ravel().astype(np.float64)) /
                 (np.linalg.norm(x.astype(np.float64)) * np.linalg.norm(y.astype(np.float64))),
                 np.mean(x.view(np.uint32) == y.view(np.uint32)))
        if stats[0] or stats[3] < 1:
            found.append(i)
    return found


def numpy_f32(a, b, n, threads):
    found, buf, mag = [], np.empty(SHAPE, np.float32), np.empty(SHAPE, np.float32)
    for i, (y, x) in enumerate(zip(arrays(a, n), arrays(b, n))):
        np.abs(np.subtract(x, y, out=buf), out=buf)
        np.maximum(np.abs(y, out=mag), np.float32(1e-12), out=mag)
        big = buf.max()
        np.divide(buf, mag, out=mag)
        xr, yr = x.ravel(), y.ravel()
        stats = (big, mag.max(), np.dot(xr, yr) / np.sqrt(np.dot(xr, xr) * np.dot(yr, yr)),
                 np.count_nonzero(x.view(np.uint32) == y.view(np.uint32)) / x.size)
        if stats[0] or stats[3] < 1:
            found.append(i)
    return found


def assay(program, a, b, threads, level, records):
    """Peak resident KiB (sampled: what wait4 tells includes this process before the exec), records."""
    p = subprocess.Popen([program, "compare", a, b, "--level", level, "--tol", "1e-6", "--threads", str(threads), "--json", records],
                         stdout=subprocess.DEVNULL)
    peak = 0
    while p.poll() is None:
        try:
            with open(f"/proc/{p.pid}/status") as f:
                text = f.read()
            if "VmHWM" in text and os.readlink(f"/proc/{p.pid}/exe") != os.readlink("/proc/self/exe"):
                peak = max(peak, int(text.split("VmHWM:")[1].split()[0]))
        except (OSError, IndexError):
            pass
        time.sleep(0.005)
    if p.returncode not in (0, 1):
        sys.exit(f"{program} compare ended with {p.returncode}")
    with open(records) as f:
        return peak, [json.loads(line) for line in f]


def cpu_seconds():
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--assay", required=True, help="the program")
    p.add_argument("--dir", default="/tmp/assay_compare_bench")
    p.add_argument("--tensors", type=int, default=256, help="of 4 MiB a dump")
    p.add_argument("--reps", type=int, default=5)
    p.add_argument("--threads", type=int, default=2)
    o = p.parse_args()
    make(o.dir, o.tensors)
    base = os.path.join(o.dir, "base")
    records = os.path.join(o.dir, "records.jsonl")
    total = 2 * o.tensors * BYTES
    for kind in ("one", "noise"):
        target = os.path.join(o.dir, kind)
        read(base, target, o.tensors, o.threads)  # into the page cache
        best, cpu, memory, last = {}, {}, 0, []
        for _ in range(o.reps):
            for name, way in (("read", read), ("numpy_f64", numpy_f64), ("numpy_f32", numpy_f32), ("assay", None)):
                c, t = cpu_seconds(), time.time()
                if way:
                    way(base, target, o.tensors, o.threads)
                else:
                    rss, last = assay(o.assay, base, target, o.threads, "max_rel", records)
                    memory = max(memory, rss)
                t, c = time.time() - t, cpu_seconds() - c
                best[name], cpu[name] = min(best.get(name, t), t), min(cpu.get(name, c), c)
        differing = [r["name"] for r in last if r["record"] == "tensor" and r["metrics"]["bits_equal"] < r["metrics"]["elements"]]
        at = [r["metrics"]["max_abs_at"] for r in last if r["record"] == "tensor" and r["name"].endswith(f"layer.{odd(o.tensors)}/ffn_residual")]
        right = len(differing) == o.tensors if kind == "noise" else (
            differing == [f"prompt0/prefill/0/layer.{odd(o.tensors)}/ffn_residual"] and (at[0]["row"], at[0]["column"]) == (777, 555))
        row = {"bench": "compare", "target": kind, "bytes": total, "threads": o.threads, "reps": o.reps,
               "GBps": {k: round(total / t / 1e9, 2) for k, t in best.items()},
               "assay_over": {k: round(best[k] / best["assay"], 2) for k in ("numpy_f32", "numpy_f64", "read")},
               "assay_over_by_cpu_time": {k: round(cpu[k] / cpu["assay"], 2) for k in ("numpy_f32", "numpy_f64", "read")},
               "assay_peak_MiB": memory // 1024, "place_right": right}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
