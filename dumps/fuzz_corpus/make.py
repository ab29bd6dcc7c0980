#!/usr/bin/env python3
"""Writes the seeds of the fuzz targets in dumps/ (dumps/fuzz_corpus/safetensors, manifest). They are committed; run this
again after a change of the format. Usage: make.py MANIFEST, the manifest that manifest_fuzz wrote for its own folder
(or any dump's)."""

import json
import struct
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def file_of(header, data=b"", length=None):
    text = header if isinstance(header, str) else json.dumps(header, separators=(",", ":"))
    return struct.pack("<Q", len(text) if length is None else length) + text.encode() + data


def tensor(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def main():
    seeds = {
        "empty": file_of({}),
        "one": file_of({"a": tensor("F32", [1], 0, 4)}, b"1234"),
        "two": file_of({"__metadata__": {"k": "v"}, "a": tensor("F64", [], 0, 8), "b": tensor("BF16", [2, 1], 8, 12)}, b"x" * 12),
        "zero": file_of({"z": tensor("I64", [0, 3], 0, 0), "m": tensor("BOOL", [3], 0, 3)}, b"\0\1\0"),
        "padded": file_of('{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}   ', b"1"),
        "overlap": file_of({"a": tensor("U8", [4], 0, 4), "b": tensor("U8", [4], 2, 6)}, b"123456"),
        "overflow": file_of({"a": tensor("F32", [1 << 62, 4], 0, 0)}),
        "nested": file_of('{"a":' + "[" * 40),
        "long": file_of({}, length=1 << 40),
    }
    (HERE / "safetensors").mkdir(exist_ok=True)
    for name, data in seeds.items():
        (HERE / "safetensors" / name).write_bytes(data)
    if len(sys.argv) > 1:
        (HERE / "manifest").mkdir(exist_ok=True)
        manifest = json.loads(Path(sys.argv[1]).read_text())
        (HERE / "manifest" / "full").write_text(json.dumps(manifest))
        bare = {k: v for k, v in manifest.items() if k not in ("hashes", "rows", "prompts")}
        bare["tensors"] = [{k: t[k] for k in ("name", "dtype", "shape", "file")} for t in manifest["tensors"]]
        (HERE / "manifest" / "no_hashes").write_text(json.dumps(bare))
        light = {k: v for k, v in manifest.items() if k != "rows"}
        light["capture"], light["files"] = {"mode": "stats"}, []
        (HERE / "manifest" / "stats").write_text(json.dumps(light))


if __name__ == "__main__":
    main()
