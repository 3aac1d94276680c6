"""The flags of a worker: their parser, and the settings that they give."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from engine.model.quantised.quantisation import Quantisation
from engine.speculation import Speculation
from kvtransfer.transports.transport import TransportMode
from runtime.caching import cache_folder
from runtime.hub.names import model_path
from runtime.process.limits import read_cores
from runtime.profiles import load_timed, names
from runtime.settings import add_service_flags, own_name, settings_of
from scheduling.policies import DEFAULT, NAMES
from worker.config import KV_DISK_MB, LORA_MEMORY_MB, LORA_RANK, SIZES, WorkerConfig
from worker.place import place_in
from worker.threads import resolve_threads

DTYPES = ("auto", "float32", "float64", "bfloat16")
DEVICES = ("auto", "cpu", "cuda")
WORKERS_PER_HOST = 2
"""A fleet has at least two workers; with a thread per core for each of them, both would be slower."""


def parse_config(argv: Sequence[str], role: str, number: int) -> WorkerConfig:
    """Return the settings that flags give; raise `ValueError`, or exit with code 2 on unknown flags.

    `number` is this process's own, drawn at its start.
    """
    given = vars(flags(role, number).parse_args(argv))
    given["service"] = settings_of(given)
    given["transport"] = TransportMode(given["transport"])
    given["quantisation"] = Quantisation(given["quantisation"])
    given["speculate"] = Speculation(given["speculate"])
    if given["draft_model"] is not None and role != "decode":
        chosen = f"--draft-model is {str(given['draft_model'])!r}"
        raise ValueError(f"{chosen} for a {role} worker; accepted: for decode workers, which draft")
    given["lora"] = tuple(map(_named_path, given["lora"]))
    sizes = given["tensor_parallel"], given["pipeline_parallel"]
    given["place"] = place_in(os.environ) if max(sizes) > 1 else None
    given["threads"] = resolve_threads(
        given["threads"],
        given.pop("workers_per_host"),
        read_cores(),
        *(sizes if given["place"] is None else (1, 1)),
    )
    profile = None if given["timed"] is None else load_timed(given["timed"])
    given["timed"] = profile
    for field, default in SIZES.items():
        if given[field] is None:
            given[field] = default if profile is None else getattr(profile, field)
    return WorkerConfig(**given, cache=cache_folder())


def flags(role: str, number: int) -> argparse.ArgumentParser:
    """Return the parser of a worker's command line."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {role}_worker", description="A prefill or decode worker; both have the same flags."
    )
    add_service_flags(
        parser,
        "127.0.0.1:0",
        "TCP for gRPC, UDP for probes; port 0 takes a free one",
        "time to hand work over after SIGTERM (20)",
    )
    parser.add_argument(
        "--worker-id",
        default=own_name(role, number),
        metavar="ID",
        help="this worker's name in the fleet and in logs, which no other has (<role>-<host name>-<number>, "
        "drawn at each start)",
    )
    _add_size_flags(parser)
    _add_model_flags(parser)
    _add_transport_flags(parser)
    return parser


def _add_size_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--block-size", type=int, metavar="TOKENS", help=f"tokens of a KV block ({SIZES['block_size']})")
    add("--num-blocks", type=int, metavar="N", help="KV blocks of this worker (what --kv-memory-mb holds)")
    add(
        "--kv-memory-mb", type=int, metavar="MB", help="KV memory (256; on a GPU nine tenths of what is free)"
    )
    add(
        "--kv-host-memory-mb",
        type=int,
        default=0,
        metavar="MB",
        help="host memory for KV blocks that leave the KV memory: prompts that begin alike find them again "
        "(0)",
    )
    add(
        "--kv-disk",
        type=Path,
        metavar="PATH",
        help="a folder of this worker alone, for KV blocks that leave its memory: prompts that begin alike "
        "find them again, also after a restart (none)",
    )
    add("--kv-disk-mb", type=int, metavar="MB", help=f"most that --kv-disk holds ({KV_DISK_MB})")
    add(
        "--share-prefixes",
        action="store_true",
        help="lend KV blocks to other workers with this flag, and fetch theirs where that is faster than "
        "computing the beginning of a prompt",
    )
    add("--max-num-seqs", type=int, metavar="N", help=f"sequences that run at once ({SIZES['max_num_seqs']})")
    add("--token-budget", type=int, metavar="TOKENS", help=f"most tokens of a step ({SIZES['token_budget']})")
    add("--policy", default=DEFAULT, choices=NAMES, help=f"what a step consists of ({DEFAULT})")
    add(
        "--timed",
        metavar="PROFILE",
        help="compute nothing; steps last as long as this profile says, and it sets the sizes above: "
        f"{', '.join(names())}, or a file",
    )


