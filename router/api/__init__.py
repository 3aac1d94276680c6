"""The router's gRPC services.

In reading order: `service` (inference), `fleet_service` (operators), `scaler_service` (how many workers are
needed, for KEDA); `convert` (to and from protobuf), `many_call` (many generations over one call),
`auth_interceptor` (checks the credential of each call), `error_interceptor` and `status` (errors).

May import every other package of the router.
"""
