"""Parse, read the corpus, train, save, measure, write the card."""

import argparse
import hashlib
from pathlib import Path

import torch

from tools.train_demo_model.checkpoint import load_checkpoint, save_checkpoint, train_tokenizer
from tools.train_demo_model.corpus import (
    PACKAGE,
    Corpus,
    fetch_package,
    read_corpus,
    readable_text,
    training_chats,
    training_documents,
)
from tools.train_demo_model.model_card import model_card
from tools.train_demo_model.recipe import SHAPE, Recipe
from tools.train_demo_model.training import build_model, encode_all, held_out_loss, train

_DOWNLOADS = Path("build/demo_corpus")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.train_demo_model", description=__doc__)
    parser.add_argument(
        "--corpus", type=Path, help="folder of .rst/.txt files (default: download Debian's python3.11-doc)"
    )
    parser.add_argument("--out", type=Path, default=Path("demo_model"), help="where the checkpoint goes")
    arguments = parser.parse_args()
    recipe = Recipe()
    torch.set_num_threads(recipe.num_threads)
    folder = arguments.corpus or fetch_package(_DOWNLOADS)
    make_checkpoint(read_corpus(folder, recipe.seed, recipe.held_out_share), SHAPE, recipe, arguments.out)


def make_checkpoint(corpus: Corpus, shape: dict[str, int], recipe: Recipe, out: Path) -> None:
    """Train on `corpus` and write the checkpoint with its model card to `out`, printing progress."""
    documents, chats = training_documents(corpus), training_chats(corpus, recipe.seed)
    tokenizer = train_tokenizer([*documents, *chats], shape["vocab_size"], shape["max_position_embeddings"])
    tokens = encode_all(tokenizer, documents, chats)
    counts = {"num_document_tokens": len(tokens.documents), "num_chat_tokens": len(tokens.chats)}
    print(f"{len(documents)} files, {len(chats)} chats: {counts}", flush=True)
    model = build_model(shape, tokenizer, recipe.seed)
    train(model, tokens, recipe)
    save_checkpoint(model, tokenizer, out)
    model, tokenizer = load_checkpoint(out)
    loss = held_out_loss(model, tokenizer, [readable_text(source) for source in corpus.held_out.values()])
    card = model_card(
        model,
        tokenizer,
        package=PACKAGE,
        recipe=recipe,
        loss=loss,
        num_files=len(documents),
        num_chats=len(chats),
        text_digest=hashlib.sha256("\0".join([*documents, *chats]).encode()).hexdigest(),
        held_out_files="\n".join(f"- `{name}`" for name in corpus.held_out),
        **counts,
    )
    (out / "README.md").write_text(card, encoding="utf-8")
    print(f"held-out loss {loss.nats_per_token:.3f} nats per token; checkpoint in {out}")


if __name__ == "__main__":
    main()
