"""Traces of requests, by OpenTelemetry. Without the flag that names a collector nothing here does anything.

`context` (which span of which trace, as W3C's traceparent says it), `span` (one that is over), `tracer`
(decides what is traced, and hands spans over), `exporter` (sends them, on a thread; the only user of
OpenTelemetry's package), `settings` (flags).

A span is made once it is over, from times that its process has noted. Imports nothing else of `runtime`.
"""
