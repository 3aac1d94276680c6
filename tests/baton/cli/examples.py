"""A function that models may call, and a refusal."""

from baton.v1 import errors_pb2

FUNCTION = {"name": "get_weather", "description": "d", "parameters": {"type": "object"}, "strict": True}
REFUSAL = errors_pb2.SloRefusal(attainable_ttft_ms=950, attainable_tpot_ms=45, attainable_itl_ms=60)
