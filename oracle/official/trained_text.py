"""The trained cases' models and the synthetic text that they learn.

The text is made here, so it has no licence; a token is a byte, 256 begins a text and 257 ends a task.
"""

import random

import numpy as np

BOS, EOS = 256, 257

# ---------------------------------------------------------------- the four models

COMMON = {"max_position_embeddings": 1024, "rms_norm_eps": 1e-6, "bos_token_id": BOS, "eos_token_id": EOS}
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
HYBRID_TYPES = (["linear_attention"] * 3 + ["full_attention"]) * 2
MODELS = {
    "trained-deep": {
        "family": "qwen3",
        "tied": True,
        "lr": 2e-3,
        "config": {
            "hidden_size": 64,
            "num_hidden_layers": 48,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "intermediate_size": 128,
            "vocab_size": 320,
            "rope_parameters": ROPE,
            **COMMON,
        },
    },
    "trained-engine": {
        "family": "qwen3",
        "tied": False,
        "lr": 3e-3,
        "config": {
            "hidden_size": 128,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 64,
            "intermediate_size": 384,
            "vocab_size": 384,
            "rope_parameters": ROPE,
            **COMMON,
        },
    },
    "trained-moe": {
        "family": "qwen3_moe",
        "tied": True,
        "lr": 3e-3,
        "config": {
            "hidden_size": 128,
            "num_hidden_layers": 6,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 64,
            "intermediate_size": 128,
            "moe_intermediate_size": 32,
            "num_experts": 16,
            "num_experts_per_tok": 4,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "vocab_size": 320,
            "rope_parameters": ROPE,
            **COMMON,
        },
    },
    "trained-hybrid": {
        "family": "qwen3_5",
        "tied": True,
        "mtp": True,
        "lr": 3e-3,
        "extra_config": {
            "full_attention_interval": 4,
            "attn_output_gate": True,
            "mamba_ssm_dtype": "float32",
            "mtp_num_hidden_layers": 1,
            "mtp_use_dedicated_embeddings": False,
        },
        "config": {
            "hidden_size": 128,
            "num_hidden_layers": 8,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "intermediate_size": 224,
            "vocab_size": 320,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 32,
            "linear_value_head_dim": 32,
            "linear_conv_kernel_dim": 4,
            "layer_types": HYBRID_TYPES,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.25,
                "mrope_section": [2, 1, 1],
                "mrope_interleaved": True,
            },
            **COMMON,
        },
    },
}


# ---------------------------------------------------------------- text

LOW, ALNUM = "abcdefghijklmnopqrstuvwxyz", "abcdefghijklmnopqrstuvwxyz0123456789"
NAMES = "Anna Ben Carla David Emma Felix Greta Hugo Ines Jonas Klara Leo Maria Nils".split()
COLOURS = "red blue green white black yellow brown silver".split()
THINGS = "ball box lamp book cup key coat drum kite map".split()
PLACES = "kitchen garden cellar office attic library garage studio".split()
PAIRS = {"(": ")", "[": "]", "{": "}", "<": ">"}


class Text:
    """Ids with, per id, whether what came before determines it (1) or it was drawn (0)."""

    def __init__(self):
        self.ids, self.sure = [], []

    def add(self, text, sure):
        self.ids += text.encode()
        self.sure += [sure] * len(text)
        return self

    def end(self):
        self.ids.append(EOS)
        self.sure.append(1)
        return self


def word(r, lo, hi, alphabet=ALNUM):
    return "".join(r.choices(alphabet, k=r.randint(lo, hi)))


