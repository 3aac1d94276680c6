"""Server reflection, which describes a server to tools: as `v1`, and as `v1alpha` for older tools."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import grpc.aio
from google.protobuf import descriptor_pb2, descriptor_pool, text_format
from grpc_reflection.v1alpha import (  # type: ignore[import-untyped]  # ships no annotations
    reflection,
    reflection_pb2,
    reflection_pb2_grpc,
)

ALPHA: str = reflection.SERVICE_NAME
V1 = "grpc.reflection.v1.ServerReflection"
NAMES = (V1, ALPHA)


def add_reflection(server: grpc.aio.Server, names: Iterable[str]) -> None:
    """Describe the services of these names, and reflection itself, to tools.

    The library has only `v1alpha`. The messages of `v1` are the same on the wire: one servicer serves both.
    """
    _describe_v1()
    servicer: Any = reflection.aio.ReflectionServicer([*names, *NAMES])
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, server)
    info: grpc.RpcMethodHandler[Any, Any] = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    handlers = grpc.method_handlers_generic_handler(V1, {"ServerReflectionInfo": info})
    server.add_generic_rpc_handlers((handlers,))


def _describe_v1() -> None:
    """Add the file of `v1` to the pool in which reflection looks up names."""
    alpha = descriptor_pb2.FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(alpha)
    text = text_format.MessageToString(alpha).replace("grpc.reflection.v1alpha", "grpc.reflection.v1")
    v1 = text_format.Parse(text, descriptor_pb2.FileDescriptorProto())
    v1.name = "grpc/reflection/v1/reflection.proto"
    descriptor_pool.Default().AddSerializedFile(v1.SerializeToString())
