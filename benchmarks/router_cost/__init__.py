"""The costs that Baton's router adds to a request, and where they are.

- `command`: first tokens, calls to Redis, processor time, and how they are reported
- `alone`: a worker without a router; `empty_service`: a router's messages without a router
- `redis_calls`: the commands that Redis executes meanwhile
- `profiler`: samples of a router, by part of a request's path
"""
