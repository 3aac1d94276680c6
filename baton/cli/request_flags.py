"""The flags of one request: how it samples, when it stops, and which promise it asks for."""

from __future__ import annotations

import argparse

from baton.cli.values import bias, decimal, unsigned
from baton.types import Sampling, Slo, SloClass, Stop


def add_sampling_flags(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("sampling")
    group.add_argument(
        "--temperature", type=decimal, metavar="T", help="0 always takes the most likely token (1)"
    )
    group.add_argument(
        "--top-k", type=unsigned, metavar="K", help="keep the K most likely tokens; 0 keeps all (0)"
    )
    group.add_argument(
        "--top-p", type=decimal, metavar="P", help="keep the smallest set of tokens with probability P (1)"
    )
    group.add_argument(
        "--min-p", type=decimal, metavar="P", help="drop tokens below P times the most likely one (0)"
    )
    group.add_argument(
        "--repetition-penalty", type=decimal, metavar="X", help="divides logits of tokens seen so far (1)"
    )
    group.add_argument(
        "--presence-penalty", type=decimal, metavar="X", help="subtracted once from tokens of the answer (0)"
    )
    group.add_argument(
        "--frequency-penalty", type=decimal, metavar="X", help="subtracted for each occurrence so far (0)"
    )
    group.add_argument(
        "--logit-bias",
        type=bias,
        action="append",
        default=[],
        metavar="ID=X",
        help="add X to the logit of one token; repeatable",
    )
    group.add_argument(
        "--allowed-token-id",
        type=unsigned,
        action="append",
        default=[],
        metavar="ID",
        help="draw only this token; repeatable",
    )
    group.add_argument(
        "--bad-word", action="append", default=[], metavar="TEXT", help="never complete this word; repeatable"
    )
    group.add_argument(
        "--seed", type=unsigned, metavar="N", help="the same seed draws the same answer (drawn by the router)"
    )
    group.add_argument(
        "--logprobs",
        type=unsigned,
        metavar="N",
        help="show log-probabilities, with N alternatives for each token",
    )
    group.add_argument(
        "--prompt-logprobs", type=unsigned, metavar="N", help="the same for the prompt; needs --json"
    )


def add_stop_flags(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("stopping")
    group.add_argument("--max-tokens", type=unsigned, metavar="N", help="the most tokens of an answer (256)")
    group.add_argument(
        "--min-tokens", type=unsigned, default=0, metavar="N", help="the fewest tokens of an answer (0)"
    )
    group.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end before this text; repeatable"
    )
    group.add_argument(
        "--stop-token-id",
        type=unsigned,
        action="append",
        default=[],
        metavar="ID",
        help="end with this token; repeatable",
    )
    group.add_argument("--ignore-eos", action="store_true", help="continue past the model's end of sequence")
    group.add_argument(
        "--include-stop", action="store_true", help="keep the stop string or token in the text"
    )
    group.add_argument(
        "--show-special-tokens", action="store_true", help="show special tokens, such as the end of sequence"
    )


def add_slo_flags(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("promises")
    group.add_argument("--ttft-ms", type=unsigned, metavar="MS", help="promise for the first token")
    group.add_argument(
        "--tpot-ms", type=unsigned, metavar="MS", help="promise for the mean time between later tokens"
    )
    group.add_argument(
        "--itl-ms", type=unsigned, metavar="MS", help="promise for each gap between later tokens"
    )
    group.add_argument("--deadline-ms", type=unsigned, metavar="MS", help="end the request after this time")
    group.add_argument(
        "--class",
        dest="slo_class",
        choices=[str(slo_class) for slo_class in SloClass],
        default=str(SloClass.STANDARD),
        help="the class; interactive goes before standard, standard before batch (standard)",
    )
    group.add_argument(
        "--allow-at-risk", action="store_true", help="accept even if the promise will be missed"
    )


def sampling_of(args: argparse.Namespace) -> Sampling:
    return Sampling(
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        min_p=args.min_p,
        repetition_penalty=args.repetition_penalty,
        presence_penalty=args.presence_penalty,
        frequency_penalty=args.frequency_penalty,
        logit_bias=dict(args.logit_bias),
        seed=args.seed,
        n=args.n,
        logprobs=args.logprobs,
        prompt_logprobs=args.prompt_logprobs,
        allowed_token_ids=tuple(args.allowed_token_id),
        bad_words=tuple(args.bad_word),
    )


def stop_of(args: argparse.Namespace) -> Stop:
    return Stop(
        max_tokens=args.max_tokens,
        min_tokens=args.min_tokens,
        strings=tuple(args.stop),
        token_ids=tuple(args.stop_token_id),
        ignore_eos=args.ignore_eos,
        include_stop=args.include_stop,
        skip_special_tokens=False if args.show_special_tokens else None,
    )


def slo_of(args: argparse.Namespace) -> Slo:
    return Slo(
        ttft_ms=args.ttft_ms,
        tpot_ms=args.tpot_ms,
        itl_ms=args.itl_ms,
        deadline_ms=args.deadline_ms,
        slo_class=SloClass(args.slo_class),
        allow_at_risk=args.allow_at_risk,
    )
