#!/usr/bin/env python3
"""Writes an Assay dump of a Hugging Face folder as the official code (transformers) computes it.

    oracle/official/dump_hf.py FOLDER --tokens 1,2,3 --decode 8 --out DIR [--dtype float64|float32|bfloat16]

float64 is the run that the official goldens come from (goldens/official/README.md); float32 and bfloat16 are the
code as it is published. Families: llama olmo2 qwen2 qwen3 qwen3_moe qwen3_next qwen3_vl qwen3_5 qwen3_5_moe, on the CPU.
The packages go into a virtual environment below .cache/ at the first call. Exit 2: usage or input; 77: the packages
can't be had."""

import argparse
import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]
import venv_of  # noqa: E402

if __name__ == "__main__" and not {"-h", "--help"} & set(sys.argv):
    venv_of.enter("official", HERE / "requirements.txt")

import torch  # noqa: E402
import transformers  # noqa: E402
from adapter import DumpWriter, add_options, dump_requests, finished, requests_of, run  # noqa: E402
from capture import Capture  # noqa: E402
from families import FAMILIES, Engine  # noqa: E402
from transformers import DynamicCache  # noqa: E402

DTYPES = {"float64": (torch.float64, "F64"), "float32": (torch.float32, "F32"), "bfloat16": (torch.bfloat16, "BF16")}


class Official:
    """The official model of a folder. What it offers: see adapter.py."""

    def __init__(self, folder, dtype):
        path = folder / "config.json"
        try:
            config = json.loads(path.read_text())
        except (OSError, ValueError) as e:
            raise SystemExit(f"{path}: {e}; wanted a Hugging Face folder") from None
        text_type = config.get("text_config", config)["model_type"]
        family = next((f for f in FAMILIES if text_type in (f, f + "_text")), None)
        if family is None:
            raise SystemExit(f"{path}: model_type {text_type}; wanted one of {' '.join(FAMILIES)}")
        nested = "text_config" in config
        engine = Engine(family, dtype == torch.float64)
        model = engine.load(FAMILIES[family][4 if nested else 2], folder, dtype)
        self.capture = Capture(engine, model, {"family": family, "nested": nested})
        self.family, self.config, self.cache = family, self.capture.cfg, None
        self.vocab = self.config.vocab_size

    def reset(self):
        self.cache = DynamicCache(config=self.config)

    def forward(self, ids, first):
        self.capture.out = {}
        logits = self.capture.step("pass", ids, first, self.cache, True)
        out = {name.removeprefix("pass/"): x for name, x in self.capture.out.items()}
        return {name: array_of(x) for name, x in {**out, "logits": logits}.items()}

    def states(self):
        self.capture.out = {}
        self.capture.states("state", self.cache, True)
        return {name.removeprefix("state/"): array_of(x) for name, x in self.capture.out.items()}


def array_of(x):
    """numpy has no bfloat16: such values come as float32, which the writer rounds back without a change."""
    return (x.float() if x.dtype == torch.bfloat16 else x).contiguous().numpy()


def tokenizer_of(folder):
    def tokenize(text):
        try:
            return transformers.AutoTokenizer.from_pretrained(folder)(text)["input_ids"]
        except (OSError, ValueError) as e:
            raise SystemExit(
                f"--prompt: {folder} has no tokenizer that transformers reads: {e}; give --tokens"
            ) from None

    return tokenize


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("folder", type=Path, metavar="FOLDER")
    add_options(ap)
    ap.add_argument("--dtype", choices=DTYPES, default="float64")
    args = ap.parse_args()
    dtype, name = DTYPES[args.dtype]
    engine = Official(args.folder, dtype)
    requests = requests_of(args, tokenizer_of(args.folder), engine.vocab)
    text = engine.config
    with DumpWriter(args.out, replace=args.force) as dump:
        dump_requests(engine, requests, dump, floats="BF16" if name == "BF16" else None)
        dump.manifest.update(
            {
                "engine": {"name": "transformers", "version": transformers.__version__, "torch": torch.__version__},
                "device": {"backend": "cpu", "name": "torch", "threads": torch.get_num_threads()},
                "model": {"path": str(args.folder), "format": "hf", "family": engine.family},
                "options": {
                    "dtype": args.dtype,
                    "patched_to_float64": args.dtype == "float64",
                    "kv": name.lower(),
                    "batch": False,
                    "chunk": 0,
                    "attention": "eager",
                    "tied": bool(text.tie_word_embeddings),
                },
            }
        )
    finished(args.out, requests)


if __name__ == "__main__":
    sys.exit(run("dump_hf.py", main))
