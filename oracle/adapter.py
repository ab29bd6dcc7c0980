"""What the adapters of other engines share: their options, and the passes that a dump wants of them.

An adapter gives `dump_requests` an object with

    reset()                   forgets the sequence
    forward(ids, first)       one pass at positions first, first+1, ...: {phase: [rows, columns]} in execution order, names as in
                              goldens/official/README.md without prompt and pass ("layer.0/q_rope"), "logits" for all rows
    states()                  {"layer.0/k": [kv head, position, head_dim], ...}, or {} where the engine shows none
"""

import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "dumps/python"))

from assay_dump import DumpError, DumpWriter  # noqa: E402, F401


@dataclass
class Request:
    ids: list
    decode: int
    forced: list = field(default_factory=list)  # ids that decode passes consume instead of the greedy ones


def add_options(ap):
    """The options that `assay dump` has, too, with the same meaning."""
    ap.add_argument(
        "--tokens", action="append", default=[], metavar="1,2,3", help="ids of one prompt; again for each further one"
    )
    ap.add_argument(
        "--prompt", action="append", default=[], metavar="TEXT", help="text of one prompt; again for each further one"
    )
    ap.add_argument("--decode", type=int, default=0, metavar="N", help="decode passes; N + 1 greedy ids")
    ap.add_argument(
        "--force-ids",
        type=Path,
        metavar="FILE",
        help="ids to feed in decode instead of the greedy ones, a line per prompt",
    )
    ap.add_argument("--out", type=Path, required=True, metavar="DIR")
    ap.add_argument("--force", action="store_true", help="replace a finished dump")


def parse_ids(text, where):
    try:
        ids = [int(i) for i in text.split(",")]
    except ValueError:
        ids = [-1]
    if min(ids) < 0:
        raise SystemExit(f"{where}: wanted ids like 1,2,3; found {text!r}")
    return ids


def requests_of(args, tokenize, vocab):
    """tokenize: text -> ids, called for --prompt only."""
    if args.decode < 0:
        raise SystemExit(f"--decode: wanted 0 or more; found {args.decode}")
    prompts = [parse_ids(t, "--tokens") for t in args.tokens] + [tokenize(t) for t in args.prompt]
    if not prompts:
        raise SystemExit("no prompt: wanted --tokens 1,2,3 or --prompt TEXT")
    lines = []
    if args.force_ids:
        try:
            lines = [line for line in args.force_ids.read_text().splitlines() if line.strip()]
        except OSError as e:
            raise SystemExit(f"--force-ids: {e}") from None
        if len(lines) != len(prompts):
            raise SystemExit(f"{args.force_ids}: wanted a line of ids per prompt, {len(prompts)}; found {len(lines)}")
    forced = [parse_ids(line, f"{args.force_ids}, line {i + 1}") for i, line in enumerate(lines)] or [[]] * len(prompts)
    for i, (ids, force) in enumerate(zip(prompts, forced)):
        if not ids:
            raise SystemExit(f"prompt{i}: no ids; wanted at least one")
        if max(ids + force) >= vocab:
            raise SystemExit(f"prompt{i}: id {max(ids + force)}; wanted ids below {vocab}")
        if len(force) > args.decode:
            raise SystemExit(
                f"{args.force_ids}, line {i + 1}: wanted at most --decode {args.decode} ids; found {len(force)}"
            )
    return [Request(ids, args.decode, force) for ids, force in zip(prompts, forced)]


def dump_requests(engine, requests, dump, floats=None):
    """Runs every request and writes its passes, states and ids into the DumpWriter `dump`. floats: the dtype of what
    the engine gives as float32, where that is BF16."""

    def write(name, x, role):
        dump.write(name, x, dtype=floats if x.dtype == np.float32 else None, role=role)

    for i, request in enumerate(requests):
        engine.reset()
        greedy, fed, step = [], [], list(request.ids)
        for s in range(request.decode + 1):
            to = f"prompt{i}/decode/{s - 1}/" if s else f"prompt{i}/prefill/0/"
            phases = engine.forward(step, len(request.ids) + s - 1 if s else 0)
            for phase, x in phases.items():
                write(to + phase, x, "phase")
            if s == 0:
                write(to + "logits_last", phases["logits"][-1:], "phase")
            for when in [w for w, at in (("after_prefill", 0), ("after_decode", request.decode)) if s == at]:
                for name, x in engine.states().items():
                    write(f"prompt{i}/state/{when}/{name}", x, "state")
            last = phases["logits"][-1]
            if np.isnan(last).any():
                raise SystemExit(f"{to}logits: a NaN in the last row: no greedy id can be chosen")
            greedy.append(int(last.argmax()))
            if s < request.decode:
                fed.append(request.forced[s] if s < len(request.forced) else greedy[-1])
                step = fed[-1:]
        dump.prompt(i, request.ids, greedy, fed)


def run(name, main):
    """An adapter's main with the exit codes of `assay`: 2 usage or input, 3 could not finish."""
    try:
        return main()
    except (DumpError, RuntimeError, OSError) as e:
        code, text = 3, e
    except SystemExit as e:
        if not isinstance(e.code, str):
            raise
        code, text = 2, e.code
    print(f"{name}: {text}", file=sys.stderr)
    return code


def finished(out, requests):
    print(f"{out}: {len(requests)} prompt{'s' * (len(requests) > 1)}, {requests[0].decode} decode passes")
    print(f"next: assay compare BASE {out} --level max_rel")
