"""The contract on gRPC: `transport` (a call for each request), `many` (generations that share calls),
`convert` (messages), `convert_prompt`, `fields` (one field of a message), `status` (errors), `shown` (values
in errors and JSON), `addresses` (those behind a name).

May import the SDK's types and errors, its credentials and the generated stubs.
"""
