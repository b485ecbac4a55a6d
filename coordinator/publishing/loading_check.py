"""A script that prints a model's probe losses in plain transformers: `python loading_check.py DIR`.

The script runs in a fresh process and imports nothing from manyhands, whose code could hide loading
errors. `coordinator/publishing/soundness.py` compares the losses.
"""

import json
import logging
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file
from torch.nn import functional

IGNORED = -100


def load(folder: Path) -> transformers.PreTrainedModel:
    """Load the model with the class named in its configuration."""
    name = json.loads((folder / "config.json").read_text(encoding="utf-8"))["architectures"][0]
    kind = getattr(transformers, name)
    if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):
        raise ValueError(f"`architectures` names {name!r}, which is no model of transformers'")
    model: transformers.PreTrainedModel = kind.from_pretrained(
        folder, use_safetensors=True, local_files_only=True, dtype=torch.float32
    )
    return model  # `from_pretrained` sets evaluation mode


def probe_losses(model: transformers.PreTrainedModel, probe: dict[str, torch.Tensor]) -> dict[str, float]:
    """Return the model's total loss, and its token loss, which excludes sentence order.

    ALBERT has a total loss only if both heads have labels; otherwise the token loss replaces it.
    """
    with torch.no_grad():
        output = model(**probe)
    logits = getattr(output, "prediction_logits", None)  # (b, l, vocabulary)
    if logits is None:
        return {"loss": float(output.loss), "token_loss": float(output.loss)}
    tokens = functional.cross_entropy(logits.flatten(0, 1), probe["labels"].flatten(), ignore_index=IGNORED)
    return {"loss": float(tokens if output.loss is None else output.loss), "token_loss": float(tokens)}


def main() -> None:
    """Print the fields of `coordinator.publishing.soundness.LoadingResult` as JSON."""
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    transformers.logging.set_verbosity(logging.ERROR)
    model = load(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    facts = {
        **probe_losses(model, load_file(folder / "probe.safetensors")),
        "vocabulary": model.config.vocab_size,
        "tokens": len(tokenizer),
    }
    sys.stdout.write(json.dumps(facts) + "\n")


if __name__ == "__main__":
    main()
