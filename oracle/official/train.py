#!/usr/bin/env python3
"""Trains the models of the trained-* cases, on a GPU; `regenerate` needs it only where their weights shall be others.

    train.py device --seconds 300 --out DIR       text, then all four trainings at once, one process each
    train.py train --case NAME --data DIR --seconds S --out DIR

Plain PyTorch with the tensor names of transformers; the official code only reads what it wrote.
"""

import argparse
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch._dynamo
from trained_nets import Flat, Net, loss_of, mtp_shapes, shapes
from trained_text import MODELS, make_text


class Step:
    """One training step, as a CUDA graph where possible."""

    def __init__(self, fn, flat, batch, length, device):
        self.fn, self.flat = fn, flat
        self.ids = torch.zeros(batch, length + 1, dtype=torch.long, device=device)
        self.sure = torch.ones(batch, length + 1, device=device)
        self.graph = None

    def body(self):
        loss, stats = self.fn(self.ids, self.sure)
        loss.backward()
        self.flat.update()
        return stats

    def capture(self, text):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.load(text)
                self.flat.set_lr(1e-5)
                self.body()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.stats = self.body()
        self.graph = graph

    def load(self, text):
        i = torch.randint(0, len(text), (len(self.ids),), device=text.device)
        rows = text[i]
        self.ids.copy_(rows[:, 0])
        self.sure.copy_(rows[:, 1])

    def __call__(self, text, lr):
        self.load(text)
        self.flat.set_lr(lr)
        if self.graph is not None:
            self.graph.replay()
            return self.stats
        return self.body()


def train(name, data, seconds, out, device, batch, seed, max_steps=None):
    spec = MODELS[name]
    torch._dynamo.config.recompile_limit = 64
    torch.manual_seed(seed)
    began = time.time()
    texts = {n: torch.from_numpy(np.load(data / f"text{n + 1}.npy")).to(device) for n in (256, 512)}
    flat = Flat(shapes(spec), spec, seed, device)
    flat.p.grad = torch.zeros_like(flat.p)
    cuda = device == "cuda"
    dt = torch.bfloat16 if cuda else torch.float32
    log = lambda *a: print(f"[{name} {time.time() - began:.0f}s]", *a, flush=True)
    log(f"{flat.p.numel()} parameters")

    def weights(sure):
        return 0.2 + 0.8 * sure[:, 1:]

    def trunk_loss(net):
        def fn(ids, sure):
            p = flat.views(dt)
            hidden, aux = net.trunk(ids[:, :-1], p)
            loss, ce = loss_of(net.logits(hidden, p), ids[:, 1:], weights(sure))
            s = sure[:, 1:].reshape(-1)
            stats = torch.stack([ce.mean().detach(), ((ce * s).sum() / s.sum()).detach()])
            return (loss + 0.02 * aux if aux is not None else loss), stats

        return fn

    def phase(make_fn, owner, end, peak, label, save):
        net, steps = None, None
        for compiled in (True, False) if cuda else (False,):
            try:
                net = Net(spec, device, dt, compiled)
                fn = make_fn(net)
                steps = {n: Step(fn, owner, batch * 256 // n, n, device) for n in (256, 512)}
                if cuda:
                    for n, s in steps.items():
                        s.capture(texts[n])
                break
            except Exception as e:  # noqa: BLE001 - a slower path exists
                log(f"compiled={compiled} failed: {type(e).__name__} {str(e)[:300]}")
                owner.p.grad = torch.zeros_like(owner.p)
                steps = {
                    n: Step(make_fn(Net(spec, device, dt, False)), owner, batch * 256 // n, n, device)
                    for n in (256, 512)
                }
        start, k, shown, saved = time.time(), 0, time.time(), time.time()
        log(f"{label}: ready, compiled={compiled}, graph={steps[256].graph is not None}")
        while time.time() < end and (max_steps is None or k < max_steps):
            done = (time.time() - start) / max(end - start, 1e-9) if max_steps is None else k / max_steps
            lr = peak * min(1.0, (k + 1) / 200) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(done, 1.0))))
            n = 512 if k % 4 == 3 else 256
            stats = steps[n](texts[n], lr)
            k += 1
            if k % 50 == 0 and cuda:
                torch.cuda.synchronize()
            if time.time() - shown > 15 or k == max_steps:
                shown = time.time()
                log(f"{label} step {k} lr {lr:.1e}", *(f"{x:.4f}" for x in stats.tolist()))
            if save and time.time() - saved > 45:
                saved = time.time()
                store()
        log(f"{label}: {k} steps")

    extra = []

    def store():
        from safetensors.torch import save_file

        tensors = {k: v.detach().to("cpu").contiguous() for o in [flat] + extra for k, v in o.views().items()}
        out.mkdir(parents=True, exist_ok=True)
        save_file(tensors, out / f"{name}.safetensors")

    share = 0.7 if spec.get("mtp") else 1.0
    phase(trunk_loss, flat, began + seconds * share, spec["lr"], "trunk", True)
    store()
    if spec.get("mtp"):
        head = Flat(mtp_shapes(spec), spec, seed + 1, device)
        head.p.grad = torch.zeros_like(head.p)
        flat.p.requires_grad_(False)
        frozen = {k: v.detach().clone() for k, v in flat.views(dt).items()}

        def mtp_loss(net):
            def fn(ids, sure):
                m = head.views(dt)
                with torch.no_grad():
                    hidden, _ = net.trunk(ids[:, :-1], frozen)
                w = weights(sure)
                one = net.mtp(hidden[:, :-1], ids[:, 1:-1], frozen, m)  # row t: predicts token t+2
                l1, ce1 = loss_of(net.logits(one, frozen), ids[:, 2:], w[:, 1:])
                back = torch.cat([hidden[:, :1], one[:, :-1]], 1)  # a draft's hidden for the row after
                two = net.mtp(back, ids[:, 1:-1], frozen, m)
                l2, ce2 = loss_of(net.logits(two, frozen), ids[:, 2:], w[:, 1:])
                s = sure[:, 2:].reshape(-1)
                return l1 + 0.4 * l2, torch.stack([((c * s).sum() / s.sum()).detach() for c in (ce1, ce2)])

            return fn

        extra.append(head)
        phase(mtp_loss, head, began + seconds, 2e-3, "mtp", True)
        store()


