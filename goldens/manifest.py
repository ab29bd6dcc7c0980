#!/usr/bin/env python3
"""Checks goldens/MANIFEST.json against the files, or writes it anew.

    manifest.py            check: exit 1 names every changed, missing or unknown file
    manifest.py --write    write (a reviewed change: the diff shows what moved)

Every file below goldens/ is listed with its size and SHA-256; each set names its producer and the versions it was made with.
"""
import argparse
import hashlib
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
UNLISTED = {"MANIFEST.json", "manifest.py", "README.md"}


def producer(case: Path) -> dict:
    """Who made a set, from the set's own manifest."""
    path = case / "manifest.json"
    if path.exists():
        m = json.loads(path.read_text())
        keys = ("provenance", "package", "transformers", "torch", "numpy", "tokenizers", "tiktoken", "jinja2", "seed")
        return {k: m[k] for k in keys if k in m}
    if case.name == "smollm2.json":
        m = json.loads(case.read_text())
        return {k: m[k] for k in ("model", "gguf_sha256", "llama_cpp", "date", "machine")}
    return {}


def entries(folder: Path) -> dict:
    files = [folder] if folder.is_file() else sorted(p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    return {str(p.relative_to(ROOT)): {"bytes": p.stat().st_size, "sha256": hashlib.sha256(p.read_bytes()).hexdigest()} for p in files}


def build() -> dict:
    sets = {}
    for group in sorted(p for p in ROOT.iterdir() if p.is_dir() and p.name != "__pycache__"):
        for item in sorted(group.iterdir()):
            if item.name in UNLISTED or item.name == "__pycache__":
                continue
            sets[f"{group.name}/{item.name}"] = {"producer": producer(item), "files": entries(item)}
    return {"format": "assay goldens, 1", "sets": sets}


def main() -> int:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--write", action="store_true")
    args = ap.parse_args()
    path, now = ROOT / "MANIFEST.json", build()
    if args.write:
        path.write_text(json.dumps(now, indent=1) + "\n")
        print(f"wrote {path.name}: {len(now['sets'])} sets, {sum(len(s['files']) for s in now['sets'].values())} files")
        return 0
    listed = {f: e for s in json.loads(path.read_text())["sets"].values() for f, e in s["files"].items()}
    found = {f: e for s in now["sets"].values() for f, e in s["files"].items()}
    bad = [f"missing: goldens/{f}" for f in sorted(listed.keys() - found.keys())]
    bad += [f"not in MANIFEST.json: goldens/{f}" for f in sorted(found.keys() - listed.keys())]
    bad += [f"changed: goldens/{f}: wanted {listed[f]['sha256'][:16]} ({listed[f]['bytes']} bytes), found {found[f]['sha256'][:16]} ({found[f]['bytes']} bytes)"
            for f in sorted(listed.keys() & found.keys()) if listed[f] != found[f]]
    for line in bad:
        print(line)
    print(f"{len(found)} files checked, {len(bad)} bad" + ("; next: git diff goldens/, or goldens/manifest.py --write after review" if bad else ""))
    return 1 if bad or not found else 0


if __name__ == "__main__":
    sys.exit(main())
