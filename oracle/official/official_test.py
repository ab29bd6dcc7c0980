#!/usr/bin/env python3
"""cases.json and the goldens in the tree tell of the same cases. Needs neither torch nor transformers."""

import json
import re
import subprocess
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
GOLDENS = HERE.parents[1] / "goldens/official"


class Cases(unittest.TestCase):
    def test_every_golden_has_its_spec_and_every_spec_its_golden(self):
        specs = json.loads((HERE / "cases.json").read_text())
        names = {c["name"] for c in specs["cases"]}
        self.assertEqual(
            names, {p.parent.name for p in GOLDENS.glob("*/manifest.json") if not p.parent.name.startswith("trained-")}
        )
        for case in specs["cases"]:
            spec = {**specs["defaults"], **case}
            manifest = json.loads((GOLDENS / case["name"] / "manifest.json").read_text())
            for key in ("family", "seed", "note", "tied"):
                self.assertEqual(spec.get(key, ""), manifest[key], f"{case['name']}: {key}")
            prompts = [[p["kind"], p["length"]] for p in manifest["prompts"]]
            self.assertEqual(spec["prompts"], prompts, case["name"])
            full = [i for i, p in enumerate(manifest["prompts"]) if p["full_capture"]]
            self.assertEqual([spec["full_prompt"]], full, case["name"])

    def test_the_pinned_versions_are_those_of_the_goldens(self):
        pinned = dict(re.findall(r"(?m)^(\w+)==(\S+)", (HERE / "requirements.txt").read_text()))
        for path in GOLDENS.glob("*/manifest.json"):
            manifest = json.loads(path.read_text())
            for package in ("transformers", "torch", "numpy"):
                self.assertEqual(manifest[package].split("+")[0], pinned[package], f"{path.parent.name}: {package}")


class Regenerate(unittest.TestCase):
    def test_a_wrong_call_is_refused_before_anything_is_installed(self):
        for words, text in (
            ([], "regenerate CASE"),
            (["all"], "regenerate CASE"),
            (["nosuch", "--out", "/tmp"], "no case nosuch"),
        ):
            done = subprocess.run([HERE / "regenerate", *words], capture_output=True, text=True)
            self.assertEqual(done.returncode, 2, words)
            self.assertIn(text, done.stderr)


if __name__ == "__main__":
    unittest.main()
