"""The service that both kinds of worker share; `prefill_worker` and `decode_worker` add their own sides.

In reading order:

    main           a worker process from its start to its end
    config         its settings, from flags
    identity       its role, name and sizes, as others see them
    role           what differs between the kinds of worker
    startup        checks, the engine's construction, and progress reports before it serves
    streams        the streams with routers, and the commands and reports on them
    handoff        the sender's side of the KV handoff, and the engine's memory in it
    engine         the engine as a worker holds it
    engine_thread  runs its step loop on a thread
    timed          an engine that computes nothing and only takes its time
    costs          what steps cost, followed and fitted while serving
    registration   announces the worker and its prefixes through Redis
    metrics        its metrics
    errors         what keeps it from serving, and what it refuses

Imports `engine`, `kvtransfer`, `scheduling`, `services` and `state`; only `startup.build` and `timed` load
torch models.
"""
