#!/usr/bin/env python3
"""Which node of llama.cpp's graph is which phase; reading its tensors. Needs numpy alone."""

import ctypes
import sys
import unittest
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
from graph import GgmlTensor, Node, cache_of, phase_of, unpermuted, values  # noqa: E402


class Phases(unittest.TestCase):
    def test_every_node_of_a_layer(self):
        w = "blk.3.{}.weight"
        for op, name, sources, wanted in (
            ("GET_ROWS", "embd", ["token_embd.weight", "inp_tokens"], (None, "embed")),
            ("RMS_NORM", "norm-3", ["l_out-2"], None),
            ("MUL", "attn_norm-3", ["norm-3", w.format("attn_norm")], (3, "attn_norm")),
            ("MUL_MAT", "Qcur-3", [w.format("attn_q"), "attn_norm-3"], (3, "q_proj")),
            ("ADD", "Qcur-3", ["Qcur-3", "blk.3.attn_q.bias"], (3, "q_proj")),
            ("RESHAPE", "Qcur-3", ["Qcur-3"], None),
            ("MUL", "Qcur_normed-3", ["norm-3", w.format("attn_q_norm")], (3, "q_norm")),
            ("MUL", "attn_post_norm-3", ["norm-3", w.format("post_attention_norm")], (3, "attn_post_norm")),
            ("MUL", "ffn_post_norm-3", ["norm-3", w.format("post_ffw_norm")], (3, "ffn_post_norm")),
            ("ROPE", "Qcur-3", ["Qcur_normed-3", "inp_pos"], (3, "q_rope")),
            ("ROPE", "Kcur-3", ["Kcur_normed-3", "inp_pos"], (3, "k_rope")),
            ("MUL_MAT", "Vcur-3", [w.format("attn_v"), "attn_norm-3"], (3, "v_proj")),
            ("SET_ROWS", "cache_k_l3 (view)", ["k", "idx"], None),
            ("MUL_MAT", "kq-3", ["cache_k_l3 (view) (permuted)", "q"], None),
            ("CONT", "kqv_out-3", ["kqv-3 (permuted)"], (3, "attn_context")),
            ("RESHAPE", "kqv_out-3", ["__fattn__-3"], (3, "attn_context")),
            ("MUL_MAT", "node_31", [w.format("attn_output"), "kqv_out-3"], (3, "o_proj")),
            ("GET_ROWS", "node_32", ["node_31", "out_ids"], None),
            ("ADD", "ffn_inp-3", ["node_31", "l_out-2"], (3, "attn_residual")),
            ("MUL_MAT", "ffn_gate-3", [w.format("ffn_gate"), "ffn_norm-3"], (3, "gate_proj")),
            ("GLU", "ffn_swiglu-3", ["ffn_gate-3", "ffn_up-3"], (3, "ffn_act")),
            ("MUL_MAT", "ffn_out-3", [w.format("ffn_down"), "ffn_swiglu-3"], (3, "down_proj")),
            ("ADD", "l_out-3", ["ffn_out-3", "ffn_inp-3"], (3, "ffn_residual")),
            ("MUL", "result_norm", ["norm", "output_norm.weight"], (None, "final_norm")),
            ("MUL_MAT", "result_output", ["output.weight", "result_norm"], (None, "logits")),
            ("MUL_MAT", "result_output", ["token_embd.weight", "result_norm"], (None, "logits")),
            ("MUL", "anything", [], None),
        ):
            self.assertEqual(phase_of(Node(op, name, sources)), wanted, f"{op} {name}")

    def test_the_cache_is_seen_where_attention_reads_it(self):
        self.assertEqual(cache_of(Node("MUL_MAT", "kq-5", ["k", "q"])), [(5, "k", 0, False)])
        self.assertEqual(cache_of(Node("MUL_MAT", "kqv-5", ["v", "p"])), [(5, "v", 0, True)])
        fused = Node("FLASH_ATTN_EXT", "node_9", ["q", "cache_k_l5 (view) (permuted)", "cache_v_l5 (view) (permuted)"])
        self.assertEqual(cache_of(fused), [(5, "k", 1, False), (5, "v", 2, False)])
        self.assertEqual(cache_of(Node("CONT", "kqv_out-5", ["kqv-5"])), [])


class Values(unittest.TestCase):
    def tensor(self, x, axes, kind):
        """A ggml tensor that is x with its axes permuted: strides without a copy."""
        view = x.transpose(axes)
        t = GgmlTensor(type=kind, data=x.ctypes.data)
        ne, nb = view.shape[::-1], view.strides[::-1]
        t.ne[:], t.nb[:] = (*ne, *[1] * (4 - len(ne))), (*nb, *[x.nbytes] * (4 - len(nb)))
        return t

    def test_values_follow_the_strides(self):
        x = np.arange(2 * 3 * 4, dtype=np.float32).reshape(2, 3, 4)
        self.assertEqual(values(self.tensor(x, (0, 1, 2), 0)).shape, (1, 2, 3, 4))
        self.assertTrue((values(self.tensor(x, (0, 1, 2), 0))[0] == x).all())
        self.assertTrue((values(self.tensor(x, (1, 0, 2), 0))[0] == x.swapaxes(0, 1)).all())
        one = x[:1, :1]  # axes of size 1 stay: one kv head, one token
        self.assertEqual(values(self.tensor(one, (0, 1, 2), 0)).shape, (1, 1, 1, 4))
        h = x.astype(np.float16)
        self.assertTrue((values(self.tensor(h, (2, 0, 1), 1))[0] == h.transpose(2, 0, 1)).all())
        with self.assertRaisesRegex(ValueError, "ggml type 2; wanted F32"):
            values(self.tensor(x, (0, 1, 2), 2))

    def test_the_struct_has_the_size_that_ggml_has(self):
        self.assertEqual(ctypes.sizeof(GgmlTensor), 336)  # GGML_TENSOR_SIZE on 64-bit machines

    def test_rope_pairs_side_by_side_become_halves(self):
        x = np.array([[0, 10, 1, 11, 2, 12, 100, 110, 101, 111, 102, 112]])
        self.assertEqual(unpermuted(x, 2).tolist(), [[0, 1, 2, 10, 11, 12, 100, 101, 102, 110, 111, 112]])


if __name__ == "__main__":
    unittest.main()
