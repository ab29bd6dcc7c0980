#!/usr/bin/env python3
"""Writes an Assay dump of a GGUF as llama.cpp runs it on this CPU, through the PyPI package llama-cpp-python.

    oracle/llamacpp/dump_llamacpp.py MODEL.gguf --tokens 1,2,3 --decode 8 --out DIR [--kv f16|f32] [--flash-attn auto|on|off]

The package goes into a virtual environment below .cache/ at the first call (it is compiled: about ten minutes of one
core). Values come through llama.cpp's evaluation callback; README.md says which node becomes which phase. Families:
llama, qwen2, qwen3. Exit 2: usage or input; 3: llama.cpp failed; 77: the package can't be had."""

import argparse
import ctypes
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]
import venv_of  # noqa: E402

if __name__ == "__main__" and not {"-h", "--help"} & set(sys.argv):
    venv_of.enter("llamacpp", HERE / "requirements.txt")

import numpy as np  # noqa: E402
from adapter import DumpWriter, add_options, dump_requests, finished, requests_of, run  # noqa: E402
from graph import GgmlTensor, Library, cache_of, phase_of, unpermuted, values  # noqa: E402

FAMILIES = ("llama", "qwen2", "qwen3")
KV_TYPES = {"f32": 0, "f16": 1}  # ggml_type
FLASH = {"auto": -1, "off": 0, "on": 1}  # llama_flash_attn_type
# What a product with a weight of this type rounds its activations to (ggml-cpu.c: type_traits_cpu[].vec_dot_type).
ACTIVATIONS = {
    "f32": "f32",
    "f16": "f16",
    "bf16": "bf16",
    "q4_0": "q8_0",
    "q5_0": "q8_0",
    "q8_0": "q8_0",
    "q4_1": "q8_1",
    "q5_1": "q8_1",
    "q4_K": "q8_K",
    "q5_K": "q8_K",
    "q6_K": "q8_K",
}