def _add_model_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--dtype",
        default="auto",
        choices=DTYPES,
        help="the type of weights and KV; auto: bfloat16 on a GPU, and on a CPU that multiplies it if the "
        "checkpoint has it, otherwise float32 (auto)",
    )
    add("--device", default="auto", choices=DEVICES, help="auto: a GPU where there is one (auto)")
    add(
        "--deterministic",
        action="store_true",
        help="compute the same tokens and log-probabilities whoever shares a step; slower",
    )
    add(
        "--no-cuda-graphs",
        dest="cuda_graphs",
        action="store_false",
        help="on a GPU, launch decode steps kernel by kernel instead of replaying them, to debug",
    )
    add(
        "--random-weights",
        type=int,
        metavar="SEED",
        help="draw the weights instead of reading them, to measure; --model needs only config.json and "
        "tokenizer.json",
    )
    add(
        "--prove-model",
        action="store_true",
        help="serve an architecture that is not on the list too, once this worker has shown that it computes "
        "what transformers does",
    )
    add(
        "--quantisation",
        default=Quantisation.NONE.value,
        choices=[choice.value for choice in Quantisation],
        help="what is kept in 8 or 4 bits; int8, int4: weights of linear layers but the last, logits8: those "
        "of the last and the embedding, kv8: keys and values, kvfp8: keys and values as fp8, which is less "
        "exact (none)",
    )
    add(
        "--no-fusion",
        dest="fusion",
        action="store_false",
        help="keep the model's own modules instead of fused ones, to debug",
    )
    add(
        "--speculate",
        default=Speculation.NONE.value,
        choices=[choice.value for choice in Speculation],
        help="draft tokens and verify several in a step, with the same output; lookup: draft what followed "
        "the newest tokens earlier in the prompt or output (none)",
    )
    add(
        "--draft-model",
        type=model_path,
        metavar="MODEL",
        help="a smaller model of the same vocabulary: it drafts tokens, and decode workers verify several in "
        "a step, with the same output; where --speculate lookup finds some, these come first (none)",
    )
    add(
        "--lora",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="serve a LoRA adapter under this name, from the folder with its adapter_config.json and "
        "adapter_model.safetensors; may be repeated (none)",
    )
    add(
        "--lora-dir",
        type=Path,
        metavar="PATH",
        help="a folder with a folder for each LoRA adapter, which has its name: adapters are loaded when "
        "requests ask for them, and may come and go while the worker runs (none)",
    )
    add(
        "--lora-memory-mb",
        type=int,
        metavar="MB",
        help="memory for the adapters of --lora-dir; the least recently used makes room for another "
        f"({LORA_MEMORY_MB})",
    )
    add(
        "--lora-rank",
        type=int,
        metavar="R",
        help=f"the largest rank of an adapter of --lora-dir ({LORA_RANK})",
    )
    add(
        "--tensor-parallel",
        type=int,
        default=1,
        metavar="N",
        help="processes that compute each step of this worker, or of each stage, together, each with a part "
        "of every layer; on GPUs one for each (1)",
    )
    add(
        "--pipeline-parallel",
        type=int,
        default=1,
        metavar="N",
        help="stages that compute the steps of this worker in turn, each with some of the layers, several "
        "steps at once; each has the processes of --tensor-parallel; on a CPU (1)",
    )
    add(
        "--threads",
        type=int,
        metavar="N",
        help="threads that compute, in all processes of --tensor-parallel and --pipeline-parallel that this "
        "one starts; 0: one for each processor (the cores of full speed / --workers-per-host)",
    )
    add(
        "--workers-per-host",
        type=int,
        default=WORKERS_PER_HOST,
        metavar="N",
        help=f"workers that share the cores, for the default of --threads ({WORKERS_PER_HOST})",
    )


def _named_path(text: str) -> tuple[str, Path]:
    name, sign, path = text.partition("=")
    if not sign or not path:
        raise ValueError(f"--lora is {text!r}; accepted: NAME=PATH")
    return name, Path(path)


def _add_transport_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--transport",
        default="auto",
        choices=[mode.value for mode in TransportMode],
        help="how KV travels; auto: the first that works of cuda_ipc, shm, nixl, grpc (auto)",
    )
    parser.add_argument(
        "--shm-dir",
        default=Path("/dev/shm"),  # noqa: S108 - the memory itself has no name
        type=Path,
        metavar="PATH",
        help="the folder of the sockets of the shm transport (/dev/shm)",
    )
