"""Models of the Hugging Face Hub, fetched into the cache that other tools share.

In reading order:

- `names` (which texts name a model of the hub, and which a folder), `contents` (the files that are needed).
- `snapshot` (fetch a model), `blobs` (one file: resumed, verified, then moved into place), `refusals` and
  `reasons` (why a model cannot be fetched, in one sentence each), `progress` (bytes, rate and rest).
- `program` (the program that fetches, which `__main__` starts), `apart` (how a service runs it).

Only the program loads the hub's library: services stay small, and fork while they have one thread.
"""
