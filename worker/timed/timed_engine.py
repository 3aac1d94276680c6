"""An engine whose steps last what a profile says: a fleet's load at the scale of accelerators, on a laptop.

The model gives its vocabulary, end tokens and tokenizer; its weights are not loaded. The profile gives what
the device would: costs, blocks, seats, token budget and the longest context. KV is handed over and verified
for real, but has a few bytes a token: how long a handoff takes is not imitated.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from engine.calibration.grid import grid
from engine.core.admission import EngineLimits
from engine.core.commands import Command
from engine.core.memory.block_manager import BlockManager
from engine.core.report import StepReport
from engine.errors import ModelRefused
from engine.execution.step_loop import StepLoop
from engine.kv.kv_pool import KVPool
from engine.model.allow_list import read_config
from engine.model.checkpoint import check_tokenizer, stated_ends
from model_output.grammar.grammar import Grammars
from model_output.text.detokenizer import Detokenizer
from scheduling.cost.profiles import Profile, dump
from scheduling.policies import by_name
from worker.config import WorkerConfig
from worker.engine.engine import Engine
from worker.engine.engine_thread import Loop
from worker.timed.timed_runner import TimedRunner, layout, logits_table


class TimedLoop:
    """A step loop that tells its runner when it has waited: no step was under way meanwhile."""

    def __init__(self, loop: Loop, runner: TimedRunner) -> None:
        self._loop = loop
        self._runner = runner

    def run(
        self,
        drain: Callable[[float], Sequence[Command]],
        emit: Callable[[StepReport], None],
        stop: Callable[[], bool],
    ) -> None:
        def drain_and_tell(timeout_s: float) -> Sequence[Command]:
            commands = drain(timeout_s)
            if timeout_s > 0:
                self._runner.woke()
            return commands

        self._loop.run(drain_and_tell, emit, stop)


def build_timed_engine(config: WorkerConfig, profile: Profile) -> Engine:
    """Raises ModelRefused for a model directory that cannot be read, ValueError for a wrong setting."""
    assert config.num_blocks is not None, "the profile says it, if no flag does"
    torch.set_num_threads(1)
    check_tokenizer(config.service.model)
    vocab_size, eos_token_ids = words(config.service.model)
    pool = KVPool(layout(config.block_size), config.num_blocks)
    runner = TimedRunner(pool, profile.cost, logits_table(vocab_size, eos_token_ids))
    name = _fingerprint(config, profile)
    loop = StepLoop(
        runner,
        pool.tensor,
        BlockManager(pool.num_blocks, config.block_size),
        limits=EngineLimits(
            vocab_size=vocab_size,
            max_context=profile.max_context,
            max_num_seqs=config.max_num_seqs,
            token_budget=config.token_budget,
            eos_token_ids=eos_token_ids,
        ),
        fingerprint=name,
        detokenizer=Detokenizer.from_file(config.service.model / "tokenizer.json"),
        policy=by_name(config.policy),
        cost=profile.cost,
    )
    steps = grid(config.max_num_seqs, config.token_budget, profile.max_context)
    samples = tuple((step.shape, profile.cost.predict(step.shape)) for step in steps)
    grammars = Grammars(config.service.model / "tokenizer.json", vocab_size, eos_token_ids)
    return Engine(TimedLoop(loop, runner), pool, name, profile.max_context, profile.cost, samples, grammars)


def words(directory: Path) -> tuple[int, tuple[int, ...]]:
    """Return the vocabulary's size and the tokens that end a sequence."""
    config = read_config(directory)
    size = config.get("vocab_size")
    if not isinstance(size, int) or size < 1:
        raise ModelRefused(directory, "vocab_size", f"is {size!r}", "a whole number from 1")
    return size, stated_ends(directory, size)


def _fingerprint(config: WorkerConfig, profile: Profile) -> str:
    """Return a digest of all that decides on tokens and times: workers of one fleet must agree in it."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(repr(("timed", dump(profile), config.block_size)).encode())
    digest.update((config.service.model / "config.json").read_bytes())
    return digest.hexdigest()
