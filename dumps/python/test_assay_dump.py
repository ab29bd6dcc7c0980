"""Round trips of the Python writer and reader, also through the C++ side (ASSAY_DUMPS_TOOL) and the JSON Schema."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import numpy as np

import assay_dump
from assay_dump import DumpError, DumpWriter, read_dump

TOOL = os.environ.get("ASSAY_DUMPS_TOOL")
SCHEMA = Path(__file__).resolve().parent.parent / "schemas" / "manifest.schema.json"


def write_example(path, **options):
    rng = np.random.default_rng(7)
    values = {}
    with DumpWriter(path, engine={"name": "test"}, **options) as d:
        d.prompt(0, [3, 1, 4], greedy_ids=[1, 5])
        for name in ("F64", "F32", "F16", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8"):
            values[name] = (rng.standard_normal((5, 6)) * 10).astype(assay_dump._NUMPY[name])
        values["BOOL"] = np.array([[True, False], [False, True]])
        values["scalar"] = np.array(2.5)
        values["empty"] = np.zeros((0, 4), np.float32)
        values["strided"] = np.arange(12, dtype=np.float32).reshape(3, 4).T
        for name, array in values.items():
            d.write(name, array)
        d.write("bf16_bits", np.array([[0x3F80, 0xFFC1]], np.uint16), dtype="BF16")
        d.write("bf16_values", np.array([[1.0, 3.14159265, np.nan]], np.float32), dtype="BF16", role="phase", axes=["token", "hidden"])
        d.write("nan", np.array([[np.uint32(0xFFC12345)], [0x7F800000]], np.uint32).view(np.float32))
        d.not_materialised("prompt0/prefill/0/layer.0/up_proj")
    return values


class PythonDump(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.dir = Path(self.folder.name)

    def tearDown(self):
        self.folder.cleanup()

    def tool(self, *args):
        return subprocess.run([TOOL, *map(str, args)], capture_output=True, text=True)

    def test_round_trip(self):
        values = write_example(self.dir / "out")
        d = read_dump(self.dir / "out")
        for name, array in values.items():
            self.assertEqual(d[name].dtype, array.dtype, name)
            self.assertEqual(d[name].shape, array.shape, name)
            np.testing.assert_array_equal(d[name], array, name)
        np.testing.assert_array_equal(d["prompt0/ids"], [3, 1, 4])
        self.assertEqual(d["bf16_values"].dtype, np.float32)
        np.testing.assert_array_equal(d["bf16_values"], [[1.0, 3.140625, np.nan]])
        self.assertEqual(d["nan"].view(np.uint32)[0, 0], 0x7FC00000)
        self.assertEqual(read_dump(self.dir / "out", raw=True)["bf16_bits"].tolist(), [[0x3F80, 0x7FC0]])
        self.assertEqual(d.info["nan"]["non_finite"], 2)
        self.assertEqual(d.manifest["engine"], {"name": "test"})

    def test_bf16_rounds_to_nearest_even(self):
        x = np.array([0x3F808000, 0x3F818000, 0x3F80C000, 0x7F7FFFFF, 0x7F800001, 0xFF800000], np.uint32).view(np.float32)
        self.assertEqual(assay_dump.to_bf16_bits(x).tolist(), [0x3F80, 0x3F82, 0x3F81, 0x7F80, 0x7FC0, 0xFF80])

    def test_unfinished_is_refused_and_replaced(self):
        with self.assertRaises(RuntimeError):
            with DumpWriter(self.dir / "out") as d:
                d.write("a", np.zeros(3))
                raise RuntimeError("the engine died")
        with self.assertRaisesRegex(DumpError, "unfinished"):
            read_dump(self.dir / "out")
        write_example(self.dir / "out")
        with self.assertRaisesRegex(DumpError, "finished dump already"):
            DumpWriter(self.dir / "out")
        (self.dir / "mine").mkdir()
        (self.dir / "mine" / "thesis.txt").write_text("x")
        with self.assertRaisesRegex(DumpError, "no part of a dump"):
            DumpWriter(self.dir / "mine")

    def test_misuse_is_named(self):
        d = DumpWriter(self.dir / "out")
        d.write("a", np.zeros(3))
        for args, says in ((("a", np.zeros(1)), "twice"), (("a b", np.zeros(1)), "not a tensor name"),
                           (("c", np.zeros(1, np.complex64)), "wanted one of"), (("c", np.zeros(1), "F8"), "wanted one of")):  # fmt: skip
            with self.assertRaisesRegex(DumpError, says):
                d.write(*args)
        d.manifest["tensors"] = []
        with self.assertRaisesRegex(DumpError, "format itself"):
            d.finish()

    def test_broken_files_are_refused(self):
        write_example(self.dir / "out")
        part = self.dir / "out" / "part-0000.safetensors"
        good = part.read_bytes()
        for what, data in {
            "empty": b"", "cut header": good[:50], "cut data": good[:-1], "trailing": good + b"x",
            "long header": b"\xff" * 8 + good[8:], "no JSON": good[:8] + b"[" + good[9:],
        }.items():  # fmt: skip
            part.write_bytes(data)
            with self.assertRaises(DumpError, msg=what):
                read_dump(self.dir / "out")
        part.write_bytes(good)
        manifest = json.loads((self.dir / "out" / "manifest.json").read_text())
        manifest["tensors"].pop()
        (self.dir / "out" / "manifest.json").write_text(json.dumps(manifest))
        with self.assertRaisesRegex(DumpError, "disagree"):
            read_dump(self.dir / "out")

    @unittest.skipUnless(TOOL, "ASSAY_DUMPS_TOOL is not set")
    def test_cpp_reads_python(self):
        write_example(self.dir / "plain", hashes=False)
        result = self.tool("import", self.dir / "whole", self.dir / "plain")
        self.assertEqual(result.returncode, 0, result.stderr)
        result = self.tool("inspect", self.dir / "whole", "--verify", "--json", "--tensors")
        self.assertEqual(result.returncode, 0, result.stderr)
        facts = json.loads(result.stdout)
        self.assertEqual(facts["hash_faults"], [])
        self.assertEqual(facts["tensors"], len(read_dump(self.dir / "plain")))
        # The Python statistics agree with the C++ ones; the values survive bit by bit.
        plain, whole = read_dump(self.dir / "plain", raw=True), read_dump(self.dir / "whole", raw=True)
        for name in plain:
            self.assertEqual(plain[name].tobytes(), whole[name].tobytes(), name)
            for key in ("min", "max", "mean", "rms", "non_finite"):
                self.assertAlmostEqual(plain.info[name][key], whole.info[name][key], delta=1e-9 * (1 + abs(whole.info[name][key])), msg=name)
        if assay_dump.xxhash:
            write_example(self.dir / "hashed")
            hashed = read_dump(self.dir / "hashed")
            for name in whole:
                self.assertEqual(hashed.info[name]["xxh3_128"], whole.info[name]["xxh3_128"], name)
            result = self.tool("inspect", self.dir / "hashed", "--verify")
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
            self.assertIn("all values agree", result.stdout)

    @unittest.skipUnless(TOOL, "ASSAY_DUMPS_TOOL is not set")
    def test_exit_codes_of_the_tool(self):
        self.assertEqual(self.tool().returncode, 2)
        self.assertEqual(self.tool("inspect", self.dir / "absent").returncode, 2)
        self.assertEqual(self.tool("inspect", self.dir, "--odd").returncode, 2)

    def test_schema(self):
        try:
            import jsonschema
        except ImportError:
            self.skipTest("jsonschema is not installed")
        schema = json.loads(SCHEMA.read_text())
        jsonschema.Draft202012Validator.check_schema(schema)
        validator = jsonschema.Draft202012Validator(schema)
        write_example(self.dir / "out")
        write_example(self.dir / "plain", hashes=False, partial=True)
        folders = [self.dir / "out", self.dir / "plain"]
        if TOOL:
            self.assertEqual(self.tool("import", self.dir / "whole", self.dir / "plain").returncode, 0)
            folders.append(self.dir / "whole")
        for folder in folders:
            manifest = json.loads((folder / "manifest.json").read_text())
            self.assertEqual([e.message for e in validator.iter_errors(manifest)], [], folder)
        manifest["capture"]["mode"] = "stats"  # the last one has values, so it can't be a dump of statistics
        for change in (lambda m: None, lambda m: m.pop("tensors"), lambda m: m["format"].update(version=2),
                       lambda m: m["tensors"][0].update(dtype="F8"), lambda m: m["tensors"][0].pop("name"),
                       lambda m: m["tensors"][0].update(shape=[-1])):  # fmt: skip
            broken = json.loads(json.dumps(manifest))
            change(broken)
            self.assertFalse(validator.is_valid(broken))


if __name__ == "__main__":
    unittest.main()
