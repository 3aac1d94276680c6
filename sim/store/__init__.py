"""The fleet's shared state without Redis.

`memory_store` has the operations of `runtime.state.store` that a simulation uses, over the `WaitingLine` of
`scheduling` and a `ledger` of credits or leases for each worker. It may import `runtime.state` and
`scheduling`.
"""
