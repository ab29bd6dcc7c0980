"""The official modelling code (Hugging Face transformers) of each family, as it is or patched to float64.

goldens/official/README.md, "How the float64 run is made", says what is patched and why.
"""

import importlib
import os
import re
import types
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("USE_HUB_KERNELS", "0")

import torch  # noqa: E402
import transformers  # noqa: E402

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
torch.set_grad_enabled(False)
torch.set_num_threads(1)  # tiny tensors; and the same sums on every run
torch.use_deterministic_algorithms(True)

# family -> module, text-only config and model class, nested config and model class
FAMILIES = {
    "llama": ("llama", "LlamaConfig", "LlamaForCausalLM", None, None),
    "olmo2": ("olmo2", "Olmo2Config", "Olmo2ForCausalLM", None, None),
    "qwen2": ("qwen2", "Qwen2Config", "Qwen2ForCausalLM", None, None),
    "qwen3": ("qwen3", "Qwen3Config", "Qwen3ForCausalLM", None, None),
    "qwen3_moe": ("qwen3_moe", "Qwen3MoeConfig", "Qwen3MoeForCausalLM", None, None),
    "qwen3_next": ("qwen3_next", "Qwen3NextConfig", "Qwen3NextForCausalLM", None, None),
    "qwen3_vl": ("qwen3_vl", "Qwen3VLTextConfig", None, "Qwen3VLConfig", "Qwen3VLForConditionalGeneration"),
    "qwen3_5": (
        "qwen3_5",
        "Qwen3_5TextConfig",
        "Qwen3_5ForCausalLM",
        "Qwen3_5Config",
        "Qwen3_5ForConditionalGeneration",
    ),
    "qwen3_5_moe": (
        "qwen3_5_moe",
        "Qwen3_5MoeTextConfig",
        "Qwen3_5MoeForCausalLM",
        "Qwen3_5MoeConfig",
        "Qwen3_5MoeForConditionalGeneration",
    ),
}
ZERO_CENTRED = {"qwen3_next", "qwen3_5", "qwen3_5_moe"}


def to_f64_source(text):
    """The official source with its hard-coded single precision made double."""
    text = text.replace("torch.float32", "torch.float64")
    text = re.sub(r"torch\.float\b", "torch.float64", text)
    return text.replace(".float()", ".double()")


def load_f64_module(name):
    """Execute a patched copy of an official module; the original stays untouched."""
    official = importlib.import_module(name)
    module = types.ModuleType(name)
    module.__file__ = official.__file__
    module.__package__ = name.rpartition(".")[0]
    source = to_f64_source(Path(official.__file__).read_text(encoding="utf-8"))
    exec(compile(source, official.__file__, "exec"), module.__dict__)
    return module


class LocalAutoModel:
    """Stands for AutoModel inside a patched module, so that nested parts are patched as well."""

    def __init__(self, module):
        self.module = module

    def from_config(self, config):
        for cls in vars(self.module).values():
            if isinstance(cls, type) and cls.__module__ == self.module.__name__:
                if cls.__name__.endswith("Model") and getattr(cls, "config_class", None) is type(config):
                    if "PreTrained" not in cls.__name__:
                        return cls._from_config(config)
        raise ValueError(f"no model class for {type(config)}")


class Engine:
    """The official code of one family, as it is or patched to float64."""

    def __init__(self, family, f64):
        modname = FAMILIES[family][0]
        name = f"transformers.models.{modname}.modeling_{modname}"
        self.rope_f64 = None
        if f64:
            self.module = load_f64_module(name)
            self.rope_f64 = load_f64_module("transformers.modeling_rope_utils").ROPE_INIT_FUNCTIONS
            self.module.ROPE_INIT_FUNCTIONS = self.rope_f64
            if hasattr(self.module, "AutoModel"):
                self.module.AutoModel = LocalAutoModel(self.module)
        else:
            self.module = importlib.import_module(name)

    def load(self, cls_name, folder, dtype):
        import transformers.modeling_utils as mu

        saved = mu.ROPE_INIT_FUNCTIONS
        if self.rope_f64 is not None:
            mu.ROPE_INIT_FUNCTIONS = self.rope_f64
        try:
            model = getattr(self.module, cls_name).from_pretrained(
                folder, dtype=dtype, attn_implementation="eager", experts_implementation="eager"
            )
        finally:
            mu.ROPE_INIT_FUNCTIONS = saved
        model.eval()
        for mod in model.modules():
            if type(mod).__module__ != self.module.__name__ or "Rotary" not in type(mod).__name__:
                continue
            if "Vision" in type(mod).__name__:
                continue
            want = torch.float64 if self.rope_f64 is not None else torch.float32
            assert mod.inv_freq.dtype == want, (type(mod), mod.inv_freq.dtype)
        return model