def kv_list(r, n, hard):
    """Distinct keys; hard: four-letter keys of two or three shared prefixes, with the same last letters."""
    keys = []
    if hard:
        groups = r.randint(2, 3) if n > 4 else 2
        stems = set()
        while len(stems) < groups:
            stems.add(word(r, 3, 3, LOW))
        stems = sorted(stems)
        r.shuffle(stems)
        last = r.sample(LOW, min(26, max(2, -(-n // groups))))
        keys = [s + c for c in last for s in stems]
        r.shuffle(keys)
        keys = keys[:n]
    else:
        seen = set()
        while len(keys) < n:
            k = word(r, 3, 3, LOW)
            if k not in seen:
                seen.add(k)
                keys.append(k)
    return [(k, word(r, 4, 8)) for k in keys]


def kv_head(t, pairs):
    t.add("K:", 0)
    for k, v in pairs:
        t.add(k, 0).add("=", 1).add(v, 0).add(";", 0)
    return t


def task_kv(r, t, room):
    n = r.randint(3, max(3, min(40, int(room / 22)))) if r.random() < 0.5 else r.randint(3, 9)
    pairs = kv_list(r, n, r.random() < 0.5)
    kv_head(t, pairs)
    if r.random() < 0.25:
        story(r, t, r.randint(1, 2), 0)
    if r.random() < 0.6:  # single queries
        for k, v in r.sample(pairs, min(len(pairs), r.randint(2, 5))):
            t.add("?" + k, 0).add("=" + v + ";", 1)
    else:  # a query that runs on to the end of the list
        i = r.randrange(len(pairs))
        t.add("!" + pairs[i][0], 0).add("=" + pairs[i][1] + ";", 1)
        for k, v in pairs[i + 1 : i + 9]:
            t.add(k + "=" + v + ";", 1)
    return t.end()


def task_copy(r, t, room):
    s = word(r, 6, 48)
    return t.add("C:" + s + "|", 0).add(s, 1).end()


def task_sum(r, t, room):
    t.add("A:", 0)
    for _ in range(r.randint(3, 8)):
        a, b = r.randint(0, 60), r.randint(0, 39)
        t.add(f"{a}+{b}=", 0).add(f"{a + b};", 1)
    return t.end()


def task_series(r, t, room):
    a, d = r.randint(0, 60), r.randint(1, 9)
    n = r.randint(8, 20)
    t.add(f"S:{a},{a + d},", 0)
    return t.add("".join(f"{a + i * d}," for i in range(2, n)), 1).end()


def facts(r, n):
    who, what = r.sample(NAMES, n), r.sample([(c, o) for c in COLOURS for o in THINGS], n)
    return [(w, f"{c} {o}", r.choice(PLACES)) for w, (c, o) in zip(who, what)]


def say(w, o, p):
    return f" {w} has the {o} in the {p}."


def story(r, t, n, ask):
    fs = facts(r, n)
    t.add("T:", 0)
    for f in fs:
        t.add(say(*f), 0)
    for w, o, p in r.sample(fs, min(ask, len(fs))):
        if r.random() < 0.6:
            t.add(f" Who has the {o}?", 0)
        else:
            t.add(f" What has {w}?", 0)
        t.add(say(w, o, p), 1)
    return t


def task_story(r, t, room):
    return story(r, t, r.randint(2, 4), r.randint(1, 3)).end()


def task_brackets(r, t, room):
    t.add("B:", 0)
    stack = []
    for _ in range(r.randint(8, 40)):
        if stack and r.random() < 0.45:
            t.add(PAIRS[stack.pop()], 1)
        else:
            stack.append(r.choice("([{<"))
            t.add(stack[-1], 0)
    t.add("|", 0)
    while stack:
        t.add(PAIRS[stack.pop()], 1)
    return t.end()


TASKS = [task_kv, task_copy, task_sum, task_series, task_story, task_brackets]
SHARES = [0.36, 0.12, 0.13, 0.14, 0.17, 0.08]


def sequence(r, length):
    t = Text()
    t.ids.append(BOS)
    t.sure.append(0)
    while len(t.ids) < length:
        r.choices(TASKS, SHARES)[0](r, t, length - len(t.ids))
    return t.ids[:length], t.sure[:length]


def make_block(args):
    seed, count, length = args
    r = random.Random(seed)
    out = np.empty((count, 2, length), np.int16)
    for i in range(count):
        out[i] = sequence(r, length)
    return out


def make_text(folder, n256, n512, workers):
    from multiprocessing import Pool

    folder.mkdir(parents=True, exist_ok=True)
    with Pool(workers) as pool:
        for length, count in ((257, n256), (513, n512)):
            step = 1000 if count >= 1000 else count
            jobs = [(7000003 * length + i, step, length) for i in range(count // step)]
            np.save(folder / f"text{length}.npy", np.concatenate(pool.map(make_block, jobs)))
