"""Collect what has arrived for many generations into one message, its tokens as columns."""

from __future__ import annotations

from baton.v1 import inference_pb2
from router.api.convert import put_deltas, put_event
from router.core.model.actions import TellPromptLogprobs
from router.links.client_stream import StreamItem, TokenBatch
from router.outputs import OutputReader


class Rows:
    """The next message of a call."""

    def __init__(self) -> None:
        self._message = inference_pb2.GenerateManyResponse()
        self._ids: list[int] = []
        self._choices: list[int] = []
        self._first_indexes: list[int] = []
        self._num_tokens: list[int] = []
        self._token_ids: list[int] = []
        self._texts: list[bytes] = []
        self._num_deltas: list[int] = []
        self.size = 0
        """How many numbers it has, about."""

    def add(
        self,
        generation_id: int,
        item: StreamItem,
        reader: OutputReader,
        first_written_at: float | None,
        now: float,
    ) -> None:
        """Add tokens or another event of a generation, as `put_event` does."""
        if isinstance(item, TokenBatch) and not item.logprobs:
            text = "".join(item.texts)
            num_deltas = 0
            if reader.has_deltas:
                deltas = reader.read(item.choice, text)
                put_deltas(self._message.tokens.deltas, deltas)
                num_deltas = len(deltas)
            self._ids.append(generation_id)
            self._choices.append(item.choice)
            self._first_indexes.append(item.first_index)
            self._num_tokens.append(len(item.token_ids))
            self._token_ids += item.token_ids
            self._texts.append(text.encode())
            self._num_deltas.append(num_deltas)
            self.size += len(item.token_ids) + num_deltas
        else:
            event = self._message.events.add(id=generation_id, after_rows=len(self._ids))
            put_event(event.generation, item, reader, first_written_at, now)
            self.size += _size(item)

    def end(self, generation_id: int, status: bytes) -> None:
        """Add a generation's end with an error."""
        self._message.events.add(id=generation_id, after_rows=len(self._ids), status=status)
        self.size += 1

    def message(self) -> inference_pb2.GenerateManyResponse:
        """Return the message."""
        if self._ids:
            tokens = self._message.tokens
            tokens.ids.extend(self._ids)
            tokens.choices.extend(self._choices)
            tokens.first_indexes.extend(self._first_indexes)
            tokens.num_tokens.extend(self._num_tokens)
            tokens.text_lengths.extend(map(len, self._texts))
            tokens.token_ids.extend(self._token_ids)
            tokens.text_utf8 = b"".join(self._texts)
            if tokens.deltas:
                tokens.num_deltas.extend(self._num_deltas)
        return self._message


def _size(item: StreamItem) -> int:
    match item:
        case TokenBatch():
            return sum(2 + 2 * len(logprobs.top_token_ids) for logprobs in item.logprobs)
        case TellPromptLogprobs():
            return len(item.told.logprobs) * (1 + 2 * item.told.num_top)
    return 1
