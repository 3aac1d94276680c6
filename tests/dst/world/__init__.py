"""The ground that simulated processes run on: time, event loops, dice and a network.

scheduler   virtual time, and which call is made next
loop        an asyncio event loop on a process's own clock
process     one process: it runs, stands still, or is dead
dice        randomness by name, so that one draw more or less changes no other
network     links between processes, and what travels on them
rpc         unary calls and streams of responses over the network, as grpc.aio makes them

Nothing here knows what a process does: a core, its shell, or a client. Anything that runs on asyncio runs on
`loop`, in virtual time.
"""
