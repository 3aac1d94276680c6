"""Reads the texts of scripted events as a router does, so that scripts need not say what texts say."""

from __future__ import annotations

from baton.v1 import inference_pb2
from model_output.formats import ChatFormats
from router.api.convert import put_deltas
from router.outputs import OutputReader, Reading, tool_to_read
from scheduling.request import FinishReason, Matched

Request = inference_pb2.GenerateRequest | inference_pb2.ResumeRequest


class ScriptedReading:
    """The texts of all requests so far."""

    def __init__(self) -> None:
        self._readers: dict[str, OutputReader] = {}

    def read(
        self, request: Request, event: inference_pb2.GenerationEvent, reader: OutputReader | None
    ) -> tuple[inference_pb2.GenerationEvent, OutputReader | None]:
        """Return an event of a call with its deltas, and the reader of the call so far."""
        said = inference_pb2.GenerationEvent()
        said.CopyFrom(event)
        match said.WhichOneof("event"):
            case "accepted" if not said.accepted.has_deltas:
                reader = self._reader(request, said.accepted)
                said.accepted.has_deltas = reader.has_deltas
            case "tokens" if reader is not None and reader.has_deltas:
                put_deltas(said.tokens.deltas, reader.read(said.tokens.choice, said.tokens.text))
            case "choice_finished" if reader is not None and reader.has_deltas:
                end = said.choice_finished
                matched = Matched(
                    end.stop_string if end.HasField("stop_string") else None,
                    end.stop_token_id if end.HasField("stop_token_id") else None,
                )
                put_deltas(end.deltas, reader.end(end.choice, FinishReason(end.reason), matched))
        return said, reader

    def _reader(self, request: Request, accepted: inference_pb2.Accepted) -> OutputReader:
        """Return the reader of a request. A resumed one goes on: the scripts' texts do."""
        if isinstance(request, inference_pb2.ResumeRequest):
            if accepted.request_id in self._readers:
                return self._readers[accepted.request_id]
            request = request.request
        reading = Reading(
            ChatFormats(accepted.tool_format, accepted.reasoning_format),
            accepted.reasoning_open,
            tuple(tool_to_read(tool.name, tool.parameters) for tool in request.chat.tools),
            request.HasField("output_format"),
        )
        self._readers[accepted.request_id] = OutputReader(reading, accepted.request_id)
        return self._readers[accepted.request_id]
