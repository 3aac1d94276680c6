"""The contract on gRPC: `transport` (calls), `convert` (messages), `status` (errors).

May import the SDK's types and errors, its credentials and the generated stubs.
"""
