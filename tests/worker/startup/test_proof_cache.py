"""The proof of a model off the list is made once, and kept whole or not at all."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import structlog
from safetensors.torch import load_file, save_file

from engine.errors import ModelRefused
from engine.proof.proving import Proof
from engine.proof.versions import code_digest
from engine.starting import Phase
from tests import model_zoo
from worker.config import WorkerConfig
from worker.startup.build import build_engine
from worker.startup.flags import parse_config
from worker.startup.proof_cache import ProofFile, ProofKey

KEY = ProofKey("weights", "a processor x 2", "float32", False, True, 16, "avx2", "code")
PROOF = Proof(is_fused=True, in_float32=True, difference=1e-6, noise=2e-6, seconds=3.5)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_zoo.build("gemma", tmp_path_factory.mktemp("gemma"))


@pytest.fixture
def model(original: Path, tmp_path: Path) -> Path:
    """A copy to change."""
    return Path(shutil.copytree(original, tmp_path / "gemma"))


def config(model: Path, cache: Path, *flags: str) -> WorkerConfig:
    arguments = ["--model", str(model), "--dtype", "float32", "--threads", "1", "--num-blocks", "64", *flags]
    parsed = parse_config([*arguments, "--shm-dir", str(cache.parent)], "decode", 1)
    return dataclasses.replace(parsed, cache=cache)


class Starts:
    """Builds engines, and keeps what their starts report."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache
        self.phases: set[Phase] = set()

    def start(self, model: Path, *flags: str) -> dict[str, Any]:
        """Return the log's entry on the proof."""
        self.phases.clear()
        with structlog.testing.capture_logs() as logged:
            build_engine(config(model, self.cache, *flags), self._on_progress)
        entries = [entry for entry in logged if entry["event"] == "model_proven"]
        return dict(entries[0]) if entries else {}

    def _on_progress(self, phase: Phase, done: int, total: int) -> None:
        self.phases.add(phase)


def test_the_second_start_finds_the_proof_of_the_first(model: Path, tmp_path: Path) -> None:
    starts = Starts(tmp_path / "cache")
    first = starts.start(model, "--prove-model")
    assert first["proof"] == "made now"
    assert first["seconds"] > 0
    assert Phase.COMPARING in starts.phases
    second = starts.start(model, "--prove-model")
    assert second["proof"] == "found"
    assert second["seconds"] == first["seconds"]
    assert Phase.COMPARING not in starts.phases


def test_changed_weights_are_proven_anew(model: Path, tmp_path: Path) -> None:
    starts = Starts(tmp_path / "cache")
    starts.start(model, "--prove-model")
    weights = load_file(model / "model.safetensors")
    weights["model.norm.weight"][0] += 0.5
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    assert starts.start(model, "--prove-model")["proof"] == "made now"


def test_a_listed_model_needs_no_proof(tmp_path: Path) -> None:
    starts = Starts(tmp_path / "cache")
    assert starts.start(model_zoo.build("llama", tmp_path / "llama"), "--prove-model") == {}
    assert Phase.COMPARING not in starts.phases


def test_without_the_flag_the_refusal_names_it(model: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ModelRefused, match=r"model_type is 'gemma'; accepted: .*; --prove-model tries others"
    ):
        Starts(tmp_path / "cache").start(model)


def test_an_interrupted_proof_leaves_nothing(model: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"

    def interrupt(phase: Phase, done: int, total: int) -> None:
        if phase is Phase.COMPARING and done == total - 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_engine(config(model, cache, "--prove-model"), interrupt)
    assert not cache.exists()
    assert Starts(cache).start(model, "--prove-model")["proof"] == "made now"


def test_a_proof_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = ProofFile(tmp_path / "new" / "folder", KEY)
    assert file.read() is None
    file.write(PROOF)
    assert file.read() == PROOF
    assert [path.name for path in file.path.parent.iterdir()] == [file.path.name]


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(ProofKey)])
def test_another_worker_has_another_proof(field: str, tmp_path: Path) -> None:
    ProofFile(tmp_path, KEY).write(PROOF)
    value = getattr(KEY, field)
    changes: dict[str, Any] = {field: value + 1 if isinstance(value, int) else f"{value}!"}
    assert ProofFile(tmp_path, dataclasses.replace(KEY, **changes)).read() is None


@pytest.mark.parametrize(
    "damage", [b"", b"[]", b"\xff\xfe", b'{"format": 1}', json.dumps({"format": 1, "key": {}}).encode()]
)
def test_a_damaged_file_is_no_proof(damage: bytes, tmp_path: Path) -> None:
    file = ProofFile(tmp_path, KEY)
    file.path.write_bytes(damage)
    assert file.read() is None


def test_a_proof_is_valid_for_the_code_that_made_it(tmp_path: Path) -> None:
    source = tmp_path / "part" / "module.py"
    source.parent.mkdir()
    source.write_text("one = 1\n", encoding="utf-8")
    before = code_digest([tmp_path])
    (tmp_path / "part" / "module.pyc").write_bytes(b"compiled")
    assert code_digest([tmp_path]) == before
    source.write_text("one = 2\n", encoding="utf-8")
    assert code_digest([tmp_path]) != before
