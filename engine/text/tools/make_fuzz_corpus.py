#!/usr/bin/env python3
"""Writes the seeds of tokenizer_fuzz: make_fuzz_corpus.py engine/text/fuzz_corpus"""
import json
import sys
from pathlib import Path

QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+")
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}


def tokenizer(pre=BYTE_LEVEL, strings=False, **more):
    pieces = [*"thexsng<>'!12", "Ġ", "Ċ", "á", "Ì", "ģ", "ä", "¸", "Ń", "ð", "Ł", "ĺ", "Ģ"]
    merges = [("t", "h"), ("th", "e"), ("Ġ", "Ġ"), ("ä", "¸"), ("ä¸", "Ń")]
    vocab = {p: i for i, p in enumerate(pieces + [a + b for a, b in merges])}
    added = [{"id": len(vocab), "content": "<s>", "special": True, "normalized": False},
             {"id": len(vocab) + 1, "content": "<think>", "special": False, "normalized": True, "rstrip": True,
              "lstrip": True, "single_word": True}]
    model = {"type": "BPE", "vocab": vocab, "merges": [f"{a} {b}" if strings else [a, b] for a, b in merges]}
    model.update(more.pop("model", {}))
    return {"version": "1.0", "added_tokens": added, "normalizer": {"type": "NFC"}, "pre_tokenizer": pre,
            "decoder": {"type": "ByteLevel"}, "model": model, **more}


def sequence(*steps):
    return {"type": "Sequence", "pretokenizers": [*steps, BYTE_LEVEL]}


def split(pattern, behavior, invert=False):
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


SEEDS = {
    "plain": tokenizer(normalizer=None),
    "qwen": tokenizer(sequence(split({"Regex": QWEN}, "Isolated"))),
    "smollm": tokenizer({"type": "Sequence", "pretokenizers": [
        {"type": "Digits", "individual_digits": True},
        {"type": "ByteLevel", "add_prefix_space": True, "use_regex": True}]}, strings=True),
    "removed": tokenizer(sequence(split({"String": " "}, "Removed"), split({"Regex": r"\S+"}, "Removed", True)),
                         model={"ignore_merges": True, "unk_token": "x"}),
    "template": tokenizer(post_processor={"type": "TemplateProcessing", "single": [
        {"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}}),
    "metaspace": tokenizer({"type": "Metaspace"}),
    "unigram": tokenizer(model={"type": "Unigram", "vocab": [["a", -1.0]]}),
}

if __name__ == "__main__":
    folder = Path(sys.argv[1]) / "tokenizer"
    folder.mkdir(parents=True, exist_ok=True)
    for name, seed in SEEDS.items():
        (folder / f"{name}.json").write_text(json.dumps(seed, ensure_ascii=False, separators=(",", ":")))
