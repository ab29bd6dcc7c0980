"""llama.cpp's graph: what a node holds, and which phase of ours it is.

A node is known by its op and by the weight that it reads; only where no weight tells, by the name that llama.cpp's
graph builders give it (src/llama-graph.cpp, src/models/*.cpp). Names alone would not do: "Qcur-0" is the product,
the sum with the bias, a reshape of it and the rotated values, and o_proj has no name in most families."""

import ctypes
import re
from dataclasses import dataclass

import numpy as np

BLOCK = {  # weight of a layer -> phase of the op that reads it
    "attn_norm": "attn_norm",
    "attn_q": "q_proj",
    "attn_k": "k_proj",
    "attn_v": "v_proj",
    "attn_q_norm": "q_norm",
    "attn_k_norm": "k_norm",
    "attn_output": "o_proj",
    "post_attention_norm": "attn_post_norm",
    "ffn_norm": "ffn_norm",
    "ffn_gate": "gate_proj",
    "ffn_up": "up_proj",
    "ffn_down": "down_proj",
    "post_ffw_norm": "ffn_post_norm",
}
NAMED = {  # (name, op or None for any) -> phase
    ("Qcur", "ROPE"): "q_rope",
    ("Kcur", "ROPE"): "k_rope",
    ("kqv_out", None): "attn_context",
    ("ffn_inp", "ADD"): "attn_residual",
    ("ffn_swiglu", "GLU"): "ffn_act",
    ("l_out", "ADD"): "ffn_residual",
}
READERS = {"MUL_MAT": 0, "MUL": 1, "ADD": 1}  # product, norm's scale, bias: which source is the weight


@dataclass
class Node:
    op: str
    name: str
    sources: list  # names of the sources


def phase_of(node):
    """(layer or None, phase), or None where no phase of ours is meant."""
    if node.op == "GET_ROWS" and node.sources[:1] == ["token_embd.weight"]:
        return None, "embed"
    if node.op in READERS and READERS[node.op] < len(node.sources):
        weight = node.sources[READERS[node.op]]
        if node.op == "MUL_MAT" and weight in ("output.weight", "token_embd.weight"):
            return None, "logits"
        if weight == "output_norm.weight":
            return None, "final_norm"
        m = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", weight)
        if m and m[2] in BLOCK and (m[3] == "bias") == (node.op == "ADD"):
            return int(m[1]), BLOCK[m[2]]
    m = re.fullmatch(r"([\w]+)-(\d+)", node.name)
    if m:
        phase = NAMED.get((m[1], node.op)) or NAMED.get((m[1], None))
        if phase:
            return int(m[2]), phase
    return None


def cache_of(node):
    """[(layer, "k" or "v", which source, positions last?)] of the cache views that an attention node reads."""
    if node.op == "FLASH_ATTN_EXT":
        m = re.match(r"cache_k_l(\d+)\b", node.sources[1])
        return [(int(m[1]), "k", 1, False), (int(m[1]), "v", 2, False)] if m else []
    m = re.fullmatch(r"(kqv?)-(\d+)", node.name)
    if node.op != "MUL_MAT" or not m:
        return []
    return [(int(m[2]), "k" if m[1] == "kq" else "v", 0, m[1] == "kqv")]


def unpermuted(x, heads):
    """[rows, heads * d]: the converter of llama-family GGUFs lays RoPE's pairs side by side, (j, half); Hugging Face's
    order is (half, j) (convert_hf_to_gguf.py, LlamaModel.permute)."""
    return x.reshape(len(x), heads, -1, 2).swapaxes(2, 3).reshape(x.shape)


class GgmlTensor(ctypes.Structure):
    """struct ggml_tensor (ggml/include/ggml.h)."""


GgmlTensor._fields_ = [
    ("type", ctypes.c_int),
    ("buffer", ctypes.c_void_p),
    ("ne", ctypes.c_int64 * 4),
    ("nb", ctypes.c_size_t * 4),
    ("op", ctypes.c_int),
    ("op_params", ctypes.c_int32 * 16),
    ("flags", ctypes.c_int32),
    ("src", ctypes.POINTER(GgmlTensor) * 10),
    ("view_src", ctypes.POINTER(GgmlTensor)),
    ("view_offs", ctypes.c_size_t),
    ("data", ctypes.c_void_p),
    ("name", ctypes.c_char * 64),
    ("extra", ctypes.c_void_p),
    ("padding", ctypes.c_char * 8),
]
DTYPES = {0: np.dtype("<f4"), 1: np.dtype("<f2"), 26: np.dtype("<i4")}  # ggml_type F32, F16, I32


def values(t):
    """A copy of a tensor's values, its four axes slowest first."""
    if t.type not in DTYPES:
        raise ValueError(f"{t.name.decode()}: ggml type {t.type}; wanted F32, F16 or I32")
    dtype = DTYPES[t.type]
    shape, strides = tuple(t.ne)[::-1], tuple(t.nb)[::-1]
    size = sum((n - 1) * s for n, s in zip(shape, strides)) + dtype.itemsize
    raw = np.frombuffer((ctypes.c_char * size).from_address(t.data), dtype=np.uint8)
    return np.ndarray(shape, dtype, buffer=raw, strides=strides).copy()


class Library:
    """The functions of libggml that turn numbers into names, from the library that llama-cpp-python brings."""

    def __init__(self, lib):
        for name in ("ggml_op_name", "ggml_type_name"):
            getattr(lib, name).restype, getattr(lib, name).argtypes = ctypes.c_char_p, [ctypes.c_int]
        self._lib = lib

    def node(self, t):
        sources = [s.contents.name.decode() for s in t.src if s]
        return Node(self._lib.ggml_op_name(t.op).decode(), t.name.decode(), sources)

    def type_name(self, t):
        return self._lib.ggml_type_name(t.type).decode()
