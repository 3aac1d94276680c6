"""A worker as a service; `prefill_worker` and `decode_worker` start it in one role or the other.

In reading order:

    main           a worker process from its start to its end
    config         its settings
    threads        how many threads it computes with
    role           the two kinds of worker
    startup        its command, checks, the engine's construction, and progress reports before it serves
    streams        the streams with routers, and the commands and reports on them
    handoff        both sides of the KV handoff, and the engine's memory in it
    adapters       LoRA adapters that are loaded while it serves
    engine         the engine as a worker holds it, and how long its steps may last
    engine_thread  runs its step loop on a thread
    grammar_thread compiles grammars on another
    timed          an engine that computes nothing and only takes its time
    costs          what steps cost, followed and fitted while serving
    registration   announces the worker and its prefixes through Redis
    prefix_changes the blocks that it has yet to announce, from one tier
    metrics        its metrics
    errors         what keeps it from serving, and what it refuses

Imports `engine`, `kvtransfer`, `model_output`, `runtime`, `scheduling` and the generated stubs. Here
only `startup` and `timed` import torch themselves.
"""
