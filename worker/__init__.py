"""A worker as a service; `prefill_worker` and `decode_worker` start it in one role or the other.

In reading order:

    process   its command, and the process from its start to its end
    config    its settings
    place     its place among several processes that a cluster has started
    commands  the commands of routers
    threads   how many threads it computes with
    role      the two kinds of worker
    startup   its flags, and all that is built before it serves
    engine    the engine as a worker holds it, on a thread
    timed     an engine that computes nothing and only takes its time
    adapters  LoRA adapters that are loaded while it serves
    streams   the streams with routers, and the commands and reports on them
    handoff   what both kinds of worker do in KV handoffs, and the engine's memory in them
    costs     what steps cost, followed and fitted while serving
    metrics   its metrics
    errors    what keeps it from serving, and what it refuses

Imports run one way: process → startup → streams → handoff, timed → engine → adapters, and from each of them
to the modules above.

Imports `engine`, `kvtransfer`, `model_output`, `runtime`, `scheduling` and the generated stubs. Here
only `startup` and `timed` import torch themselves.
"""
