"""Keep the libraries under a model silent: their bars and advice are not ours to print."""

from __future__ import annotations

import logging
import os
import warnings

SILENT = {
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}


def silence_libraries() -> None:
    """Ask for silence before transformers is imported; what the user set stays as it is."""
    for name, value in SILENT.items():
        os.environ.setdefault(name, value)
    for name in ("torch", "transformers", "huggingface_hub"):
        logging.getLogger(name).setLevel(logging.ERROR)
        warnings.filterwarnings("ignore", module=rf"{name}(\.|$)")
