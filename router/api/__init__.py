"""The router's gRPC services.

In reading order: `service` (inference), `fleet_service` (operators), `scaler_service` (how
many workers are needed, for KEDA); `sizes`, `validation` and
`check_chat` (check requests), `convert` and `convert_chat` (to and from protobuf), `client_stream`
(buffers tokens for a client), `many` (many generations over one call), `pending_calls` (calls before the
core knows them), `error_interceptor` and `status` (errors).

May import every other package of the router.
"""
