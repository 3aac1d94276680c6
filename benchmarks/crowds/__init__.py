"""Fleets under more requests than they carry, or under load for long:

- `soak`: minutes of load on a fleet of the size of real cards, beside `compilers` if asked
- `crowd`: its clients, in processes of their own
- `burst`: thousands of requests in one moment, beside a neighbour's
"""
