"""The command end to end, on a corpus and a model that take a second."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tools.train_demo_model import __main__ as command
from tools.train_demo_model.corpus import is_held_out, read_corpus
from tools.train_demo_model.recipe import SHAPE, Recipe
from tools.train_demo_model.training import learning_rate

SMALL = SHAPE | {"vocab_size": 300, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
RECIPE = Recipe(num_steps=3, warmup_steps=1, num_threads=1, held_out_share=0.2)


@pytest.fixture
def corpus_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    for n in range(20):
        sections = [
            f"Shelf {n}.{m}\n==========\n\nShelf number {m} keeps the things numbered {n * m}.\n"
            for m in range(60)
        ]
        (folder / f"shelf{n}.rst").write_text("\n".join(sections))
    return folder


def make(corpus_folder: Path, out: Path) -> None:
    torch.set_num_threads(1)
    corpus = read_corpus(corpus_folder, RECIPE.seed, RECIPE.held_out_share)
    command.make_checkpoint(corpus, SMALL, RECIPE, out)


def test_a_run_writes_a_loadable_checkpoint_and_a_card_with_its_loss(
    corpus_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "model"
    make(corpus_folder, out)
    model = AutoModelForCausalLM.from_pretrained(out, local_files_only=True)
    assert model.dtype == torch.float16
    assert len(AutoTokenizer.from_pretrained(out, local_files_only=True)) == SMALL["vocab_size"]
    loss = capsys.readouterr().out.rpartition("held-out loss ")[2].split()[0]
    assert f"**{loss} nats per token" in (out / "README.md").read_text()


def test_two_runs_give_the_same_bytes(corpus_folder: Path, tmp_path: Path) -> None:
    make(corpus_folder, tmp_path / "one")
    make(corpus_folder, tmp_path / "two")
    for name in ("model.safetensors", "tokenizer.json", "README.md"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name


def test_held_out_files_are_chosen_by_name_alone(corpus_folder: Path) -> None:
    corpus = read_corpus(corpus_folder, seed=1, held_out_share=0.2)
    assert corpus.held_out.keys().isdisjoint(corpus.train)
    (corpus_folder / "another.rst").write_text("Another\n=======\n")
    assert read_corpus(corpus_folder, seed=1, held_out_share=0.2).held_out.keys() >= corpus.held_out.keys()


def test_the_held_out_share_is_about_what_was_asked_for() -> None:
    share = sum(is_held_out(f"file{n}", seed=1, share=0.02) for n in range(10_000)) / 10_000
    assert 0.015 < share < 0.025


def test_a_corpus_too_small_to_hold_out_is_refused(tmp_path: Path) -> None:
    (tmp_path / "only.rst").write_text("Only\n====\n")
    with pytest.raises(ValueError, match=r"1 \.rst/\.txt files, too few"):
        read_corpus(tmp_path, seed=1, held_out_share=0.02)


def test_the_learning_rate_rises_to_its_peak_and_falls_to_a_hundredth() -> None:
    recipe = Recipe(num_steps=1000, warmup_steps=100)
    rates = [learning_rate(step, recipe) for step in range(recipe.num_steps)]
    assert max(rates) == rates[99] == recipe.peak_lr
    assert rates[:100] == sorted(rates[:100])
    assert rates[99:] == sorted(rates[99:], reverse=True)
    assert rates[-1] == pytest.approx(recipe.peak_lr / 100, rel=0.01)


@pytest.mark.parametrize(
    ("field", "value"), [("num_steps", 200), ("chat_share", 1.0), ("held_out_share", 0.0)]
)
def test_a_recipe_that_cannot_run_is_refused(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{field}={value}"):
        replace(Recipe(), **{field: value})
