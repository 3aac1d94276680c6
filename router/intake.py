"""From a request as it came to one the core can take: checked, rendered, tokenised, hashed."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace

from router.chat_template import TemplateRefused
from router.discovery import FleetFacts
from router.dispatching import cache_salt
from router.errors import ValidationError
from router.events import Arrived, Received
from router.limits import Limits
from router.model_facts import ModelFacts
from router.tokenizer_pool import TokenizerPool
from router.validation import (
    RawRequest,
    check_before_tokenising,
    check_resumption,
    check_stop,
    checked_prompt,
    checked_sampling,
    checked_slo,
    stopped_by_text,
)
from scheduling.block_hash import chain_root, hash_blocks
from scheduling.request import FinishReason, SamplingParams, Slo, StopRules
from state.errors import StoreUnavailable
from state.store import Store


@dataclass(frozen=True, slots=True)
class Checked:
    """A request with every field set and inside its range."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    stop: StopRules
    slo: Slo
    received: tuple[Received, ...]


class Intake:
    """Stateless but for the tokenizer processes it uses."""

    def __init__(
        self, facts: ModelFacts, pool: TokenizerPool, store: Store, limits: Limits | None = None
    ) -> None:
        self._limits = limits or Limits()
        self._facts = facts
        self._pool = pool
        self._store = store

    async def check(self, raw: RawRequest) -> Checked:
        """Validate and tokenise; raises `RouterError`."""
        facts = self._facts
        check_before_tokenising(raw, facts)
        sampling = checked_sampling(raw, facts.vocab_size, secrets.randbits(63))
        slo = checked_slo(raw)
        check_stop(raw, facts.vocab_size)
        token_ids = await self.tokenise(raw)
        prompt = checked_prompt(raw, token_ids, facts)
        received = await self._ended_by_text(prompt.received, prompt.stop)
        request_id = raw.request_id or secrets.token_hex(16)
        return Checked(request_id, prompt.token_ids, sampling, prompt.stop, slo, received)

    async def tokenise(self, raw: RawRequest) -> list[int]:
        """The prompt's tokens, whichever way it was given; raises `ValidationError` for too long a prompt."""
        self._limits.check_bytes(raw)
        token_ids = await self._tokenise(raw)
        self._limits.check_tokens(raw, len(token_ids))
        return token_ids

    async def _tokenise(self, raw: RawRequest) -> list[int]:
        if raw.token_ids is not None:
            return list(raw.token_ids)
        if raw.text is not None:
            return await self._pool.encode(raw.text, add_special_tokens=True)
        assert raw.messages is not None, "checked before"
        assert self._facts.chat_template is not None, "checked before"
        try:
            text = self._facts.chat_template.render(raw.messages)
        except TemplateRefused as refused:
            accepted = f"a conversation the model's chat template takes ({refused})"
            raise ValidationError("chat.messages", raw.messages, accepted) from refused
        # The template writes the special tokens itself.
        return await self._pool.encode(text, add_special_tokens=False)

    async def _ended_by_text(self, received: tuple[Received, ...], stop: StopRules) -> tuple[Received, ...]:
        """A choice whose received text holds a stop string had ended: only the word of it was lost."""
        if not stop.stop_strings:
            return received
        checked = []
        for one in received:
            text = await self._pool.decode(list(one.token_ids)) if one.token_ids else ""
            ended = stopped_by_text(text, len(one.token_ids), stop)
            checked.append(replace(one, finish=FinishReason.STOP) if ended else one)
        return tuple(checked)

    async def arrival(
        self,
        raw: RawRequest,
        digest: bytes,
        received_at: float,
        listener: int,
        fleet: FleetFacts | None,
        worker_keys: list[str],
        *,
        resumed: bool,
    ) -> Arrived:
        """The event for the core."""
        if resumed:
            check_resumption(raw)
        checked = await self.check(raw)
        return Arrived(
            listener=listener,
            tenant=raw.tenant,
            request_id=checked.request_id,
            session=raw.session,
            digest=digest,
            prompt_token_ids=checked.prompt_token_ids,
            sampling=checked.sampling,
            seed_given=raw.seed is not None,
            stop=checked.stop,
            slo=checked.slo,
            received_at=received_at,
            resume_grace_s=raw.resume_grace_ms / 1000,
            received=checked.received,
            failed_attempts=raw.failed_attempts,
            prefix_hits=await self.prefix_hits(raw.tenant, checked.prompt_token_ids, fleet, worker_keys),
        )

    async def prefix_hits(
        self, tenant: str, token_ids: tuple[int, ...], fleet: FleetFacts | None, worker_keys: list[str]
    ) -> Mapping[str, int]:
        """Blocks of the prompt that each worker has cached, by the fleet's directory."""
        if fleet is None or not worker_keys or len(token_ids) < fleet.block_size:
            return {}
        root = chain_root(fleet.fingerprint, cache_salt(tenant))
        try:
            return await self._store.lookup_prefix(
                worker_keys, hash_blocks(root, token_ids, fleet.block_size)
            )
        except StoreUnavailable:
            return {}  # only a hint; whether the store is needed is decided at the queue