class LlamaCpp:
    """A model and one context. What it offers: see adapter.py."""

    def __init__(self, path):
        from llama_cpp import _ggml
        from llama_cpp import llama_cpp as api

        self.api, self.ggml = api, Library(_ggml.libggml)
        self.log = []
        self._logger = api.llama_log_callback(lambda level, text, data: self.log.append(text.decode(errors="replace")))
        api.llama_log_set(self._logger, None)
        api.llama_backend_init()
        params = api.llama_model_default_params()
        params.n_gpu_layers = 0
        self.model = api.llama_model_load_from_file(str(path).encode(), params)
        if not self.model:
            raise SystemExit(f"{path}: llama.cpp can't load it: {self.last_error()}")
        self.family = self.meta("general.architecture")
        if self.family not in FAMILIES:
            raise SystemExit(f"{path}: family {self.family}; wanted one of {' '.join(FAMILIES)}")
        self.heads, self.kv_heads = api.llama_model_n_head(self.model), api.llama_model_n_head_kv(self.model)
        self.vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self.model))
        self.seen, self.cache, self.weight_types, self.error, self.rows, self.length = {}, {}, {}, None, 0, 0

    def last_error(self):
        return next((line.strip() for line in reversed(self.log) if "error" in line.lower()), "no message")

    def meta(self, key):
        text = ctypes.create_string_buffer(256)
        return (
            text.value.decode()
            if self.api.llama_model_meta_val_str(self.model, key.encode(), text, len(text)) >= 0
            else None
        )

    def tokenize(self, text):
        raw, ids = text.encode(), (ctypes.c_int32 * (len(text.encode()) + 8))()
        vocab = self.api.llama_model_get_vocab(self.model)
        n = self.api.llama_tokenize(vocab, raw, len(raw), ids, len(ids), False, True)
        if n < 0:
            raise SystemExit(f"--prompt: llama.cpp's tokenizer refuses {text!r}")
        return list(ids[:n])

    def open(self, kv, flash, threads, context):
        """Makes the context; a prefill of up to `context` rows is one physical pass."""
        params = self.api.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = context
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type, params.type_k, params.type_v = FLASH[flash], KV_TYPES[kv], KV_TYPES[kv]
        params.cb_eval = self._callback = self.api.ggml_backend_sched_eval_callback(self._evaluated)
        self.ctx = self.api.llama_init_from_model(self.model, params)
        if not self.ctx:
            raise SystemExit(
                f"llama.cpp makes no context of {context} positions, --kv {kv} --flash-attn {flash}: {self.last_error()}"
            )

    def _evaluated(self, pointer, ask, _):
        """llama.cpp asks before a node whether it is wanted, and shows it afterwards; False then ends the pass."""
        try:
            t = ctypes.cast(pointer, ctypes.POINTER(GgmlTensor)).contents
            node = self.ggml.node(t)
            where, cache = phase_of(node), cache_of(node)
            if ask or not (where or cache):
                return bool(where or cache) or not ask
            for layer, what, source, positions_last in cache:
                x = values(t.src[source].contents)[0]  # [kv head, position, d], or d before position
                self.cache[f"layer.{layer}/{what}"] = x.swapaxes(1, 2) if positions_last else x
            if where:
                self._take(t, node, *where)
            return True
        except Exception as e:  # it can't cross the C frames: forward() raises it
            self.error = e
            return False

    def _take(self, t, node, layer, phase):
        x = values(t).reshape(self.rows, -1)  # the token is the slowest axis, heads may be one of their own
        if self.family == "llama" and phase in ("q_proj", "k_proj", "q_rope", "k_rope"):
            x = unpermuted(x, self.heads if phase[0] == "q" else self.kv_heads)
        if node.op == "MUL_MAT":
            self.weight_types[node.sources[0]] = self.ggml.type_name(t.src[0].contents)
        self.seen[phase if layer is None else f"layer.{layer}/{phase}"] = x

    def reset(self):
        self.api.llama_memory_clear(self.api.llama_get_memory(self.ctx), True)

    def forward(self, ids, first):
        self.seen, self.cache, self.error, self.rows = {}, {}, None, len(ids)
        batch = self.api.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, first + i, 1, 1
            batch.seq_id[i][0] = 0
        code = self.api.llama_decode(self.ctx, batch)
        self.api.llama_batch_free(batch)
        if self.error or code or "logits" not in self.seen:
            raise RuntimeError(
                f"llama_decode of {len(ids)} rows at position {first}: code {code}: {self.error or self.last_error()}"
            )
        self.length = first + len(ids)
        return self.seen

    def states(self):
        """As attention read them in the last pass: all positions so far, keys after RoPE."""
        out = {}
        for name, x in self.cache.items():
            x = x[:, : self.length]
            if self.family == "llama" and name.endswith("/k"):
                x = x.reshape(*x.shape[:2], -1, 2).swapaxes(2, 3).reshape(x.shape)
            out[name] = np.ascontiguousarray(x)
        return out

    def described(self, path, args):
        """The manifest's blocks; options that both name are compared with those of the other side."""
        import llama_cpp

        types = sorted({self.weight_types[w] for w in self.weight_types})
        activations = sorted({ACTIVATIONS.get(t, f"as llama.cpp does for {t}") for t in types})
        key = lambda name: self.meta(f"{self.family}.{name}")
        head_dim = int(key("attention.key_length") or int(key("embedding_length")) // self.heads)
        return {
            "engine": {
                "name": "llama.cpp",
                "version": self.api.llama_version().decode(),
                "package": f"llama-cpp-python {llama_cpp.__version__}",
            },
            "device": {
                "backend": "cpu",
                "system": self.api.llama_print_system_info().decode().strip(),
                "threads": args.threads,
            },
            "model": {"path": str(path), "format": "gguf", "family": self.family, "quantisation": " ".join(types)},
            "options": {
                "activations": " ".join(activations),
                "kv": args.kv,
                "flash_attn": args.flash_attn,
                "batch": False,
                "chunk": 0,
                "rms_eps": float(np.float32(key("attention.layer_norm_rms_epsilon"))),
                "attention_scale_head_dim": head_dim,
                "tied": "output.weight" not in self.weight_types,
            },
        }


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model", type=Path, metavar="MODEL.gguf")
    add_options(ap)
    ap.add_argument("--kv", choices=KV_TYPES, default="f16", help="cache type (default f16, as llama.cpp's)")
    ap.add_argument(
        "--flash-attn", choices=FLASH, default="auto", help="one fused attention node; auto: llama.cpp's own choice"
    )
    ap.add_argument("--threads", type=int, default=1)
    args = ap.parse_args()
    if not args.model.is_file():
        raise SystemExit(f"{args.model}: no such file; wanted a GGUF")
    engine = LlamaCpp(args.model)
    requests = requests_of(args, engine.tokenize, engine.vocab)
    engine.open(args.kv, args.flash_attn, args.threads, max(len(r.ids) + r.decode for r in requests))
    with DumpWriter(args.out, replace=args.force) as dump:
        dump_requests(engine, requests, dump)
        dump.manifest.update(engine.described(args.model, args))
    finished(args.out, requests)


if __name__ == "__main__":
    sys.exit(run("dump_llamacpp.py", main))
