#!/usr/bin/env python3
"""The emulated engines: right without a fault, wrong from exactly the named place on with one. Needs numpy alone."""

import os
import tempfile
import unittest
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # tiny matrices

import emulate
import numpy as np
import parallel
from faults import VALUE_FAULTS, applies
from forward import ROOT, Dense, run

from assay_dump import read_dump

CASES = ROOT / "goldens/official"


def max_rel(x, golden, usual):
    """dumps/README.md: the worst row's largest deviation over its scale, not below a tenth of what is usual."""
    scale = np.maximum(np.abs(golden).max(axis=-1), max(0.1 * usual, 1e-300))
    return float((np.abs(x - golden).max(axis=-1) / scale).max())


def logical(passes):
    """(pass kind/phase, values) in execution order."""
    for step, phases in enumerate(passes):
        for name, x in phases.items():
            yield f"{'decode' if step else 'prefill'}/{name}", step, x


class Forward(unittest.TestCase):
    def test_without_a_fault_it_agrees_with_the_official_goldens(self):
        for case, dtype, limit in (
            ("qwen3-odd", "F64", 1e-13),
            ("llama-base", "F64", 1e-13),
            ("qwen2-bias", "F64", 1e-13),
            ("trained-engine", "F64", 2e-7),
            ("qwen3-odd", "F32", 1e-5),
            ("llama-base", "F32", 1e-5),
            ("qwen3-odd", "BF16", 6e-2),
            ("trained-engine", "BF16", 6e-2),
        ):
            golden, c = read_dump(CASES / case), emulate.Case(CASES / case, short=True)
            usual, compared = {}, 0
            for name, x in golden.items():
                place = "/".join(name.split("/")[3:])
                usual[place] = max(usual.get(place, 0.0), float(np.abs(x).max()))
            p = c.full
            passes, greedy, caches = run(Dense(c.model, dtype), c.prompts[p], c.fed[p])
            for name, step, x in logical(passes):
                kind, phase = name.split("/", 1)
                key = f"prompt{p}/{kind}/{step - 1 if step else 0}/{phase}"
                if key in golden:
                    compared += 1
                    self.assertLessEqual(max_rel(x, golden[key], usual[phase]), limit, f"{case} {dtype} {key}")
            self.assertGreater(compared, 100, case)
            self.assertEqual(greedy[: c.steps], c.fed[p], f"{case} {dtype}: greedy ids")
            for i, k in enumerate(caches[0][0]):
                self.assertLessEqual(
                    max_rel(k.swapaxes(0, 1), golden[f"prompt{p}/state/after_prefill/layer.{i}/k"], 0), 3 * limit
                )


class Faults(unittest.TestCase):
    def test_each_is_wrong_first_at_its_place(self):
        planted = set()
        for case in ("qwen3-odd", "trained-engine"):
            c = emulate.Case(CASES / case)
            clean = {}
            for name, fault in VALUE_FAULTS.items():
                dtype = "BF16" if name == "coarse-sums" else "F32"
                engine = fault(c.model, dtype)
                if not applies(engine):
                    continue
                ids = [3, 7, engine.c.vocab - 1, 11, 5]
                if dtype not in clean:
                    clean[dtype] = run(Dense(c.model, dtype), ids, [2, 9])[0]
                wrong = run(engine, ids, [2, 9])[0]
                first = next(
                    (n for (n, _, x), (_, _, y) in zip(logical(wrong), logical(clean[dtype])) if (x != y).any()), None
                )
                self.assertEqual(first, engine.place.format(last=engine.c.layers - 1), f"{case} {name}")
                planted.add(name)
        self.assertEqual(planted, set(VALUE_FAULTS))


class Parallel(unittest.TestCase):
    def setUp(self):
        self.case = emulate.Case(CASES / "llama-base", short=True)
        self.case.prompts, self.case.fed, self.case.full = self.case.prompts[:2], self.case.fed[:2], 1
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def dump(self, fault=None):
        out = Path(self.folder.name) / (fault or "clean")
        emulate.write_dump("tp2", self.case, out, fault)
        return read_dump(out)

    def test_shards_partial_sums_and_pages_hold_the_whole(self):
        d = self.dump()
        engine = parallel.TwoRanks(self.case.model)
        ids = self.case.prompts[1]
        passes, _, caches = run(engine, ids, self.case.fed[1])
        rows = d["step0/rows"]
        mine = np.flatnonzero((rows[:, 2] == 0) & (rows[:, 0] == 1))
        self.assertEqual(list(rows[mine, 1]), list(range(len(ids))))
        self.assertEqual(int((rows[:, 2] == 1).sum()), len(rows) - sum(map(len, self.case.prompts)))
        both = [
            {k.removeprefix(f"rank{r}/step0/"): x for k, x in d.items() if k.startswith(f"rank{r}/step0/")}
            for r in range(2)
        ]
        whole = both[0]["layers.1.o_proj"][mine] + both[1]["layers.1.o_proj"][mine]
        self.assertTrue((whole == passes[0]["layer.1/o_proj"]).all())
        q = engine.c.heads * engine.c.head_dim // 2
        fused = np.concatenate([b["layers.0.qkv_proj"][mine, :q] for b in both], axis=1)
        self.assertTrue((fused == passes[0]["layer.0/q_proj"]).all())
        self.assertTrue(
            (np.concatenate([b["layers.2.attn"] for b in both]).T[mine] == passes[0]["layer.2/attn_context"]).all()
        )
        pages, k = d["block_table"][1], caches[0][0][2]
        cache = np.concatenate([d[f"rank{r}/after_prefill/kv.2"] for r in range(2)], axis=3)
        for position in range(len(ids)):
            found = cache[0, pages[position // parallel.PAGE], position % parallel.PAGE]
            self.assertTrue((found.reshape(len(found), -1, 2).swapaxes(1, 2).reshape(found.shape) == k[position]).all())

    def test_each_fault_is_planted_and_only_there(self):
        clean = self.dump()
        for fault, place in (
            ("shard-order", "rank1/step0/layers.0.qkv_proj"),
            ("one-rank", "rank1/step0/layers.0.o_proj"),
            ("pages-exchanged", "block_table"),
            ("padding-as-token", "step0/rows"),
            ("replica-drift", "rank1/step0/layers.1.post_attention_layernorm"),
            ("slot-unwritten", "rank0/after_prefill/kv.2"),
        ):
            d = self.dump(fault)
            differ = [n for n, x in clean.items() if x.tobytes() != d[n].tobytes()]
            self.assertIn(place, differ, fault)
            self.assertNotIn("rank0/step0/layers.0.input_layernorm", differ, fault)
            if fault in emulate.BUFFER_FAULTS:
                self.assertLessEqual(len(differ), 2, fault)
        self.assertEqual(set(emulate.faults_of("tp2")), {"shard-order", "one-rank", *emulate.BUFFER_FAULTS})

    def test_a_model_that_two_ranks_cannot_share_is_refused(self):
        with self.assertRaisesRegex(SystemExit, "3 query heads; wanted a multiple of 2"):
            parallel.TwoRanks(CASES / "qwen3-odd/model")


if __name__ == "__main__":
    unittest.main()