def device_main(args):
    began = time.time()
    data = Path(tempfile.gettempdir()) / "trained-text"
    make_text(data, args.n256, args.n512, max(1, (os.cpu_count() or 2) - 1))
    print(f"text made in {time.time() - began:.0f}s", flush=True)
    shares = {"trained-hybrid": 0.95, "trained-moe": 0.7, "trained-engine": 0.55, "trained-deep": 1.0}
    procs = []
    for name in args.only or MODELS:
        env = dict(os.environ, OMP_NUM_THREADS="2", TORCHINDUCTOR_COMPILE_THREADS="4", PYTHONUNBUFFERED="1")
        procs.append(
            subprocess.Popen(
                [
                    sys.executable,
                    __file__,
                    "train",
                    "--case",
                    name,
                    "--data",
                    str(data),
                    "--seconds",
                    str(args.seconds * shares[name]),
                    "--out",
                    str(args.out),
                ],
                env=env,
            )
        )
    bad = [p.wait() for p in procs]
    print("exit codes", bad, f"after {time.time() - began:.0f}s", flush=True)


def main():
    ap = argparse.ArgumentParser()
    sub = ap.add_subparsers(dest="verb", required=True)
    d = sub.add_parser("device")
    d.add_argument("--seconds", type=float, default=300)
    d.add_argument("--out", type=Path, required=True)
    d.add_argument("--n256", type=int, default=400000)
    d.add_argument("--n512", type=int, default=60000)
    d.add_argument("--only", nargs="*")
    t = sub.add_parser("train")
    t.add_argument("--case", required=True)
    t.add_argument("--data", type=Path, required=True)
    t.add_argument("--seconds", type=float, default=300)
    t.add_argument("--out", type=Path, required=True)
    t.add_argument("--batch", type=int, default=64)
    t.add_argument("--steps", type=int)
    t.add_argument("--seed", type=int, default=5)
    args = ap.parse_args()
    if args.verb == "device":
        device_main(args)
    else:
        train(
            args.case,
            args.data,
            args.seconds,
            args.out,
            "cuda" if torch.cuda.is_available() else "cpu",
            args.batch,
            args.seed,
            args.steps,
        )


if __name__ == "__main__":
    main()
