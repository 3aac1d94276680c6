"""Columns that a model needs of each running row, and the step's tensors made from them.

A row's drafts, and how likely they are to be accepted, follow the same rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from engine.core.batch import Batch, ChunkWork, Rows, num_in
from engine.core.sequence import Choice, SequenceGroup
from engine.device import StepUpload
from engine.model.attention.step_batch import NO_ADAPTER, AdapterRows, StepBatch, adapter_rows, count_decodes
from engine.sampling.sampling_table import SamplingTable
from engine.speculation.prompt_lookup import PromptLookup
from scheduling.speculation import Acceptance, Drafter


class DeviceRows:
    """Implements `engine.core.batch.RowTable`: columns that follow the rows of a batch."""

    def __init__(
        self,
        max_rows: int,
        max_blocks: int,
        vocab_size: int,
        device: torch.device,
        num_draft_rows: int = 0,
        adapters: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """`adapters` are the slots of the model's adapters, by digest; they may change between steps."""
        self.token_ids = np.zeros(max_rows, dtype=np.int64)
        """The newest token of each row, whose KV is not written yet, or where it is `in_flight`: its place
        among the tokens that the step in flight draws.
        """
        self.in_flight = np.zeros(max_rows, dtype=np.bool_)
        self.block_tables = np.zeros((max_rows, max_blocks), dtype=np.int32)
        self.sampling = SamplingTable(max_rows + num_draft_rows, vocab_size, device)
        """Drafted tokens have the last rows."""
        self.drafts = DraftTable(max_rows)
        self.has_drafts = num_draft_rows > 0
        self.adapters = np.full(max_rows, NO_ADAPTER, dtype=np.int64)
        """The slot of each row's adapter."""
        self._slots = adapters
        self._columns = (self.token_ids, self.in_flight, self.block_tables, self.adapters)
        self._places = np.arange(max_rows, dtype=np.int64)

    def join(self, choice: Choice) -> None:
        row, group = choice.row, choice.group
        prompt, outputs = group.spec.prompt_token_ids, choice.output_token_ids
        self.token_ids[row] = outputs[-1] if outputs else prompt[-1]
        self.in_flight[row] = False
        self.adapters[row] = self.adapter_of(group)
        self.drafts.join(row)
        self.sampling.set(
            row,
            group.spec.sampling,
            choice.index,
            prompt_token_ids=prompt,
            output_token_ids=outputs,
            min_tokens=group.rules.min_tokens,
            banned=tuple(group.rules.eos_token_ids | group.rules.stop_token_ids),
            follower=choice.follower,
        )

    def leave(self, choice: Choice, last: int) -> None:
        row = choice.row
        if row != last:
            for column in self._columns:
                column[row] = column[last]
            self.sampling.move(last, row)
            self.drafts.move(last, row)

    def set_blocks(self, choice: Choice) -> None:
        table = choice.block_table
        self.block_tables[choice.row, : len(table)] = table

    def add_block(self, choice: Choice) -> None:
        table = choice.block_table
        self.block_tables[choice.row, len(table) - 1] = table[-1]

    @property
    def has_adapters(self) -> bool:
        """True if any row may have an adapter."""
        return bool(self._slots)

    def adapter_of(self, group: SequenceGroup) -> int:
        """Return the slot of a group's adapter."""
        return self._slots[group.spec.adapter] if group.spec.adapter else NO_ADAPTER

    def put_in_flight(self, rows: Rows) -> None:
        """The newest tokens of `rows` are those that a launched step draws."""
        self.token_ids[rows] = self._places[: num_in(rows)]
        self.in_flight[rows] = True

    def land(self, rows: NDArray[np.int64], token_ids: NDArray[np.int64]) -> None:
        """Set the tokens of `rows` that were in flight; no later step has appended to these."""
        self.token_ids[rows], self.in_flight[rows] = token_ids, False


