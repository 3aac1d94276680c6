"""Check, render, tokenise and hash a request, so that the core can take it."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

from model_output.formats import reasoning_marks
from model_output.grammar.refusal import GrammarRefused
from model_output.text.output import output_rules
from router.core.admit import no_worker
from router.core.dispatch import cache_salt
from router.core.model.events import Arrived
from router.errors import Described, Reason, ValidationError
from router.intake.grammar_compiler import GrammarCompiler
from router.intake.helpers.chat_template import TemplateRefused
from router.intake.helpers.tokenizer_pool import BYTES_PER_TOKEN, TokenizerPool
from router.intake.helpers.tokenizer_process import EncodedPrompt, PromptTooLong
from router.intake.model_facts import ModelFacts
from router.intake.prefix_lookup import prefix_hits
from router.intake.sizes import check_prompt_bytes, check_token_count
from router.intake.validation import (
    DEFAULT_MAX_TOKENS,
    check_bans,
    check_before_tokenising,
    check_output_format,
    check_stop,
    check_token_ids,
    checked_adapter,
    checked_program,
    checked_received,
    checked_sampling,
    checked_slo,
    checked_stop,
)
from router.limits import Limits
from router.links.shell import Shell
from router.outputs import OutputReader, Reading, tool_to_read
from router.request import ChatRefused, RawRequest, Received, Request, prompt_bytes, prompt_field
from runtime.state.errors import StoreUnavailable
from scheduling.admission.prefixes import NO_HITS, PrefixHits
from scheduling.memory.block_hash import chain_root, each_hash
from scheduling.request import SamplingParams, Slo, StopRules


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that the core can take, and how to read what comes of it."""

    event: Arrived
    reader: OutputReader


