#!/usr/bin/env python3
"""What every adapter does with its engine: passes, forced ids, names, refusals. Needs numpy alone."""

import argparse
import sys
import tempfile
import unittest
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
from adapter import DumpWriter, Request, add_options, dump_requests, requests_of  # noqa: E402

from assay_dump import read_dump  # noqa: E402


class Counting:
    """An engine whose next id is the last one plus one."""

    def reset(self):
        self.calls = []

    def forward(self, ids, first):
        self.calls.append((list(ids), first))
        logits = np.zeros((len(ids), 16), dtype=np.float32)
        logits[np.arange(len(ids)), (np.asarray(ids) + 1) % 16] = 1
        return {"layer.0/q_rope": np.full((len(ids), 4), first, dtype=np.float32), "logits": logits}

    def states(self):
        return {"layer.0/k": np.zeros((1, sum(len(ids) for ids, _ in self.calls), 2), dtype=np.float16)}


class Passes(unittest.TestCase):
    def test_a_dump_has_the_passes_ids_and_states_of_every_prompt(self):
        engine = Counting()
        with tempfile.TemporaryDirectory() as tmp:
            with DumpWriter(Path(tmp) / "d") as dump:
                dump_requests(engine, [Request([3, 4, 5], 2), Request([7], 2, [1])], dump)
            d = read_dump(Path(tmp) / "d")
            self.assertEqual(engine.calls, [([7], 0), ([1], 1), ([2], 2)])
            self.assertEqual(d["prompt0/greedy_ids"].tolist(), [6, 7, 8])
            self.assertEqual(d["prompt1/greedy_ids"].tolist(), [8, 2, 3])
            self.assertEqual(d.manifest["prompts"][1]["fed_ids"], [1, 2])
            self.assertEqual(d["prompt0/prefill/0/layer.0/q_rope"].shape, (3, 4))
            self.assertEqual(d["prompt0/prefill/0/logits_last"].shape, (1, 16))
            self.assertEqual(float(d["prompt0/decode/1/layer.0/q_rope"][0, 0]), 4)
            self.assertEqual(d["prompt0/state/after_prefill/layer.0/k"].shape, (1, 3, 2))
            self.assertEqual(d["prompt0/state/after_decode/layer.0/k"].shape, (1, 5, 2))


class Options(unittest.TestCase):
    def requests(self, *words):
        ap = argparse.ArgumentParser()
        add_options(ap)
        return requests_of(ap.parse_args([*words, "--out", "x"]), lambda text: [len(text)], 16)

    def test_what_is_wrong_is_said(self):
        self.assertEqual(self.requests("--tokens", "1,2", "--prompt", "abc", "--decode", "3")[1], Request([3], 3))
        for words, text in (
            ((), "no prompt"),
            (("--tokens", "1,x"), "found '1,x'"),
            (("--tokens", "1,-2"), "found '1,-2'"),
            (("--tokens", "16"), "wanted ids below 16"),
            (("--tokens", "1", "--decode", "-1"), "found -1"),
            (("--tokens", "1", "--force-ids", "/nowhere"), "/nowhere"),
        ):
            with self.assertRaisesRegex(SystemExit, text):
                self.requests(*words)


if __name__ == "__main__":
    unittest.main()