def _lengths(tokens: Mapping[int, Sequence[int]], num_rows: int) -> NDArray[np.int64]:
    """Return the number of tokens of each row, by its place."""
    lengths = np.zeros(num_rows, dtype=np.int64)
    lengths[list(tokens)] = [len(own) for own in tokens.values()]
    return lengths


def _last(ends: NDArray[np.int64], nums: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the last `nums` [n] numbers before each of `ends` [n], ascending."""
    if not len(ends):
        return ends
    return np.arange(nums.sum()) + np.repeat(ends - np.cumsum(nums), nums)


class StepAssembler:
    """Makes the tensors of a step from a batch, its rows and some chunks."""

    def __init__(self, batch: Batch, rows: DeviceRows, block_size: int, device: torch.device) -> None:
        self._batch = batch
        self._table = rows
        self._block_size = block_size
        self._device = device
        self._upload = None if device.type == "cpu" else StepUpload(device)
        self._rows = np.arange(batch.max_rows + 1, dtype=np.int64)
        self._starts = np.arange(batch.max_rows + 1, dtype=np.int32)

    def force(self, num_decodes: int, most: int) -> dict[int, list[int]]:
        """Take in the newest tokens of rows with a grammar, and at most `most` tokens that it forces then.

        Return the forced tokens by row. They do not leave the row's last block, and a token can follow them.
        Rows whose own log-probabilities or counts every token takes part in have none.
        """
        batch, sampling, size, forced = self._batch, self._table.sampling, self._block_size, {}
        for row in self.follow(slice(0, num_decodes)):
            choice, follower = batch.choices[row], sampling.masks.follower(row)
            if sampling.wants_logprobs[row] or sampling.has_penalties[row]:
                continue
            in_block = size - 1 - int(batch.positions[row]) % size
            tokens = follower.follow_forced(min(most, in_block, choice.limit - choice.num_outputs - 1))
            if tokens:
                forced[row] = tokens
                most -= len(tokens)
        return forced

    def follow(self, rows: Rows) -> list[int]:
        """Let the grammars of `rows` take in the newest tokens; return the rows that have one."""
        masks, numbers = self._table.sampling.masks, self._rows[rows]
        found: list[int] = numbers[masks.has_grammar[rows]].tolist()
        for row in found:
            masks.follower(row).follow(self._batch.choices[row].output_token_ids)
        return found

    def begin_restricting(self, num_decodes: int, draft_rows: Sequence[int]) -> None:
        """Begin to find the tokens that grammars allow in the first rows; they have taken in the outputs.

        Do the same for `draft_rows` of the sampling table, which have a grammar.
        """
        masks = self._table.sampling.masks
        masks.begin([*np.flatnonzero(masks.has_grammar[:num_decodes]).tolist(), *draft_rows])

    def end_restricting(self) -> None:
        """Wait for what was begun: rows may change again."""
        self._table.sampling.masks.wait()

    def restrict_draws(self, rows: Rows, num_begun: int, draft_rows: Sequence[int] = ()) -> dict[int, str]:
        """Find the tokens that bad words and grammars forbid in `rows`, and grammars in `draft_rows`.

        Those of the first `num_begun` rows' grammars are found already. Return why no token may follow, by
        place among the rows, for those that cannot go on.
        """
        batch, sampling, numbers = self._batch, self._table.sampling, self._rows[rows]
        for row in numbers[sampling.has_bad_words[rows]].tolist():
            sampling.banned_now[row] = sampling.bad_words[row].banned_after(
                batch.choices[row].output_token_ids
            )
        masks = sampling.masks
        places = np.flatnonzero(masks.has_grammar[rows])
        joined = numbers[places[places >= num_begun]].tolist()
        for row in joined:
            masks.follower(row).follow(batch.choices[row].output_token_ids)
        masks.begin([*joined, *draft_rows])
        masks.wait()
        by_row = dict(zip(numbers[places].tolist(), places.tolist(), strict=True))
        return {by_row[row]: why for row, why in masks.stuck(list(by_row)).items()}

    @property
    def depends_on_newest(self) -> bool:
        """True if some row's next token cannot be drawn before the host knows the one before it."""
        rows, sampling = slice(self._batch.num_rows), self._table.sampling
        depends = sampling.has_bad_words[rows].any() or sampling.masks.has_grammar[rows].any()
        return bool(depends or (self._table.has_drafts and not sampling.wants_logprobs[rows].all()))

    def assemble(
        self,
        rows: Rows,
        chunks: Sequence[ChunkWork],
        forced: Mapping[int, Sequence[int]],
        drafts: Mapping[int, Sequence[int]],
    ) -> StepBatch:
        """Return the step of some rows, then the chunks.

        Each row has the newest token that was drawn for it, those that are `forced` after that one, and then
        `drafts`, each with logits of its own; both are by place among the rows. Each chunk's block table
        covers its last token.
        """
        if chunks or forced or drafts:
            return self._assemble_mixed(rows, chunks, forced, drafts)
        positions, n = self._batch.positions[rows], num_in(rows)
        longest = int(positions.max()) + 1
        width = -(-longest // self._block_size)
        slots = self._slots(self._rows[rows], positions)
        return self._step_batch(
            num_decodes=n,
            max_context_len=longest,
            token_ids=self._table.token_ids[rows],
            positions=positions,
            slot_mapping=slots,
            block_tables=self._table.block_tables[rows, :width],
            context_lens=(positions + 1).astype(np.int32),
            cu_seqlens_q=self._starts[: n + 1],
            logit_rows=self._rows[:n],
            in_flight=self._table.in_flight[rows],
            adapters=self._adapters(rows, (), self._rows[:n]),
        )

    def _slots(self, rows: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where in the pool the KV of each row's token at each position stands."""
        blocks = positions // self._block_size
        slots = self._table.block_tables[rows, blocks] * np.int64(self._block_size)
        return slots + positions - blocks * self._block_size

    def _assemble_mixed(
        self,
        rows: Rows,
        chunks: Sequence[ChunkWork],
        forced: Mapping[int, Sequence[int]],
        drafts: Mapping[int, Sequence[int]],
    ) -> StepBatch:
        size, table, n = self._block_size, self._table, num_in(rows)
        num_forced, num_drafted = _lengths(forced, n), _lengths(drafts, n)
        chunk_ends = np.array([chunk.end for chunk in chunks], dtype=np.int64)
        chunk_begins = np.array([chunk.begin for chunk in chunks], dtype=np.int64)
        lengths = np.concatenate([1 + num_forced + num_drafted, chunk_ends - chunk_begins])
        ends = np.concatenate([self._batch.positions[rows] + 1 + num_drafted, chunk_ends])
        starts = np.concatenate([[0], np.cumsum(lengths)])
        longest = int(ends.max())
        tables = np.zeros((n + len(chunks), -(-longest // size)), dtype=np.int32)
        tables[:n] = table.block_tables[rows, : tables.shape[1]]
        owners = np.repeat(np.arange(len(lengths)), lengths)
        positions = np.arange(starts[-1]) + (ends - starts[1:])[owners]
        token_ids = np.empty(starts[-1], dtype=np.int64)
        in_flight = np.zeros(starts[-1], dtype=np.bool_)
        token_ids[starts[:n]], in_flight[starts[:n]] = table.token_ids[rows], table.in_flight[rows]
        for place, tokens in forced.items():
            token_ids[starts[place] + 1 : starts[place] + 1 + len(tokens)] = tokens
        for place, tokens in drafts.items():
            token_ids[starts[place + 1] - len(tokens) : starts[place + 1]] = tokens
        wanted: list[int] = []
        for place, (chunk, start) in enumerate(zip(chunks, starts[n:-1].tolist(), strict=True), n):
            blocks = chunk.group.block_table[: tables.shape[1]]
            tables[place, : len(blocks)] = blocks
            token_ids[start : starts[place + 1]] = chunk.group.context[chunk.begin : chunk.end]
            wanted.extend(start + position - chunk.begin for position in chunk.prompt_rows)
            if chunk.wants_logits:
                wanted.append(start + chunk.end - chunk.begin - 1)
        slots = tables[owners, positions // size] * np.int64(size) + positions % size
        return self._step_batch(
            num_decodes=count_decodes(lengths),
            max_context_len=longest,
            token_ids=token_ids,
            positions=positions,
            slot_mapping=slots,
            block_tables=tables,
            context_lens=ends.astype(np.int32),
            cu_seqlens_q=starts.astype(np.int32),
            logit_rows=np.concatenate(
                [_last(starts[1 : n + 1], 1 + num_drafted), np.array(wanted, np.int64)]
            ),
            in_flight=in_flight,
            adapters=self._adapters(rows, chunks, owners),
        )

    def _adapters(
        self, rows: Rows, chunks: Sequence[ChunkWork], owners: NDArray[np.int64]
    ) -> AdapterRows | None:
        """Return the tokens that have an adapter; `owners` are their places among rows, then chunks."""
        if not self._table.has_adapters:
            return None
        of_chunks = [self._table.adapter_of(chunk.group) for chunk in chunks]
        slots = np.concatenate([self._table.adapters[rows], np.array(of_chunks, dtype=np.int64)])
        return adapter_rows(slots[owners], self._device)

    def _step_batch(
        self,
        *,
        num_decodes: int,
        max_context_len: int,
        adapters: AdapterRows | None,
        **columns: NDArray[Any],
    ) -> StepBatch:
        """Return the step whose tensors have these numbers."""
        if self._upload is None:
            tensors = [torch.from_numpy(np.ascontiguousarray(column)) for column in columns.values()]
        else:
            tensors = self._upload(list(columns.values()))
        named = dict(zip(columns, tensors, strict=True))
        return StepBatch(
            **named,
            num_decodes=num_decodes,
            max_context_len=max_context_len,
            adapters=adapters,
        )


class RowDrafts:
    """The drafts of one row."""

    __slots__ = ("_lookup", "_num_outputs", "acceptances", "num_computed", "num_kept_blocks")

    def __init__(self, of_model: Acceptance) -> None:
        self.acceptances = {Drafter.LOOKUP: Acceptance(), Drafter.MODEL: Acceptance(of_model)}
        """How likely the next token of each drafter is accepted."""
        self.num_computed = 0
        """Leading tokens of the sequence whose KV a draft model has computed into the row's blocks."""
        self.num_kept_blocks = 0
        """Leading blocks of which other sequences may know that they are computed."""
        self._lookup: PromptLookup | None = None
        """Made when it is first asked."""
        self._num_outputs = 0
        """Output tokens that the lookup has."""

    def look_up(self, choice: Choice, forced: Sequence[int], most: int) -> list[int]:
        """Return at most `most` tokens that may follow those of the choice and some that are sure to follow.

        They are what followed the newest ones where these stood before.
        """
        if self._lookup is None:
            self._lookup = PromptLookup((*choice.group.spec.prompt_token_ids, *choice.output_token_ids))
            self._num_outputs = len(choice.output_token_ids)
        new = [*choice.output_token_ids[self._num_outputs :], *forced]
        self._lookup.extend(new)
        self._num_outputs += len(new)
        return self._lookup.draft(most)


class DraftTable:
    """Follows the rows of a batch. A row's own part is made when it is first asked for.

    A choice that comes back to the batch, with other blocks, begins anew.
    """

    def __init__(self, max_rows: int) -> None:
        self._rows: list[RowDrafts | None] = [None] * max_rows
        self.of_model = Acceptance()
        """How likely tokens of a draft model are accepted in any row: new rows are expected to be alike."""

    def __getitem__(self, row: int) -> RowDrafts:
        """Return a row's own part."""
        drafts = self._rows[row]
        if drafts is None:
            drafts = self._rows[row] = RowDrafts(self.of_model)
        return drafts

    def join(self, row: int) -> None:
        """A row has another choice from now on."""
        self._rows[row] = None

    def move(self, source: int, target: int) -> None:
        """Overwrite the row that leaves with the last one."""
        self._rows[target] = self._rows[source]