class Preprocessor:
    """Turns raw requests into events for the core. Its state is the processes that tokenise and compile."""

    def __init__(
        self, shell: Shell, facts: ModelFacts, pool: TokenizerPool, limits: Limits | None = None
    ) -> None:
        self._limits = limits or Limits()
        self._facts = facts
        self._pool = pool
        self._grammars = GrammarCompiler(facts)
        self._shell = shell

    async def arrival(
        self,
        raw: RawRequest,
        *,
        listener: int = 0,
        digest: bytes = b"",
        received_at: float = 0.0,
        can_refuse: bool = False,
    ) -> Prepared:
        """Validate and tokenise; return the event that submits the request. Raises `RouterError`.

        With `can_refuse` it raises `Refused` if the wait for the tokenizer alone exceeds the TTFT.
        """
        facts = self._facts
        check_before_tokenising(raw, facts)
        adapter = self._adapter(raw)
        sampling = checked_sampling(raw, facts, secrets.randbits(63))
        slo, program = checked_slo(raw), checked_program(raw)
        check_stop(raw, facts.vocab_size)
        check_output_format(raw, facts.formats)
        if can_refuse:
            await self._refuse_late(raw, sampling, slo)
        most_tokens = facts.max_context_tokens - 1  # one more fits the context
        prompt = await self._encode(raw, min(most_tokens, self._limits.max_prompt_tokens or most_tokens))
        token_ids = tuple(prompt.token_ids)
        stop = checked_stop(raw, token_ids, facts, skips_special_tokens=not prompt.has_special_markers)
        if stop.stop_strings and not (prompt.has_special_markers and stop.skip_special_tokens):
            opens, closes = reasoning_marks(prompt.formats, is_open=prompt.reasoning_open)
            stop = replace(stop, reasoning_opens=opens, reasoning_closes=closes)
        received = checked_received(raw, len(token_ids), stop, facts)
        if raw.bad_words:
            sampling = replace(
                sampling, bad_words=await self._pool.encode_words(raw.bad_words, tenant=raw.tenant)
            )
        check_bans(sampling, stop, facts)
        if prompt.calls_grammar:
            grammar = await self._with_calls(raw, "grammar", prompt.calls_grammar)
            sampling = replace(sampling, grammar=grammar)
        elif raw.output_format is not None:
            grammar = await self._in_format(raw, *raw.output_format, prompt.around_format)
            sampling = replace(sampling, grammar=grammar)
        hits = await self._hits(raw, adapter, token_ids)
        formats = prompt.formats
        reads = bool(formats.tools or formats.reasoning)
        received, texts = await self._look_at(raw.tenant, received, stop, token_ids, reads=reads)
        request = Request(
            tenant=raw.tenant,
            request_id=raw.request_id or secrets.token_hex(16),
            session=raw.session,
            digest=digest,
            prompt_token_ids=token_ids,
            sampling=sampling,
            seed_given=raw.seed is not None,
            stop=stop,
            slo=slo,
            received_at=received_at,
            resume_grace_s=raw.resume_grace_ms / 1000,
            received=received,
            failed_attempts=raw.failed_attempts,
            received_prompt_logprobs=raw.received_prompt_logprobs,
            adapter=adapter,
            program=program,
        )
        tools = raw.chat.tools if reads and raw.chat is not None else ()
        reading = Reading(
            formats,
            prompt.reasoning_open,
            tuple(tool_to_read(tool.name, tool.parameters) for tool in tools),
            raw.output_format is not None,
            texts,
        )
        return Prepared(Arrived(listener, request, hits), OutputReader(reading, request.request_id))

    def _adapter(self, raw: RawRequest) -> str:
        """Return the digest of the request's adapter. Raises `RouterError`."""
        discovery = self._shell.discovery
        if raw.adapter and discovery.fleet is None:
            raise no_worker()  # this router has just begun: it does not know what there is
        return checked_adapter(raw.adapter, discovery.adapters, discovery.refused_adapters)

    def close(self) -> None:
        """End the process that compiles grammars; the caller closes the pool."""
        self._grammars.close()

    def tokenised_s(self, raw: RawRequest) -> float:
        """Predict the seconds until a prompt that arrives now has been tokenised."""
        if raw.token_ids is not None:
            return 0.0
        num_bytes = prompt_bytes(raw)
        return self._pool.wait_s(num_bytes, raw.tenant) + self._pool.own_s(num_bytes)

    async def _refuse_late(self, raw: RawRequest, sampling: SamplingParams, slo: Slo) -> None:
        if slo.ttft_ms is None or slo.allow_at_risk or raw.token_ids is not None:
            return
        num_bytes = prompt_bytes(raw)
        # Only the wait counts: a text with nothing ahead of it must be taken, or no speed is ever measured.
        if self._pool.wait_s(num_bytes, raw.tenant) * 1000 <= slo.ttft_ms:
            return
        num_tokens = 1 + num_bytes // BYTES_PER_TOKEN
        if raw.truncate_prompt_tokens is not None:
            num_tokens = min(num_tokens, raw.truncate_prompt_tokens)
        quoted = await self._shell.quote(
            prompt_tokens=num_tokens,
            num_choices=sampling.n,
            max_tokens=DEFAULT_MAX_TOKENS if raw.max_tokens is None else raw.max_tokens,
            slo=slo,
            waited_s=self.tokenised_s(raw),
            hits=NO_HITS,
        )
        if quoted.refused is not None:  # baselines promise and refuse nothing
            raise quoted.refused

    async def tokenise(self, raw: RawRequest) -> list[int]:
        """Return the tokens of a prompt in any form; raises `ValidationError` if it is too long.

        It may be longer than the model's context.
        """
        return (await self._encode(raw, self._limits.max_prompt_tokens)).token_ids

    async def _encode(self, raw: RawRequest, most_tokens: int) -> EncodedPrompt:
        """Encode a prompt of at most so many tokens; 0 for any number."""
        check_prompt_bytes(raw, self._limits.max_prompt_bytes)
        most_bytes = None
        if most_tokens and raw.truncate_prompt_tokens is None and self._pool.longest_token is not None:
            most_bytes = most_tokens * self._pool.longest_token
        try:
            prompt = await self._encode_whole(raw, most_bytes)
        except PromptTooLong as error:
            assert self._pool.longest_token is not None, "it was compared with that"
            least_tokens = -(-error.num_bytes // self._pool.longest_token)
            raise ValidationError(
                prompt_field(raw),
                Described(f"{error.num_bytes} bytes, at least {least_tokens} tokens"),
                f"at most {most_tokens} tokens",
                Reason.PROMPT_TOO_LONG,
                limit=most_tokens,
            ) from None
        if raw.truncate_prompt_tokens is not None:
            prompt = replace(prompt, token_ids=prompt.token_ids[-raw.truncate_prompt_tokens :])
        check_token_count(prompt_field(raw), len(prompt.token_ids), self._limits.max_prompt_tokens)
        return prompt

    async def detokenise(
        self, token_ids: Sequence[int], *, skip_special_tokens: bool, tenant: str = ""
    ) -> str:
        """Return the text of token ids; raises `ValidationError` for more than a prompt may have."""
        check_token_ids(token_ids, self._facts)
        check_token_count("token_ids", len(token_ids), self._limits.max_prompt_tokens)
        return await self._pool.decode(
            list(token_ids), skip_special_tokens=skip_special_tokens, tenant=tenant
        )

    async def token_bytes(self, token_ids: Sequence[int], *, tenant: str = "") -> list[bytes]:
        """Return the bytes of each token; the ids were checked by `detokenise`."""
        return await self._pool.token_bytes(list(token_ids), tenant=tenant)

    async def _encode_whole(self, raw: RawRequest, most_bytes: int | None) -> EncodedPrompt:
        if raw.token_ids is not None:
            return EncodedPrompt(list(raw.token_ids))
        if raw.text is not None:
            num_bytes = prompt_bytes(raw)
            if most_bytes is not None and num_bytes > most_bytes:
                raise PromptTooLong(num_bytes)
            return EncodedPrompt(
                await self._pool.encode(raw.text, add_special_tokens=True, tenant=raw.tenant)
            )
        assert raw.chat is not None, "checked before"
        try:
            return await self._pool.encode_chat(
                raw.chat,
                has_format=raw.output_format is not None,
                most_bytes=most_bytes,
                tenant=raw.tenant,
            )
        except ChatRefused as refused:
            raise ValidationError(refused.field, refused.value, refused.accepted) from refused
        except TemplateRefused as refused:
            found = Described(f"{len(raw.chat.messages)} messages")
            accepted = f"a conversation that the model's chat template takes ({refused})"
            raise ValidationError("chat.messages", found, accepted) from refused

    async def _in_format(self, raw: RawRequest, kind: str, text: str, around: str) -> str:
        where = f"output_format.{kind}"
        if raw.chat is None or not raw.chat.shown_tools:
            return await self._compiled(raw.tenant, where, kind, text, around)
        await self._compiled(raw.tenant, where, kind, text)  # what is wrong after that is a tool
        return await self._with_calls(raw, kind, text, around)

    async def _compiled(self, tenant: str, where: str, kind: str, text: str, around: str = "") -> str:
        try:
            return await self._grammars.compile(tenant, kind, text, around)
        except GrammarRefused as refused:
            raise ValidationError(where, text, f"a format that can be guaranteed ({refused})") from refused

    async def _with_calls(self, raw: RawRequest, kind: str, text: str, around: str = "") -> str:
        """Return a compiled grammar with calls: the text itself, or what is around a format."""
        assert raw.chat is not None, "only chats have tools"
        try:
            return await self._grammars.compile(raw.tenant, kind, text, around)
        except GrammarRefused as refused:
            # Alone, the tool at fault is refused too.
            for place, tool in enumerate(raw.chat.tools):
                where = f"chat.tools[{place}].parameters"
                await self._compiled(raw.tenant, where, "json_schema", tool.parameters or "{}")
            accepted = f"schemas that can be guaranteed ({refused})"
            raise ValidationError(
                "chat.tools", Described(f"{len(raw.chat.tools)} tools"), accepted
            ) from refused

    async def _look_at(
        self,
        tenant: str,
        received: tuple[Received, ...],
        stop: StopRules,
        prompt: Sequence[int],
        *,
        reads: bool,
    ) -> tuple[tuple[Received, ...], dict[int, str]]:
        """Find the choices that a stop string has ended, although the client did not learn of it.

        Return also the texts by choice, if they are to be read.
        """
        if not stop.stop_strings and not reads:
            return received, {}
        rules = output_rules(stop, self._facts.eos_token_ids, len(prompt), self._facts.max_context_tokens)
        checked, texts = [], {}
        for choice in received:
            begun = await self._pool.beginning_of(prompt, list(choice.token_ids), stop, rules, tenant=tenant)
            texts[choice.choice] = begun.text
            found = replace(choice, finish=begun.reason, matched=begun.matched)
            checked.append(found if stop.stop_strings else choice)
        return tuple(checked), texts

    async def _hits(self, raw: RawRequest, adapter: str, token_ids: Sequence[int]) -> PrefixHits:
        """Look up the leading blocks of a prompt that workers have."""
        discovery, worker_keys = self._shell.discovery, list(self._shell.core.state.fleet.workers)
        fleet = discovery.fleet
        if fleet is None or not worker_keys or len(token_ids) < fleet.block_size:
            return NO_HITS
        if raw.prompt_logprobs is not None:
            return NO_HITS  # cached blocks have no logits: the prompt is computed again
        root = chain_root(fleet.fingerprint, cache_salt(raw.tenant), adapter)
        hashes = each_hash(root, token_ids, fleet.block_size)
        tiers = discovery.tiers
        try:
            found = await self._shell.store.lookup_prefix(worker_keys, hashes, tiers)
        except StoreUnavailable:
            return NO_HITS  # the hits are only a hint; enqueueing decides whether the store is needed
        return prefix_hits(found, tiers, discovery.kv_links)
