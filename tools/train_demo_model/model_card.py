"""The model card, written from what was measured, so that it cannot drift from the weights beside it."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from string import Template

from tools.train_demo_model import samples
from tools.train_demo_model.config import LENGTHS, ModelShape, Recipe
from tools.train_demo_model.corpus import PACKAGE, Corpus
from tools.train_demo_model.samples import Sample
from tools.train_demo_model.tokenizer import SPECIAL_TOKENS
from tools.train_demo_model.training import HeldOutLoss

_TEMPLATE = Path(__file__).with_name("model_card.template.md")


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures of a training run and its checkpoint."""

    num_parameters: int
    num_document_tokens: int
    num_chat_tokens: int
    num_chats: int
    text_digest: str
    loss: HeldOutLoss
    completions: tuple[Sample, ...]
    answers: tuple[Sample, ...]


def model_card(corpus: Corpus, shape: ModelShape, recipe: Recipe, measured: Measured) -> str:
    """Return the card in Markdown; a placeholder without a value is a KeyError."""
    return Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(
        asdict(shape) | asdict(recipe) | _described(corpus, shape, recipe) | _results(measured)
    )


def _described(corpus: Corpus, shape: ModelShape, recipe: Recipe) -> dict[str, str]:
    return {
        "package": PACKAGE,
        "num_files": str(len(corpus.train)),
        "held_out_files": "\n".join(f"- `{file.name}`" for file in corpus.held_out),
        "head_size": str(shape.hidden_size // shape.num_heads),
        "special_tokens": ", ".join(f"`{token}`".replace("|", "\\|") for token in SPECIAL_TOKENS),
        "lengths": ", ".join(f"{s.rows} × {s.tokens} ({s.weight:.0%})" for s in LENGTHS),
        "chat_share": f"{recipe.chat_share:.0%}",
        "uniform_nats": f"{math.log(shape.vocab_size):.3f}",
        "temperature": str(samples.TEMPERATURE),
        "top_p": str(samples.TOP_P),
        "sample_seed": str(samples.SEED),
    }


def _results(measured: Measured) -> dict[str, str]:
    return {
        "num_parameters": f"{measured.num_parameters:,}",
        "num_document_tokens": f"{measured.num_document_tokens:,}",
        "num_chat_tokens": f"{measured.num_chat_tokens:,}",
        "num_chats": f"{measured.num_chats:,}",
        "text_digest": measured.text_digest,
        "nats_per_token": f"{measured.loss.nats_per_token:.3f}",
        "bits_per_byte": f"{measured.loss.bits_per_byte:.3f}",
        "num_held_out_tokens": f"{measured.loss.num_tokens:,}",
        "completions": _shown(measured.completions),
        "answers": _shown(measured.answers),
    }


def _shown(drawn: Sequence[Sample]) -> str:
    return "\n\n".join(
        f"**{s.prompt}**\n\n```text\n{s.text.strip()}{'' if s.finished else ' …'}\n```" for s in drawn
    )
