"""The contract on gRPC.

- `transport`: a call for each request; `many`: generations that share calls, and which of them
  do; `rows`: the messages of these calls.
- `convert`: messages; `fields`: one field of a message, and values in errors and JSON; `status`: errors.

May import the SDK's types and errors, its credentials and the generated stubs.
"""
