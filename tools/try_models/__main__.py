"""`python -m tools.try_models`: try every causal model type of transformers, and write docs/models.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from engine.model.allow_list import ARCHITECTURES
from tools.try_models.table import replaced, table
from tools.try_models.trial import Outcome, try_type

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "models.md"


def main() -> None:
    library: Any = transformers
    library.utils.logging.set_verbosity_error()
    outcomes: list[Outcome] = []
    for model_type in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        outcomes.append(try_type(model_type))
        print(f"{model_type}: {outcomes[-1].reason or 'served'}", flush=True)
    generated = table(outcomes, ARCHITECTURES, transformers.__version__)
    document = DOCUMENT.read_text(encoding="utf-8")
    DOCUMENT.write_text(replaced(document, generated), encoding="utf-8")


if __name__ == "__main__":
    main()
