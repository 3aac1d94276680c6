"""From which length on it pays to get the beginning of a prompt from elsewhere instead of computing it.

- `comparison`: prompts, flags and the table of both
- `kv_tiers`: from the worker's host memory or disk
- `shared_prefixes`: from another worker
"""
