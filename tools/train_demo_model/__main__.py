"""Parse, read the corpus, train, save, measure, write the card."""

import argparse
import hashlib
from pathlib import Path

import torch

from tools.train_demo_model import samples
from tools.train_demo_model.config import ModelShape, Recipe
from tools.train_demo_model.corpus import Corpus, fetch_package, read_corpus
from tools.train_demo_model.dataset import (
    TrainingText,
    TrainingTokens,
    encode_training,
    readable_text,
    training_text,
)
from tools.train_demo_model.export import check_size, load_checkpoint, save_checkpoint
from tools.train_demo_model.model_card import Measured, model_card
from tools.train_demo_model.restructured import parse_blocks
from tools.train_demo_model.tokenizer import train_tokenizer
from tools.train_demo_model.training import build_model, held_out_loss, train

_DOWNLOADS = Path("build/demo_corpus")


def main() -> None:
    arguments = _parse_arguments()
    recipe = Recipe()
    torch.set_num_threads(recipe.num_threads)
    folder = arguments.corpus or fetch_package(_DOWNLOADS)
    corpus = read_corpus(folder, recipe.seed, recipe.held_out_share)
    make_checkpoint(corpus, ModelShape(), recipe, arguments.out)


def make_checkpoint(corpus: Corpus, shape: ModelShape, recipe: Recipe, out: Path) -> None:
    """Train on `corpus` and write the checkpoint with its model card to `out`, printing progress."""
    text = training_text(corpus.train, recipe.seed)
    tokenizer = train_tokenizer((*text.documents, *text.chats), shape.vocab_size, shape.max_positions)
    tokens = encode_training(text, tokenizer)
    print(
        f"{len(corpus.train)} files: {len(tokens.documents)} tokens of documents,"
        f" {len(tokens.chats)} of chats",
        flush=True,
    )
    model = build_model(shape, tokenizer, recipe.seed)
    train(model, tokens, recipe)
    save_checkpoint(model, tokenizer, out)
    measured = _measure(out, corpus, text, tokens)
    (out / "README.md").write_text(model_card(corpus, shape, recipe, measured), encoding="utf-8")
    check_size(out)
    print(f"held-out loss {measured.loss.nats_per_token:.3f} nats per token; checkpoint in {out}")


def _measure(folder: Path, corpus: Corpus, text: TrainingText, tokens: TrainingTokens) -> Measured:
    model, tokenizer = load_checkpoint(folder)
    held_out = [readable_text(parse_blocks(file.text)) for file in corpus.held_out]
    return Measured(
        num_parameters=model.num_parameters(),
        num_document_tokens=len(tokens.documents),
        num_chat_tokens=len(tokens.chats),
        num_chats=len(text.chats),
        text_digest=hashlib.sha256("\0".join((*text.documents, *text.chats)).encode()).hexdigest(),
        loss=held_out_loss(model, tokenizer, held_out),
        completions=tuple(samples.completion(model, tokenizer, p) for p in samples.COMPLETION_PROMPTS),
        answers=tuple(samples.answer(model, tokenizer, q) for q in samples.CHAT_QUESTIONS),
    )


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.train_demo_model", description=__doc__)
    parser.add_argument(
        "--corpus", type=Path, help="folder of .rst/.txt files (default: download Debian's python3.11-doc)"
    )
    parser.add_argument("--out", type=Path, default=Path("demo_model"), help="where the checkpoint goes")
    return parser.parse_args()


if __name__ == "__main__":
    main()
