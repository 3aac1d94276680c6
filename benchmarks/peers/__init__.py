"""Baton's router and gateway beside the frontends of others, which run on this machine in turns.

- `command`: what streams and requests cost, and how it is reported; `loads`: what is sent
- `strikes`: what streams survive; `struck`: the fleets that are struck
- `overload`: what is still served well of twice the load that a fleet carries
- `baton_arm`, `dynamo_arm`: what takes the load
- `environments`: of their own for programs that Baton does not depend on
"""
