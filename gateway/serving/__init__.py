"""HTTP connections, and what is known of their requests.

- `connection`: bounds in time and size for each connection, and errors of HTTP itself.
- `requests`: what is counted and logged of each request; `metrics`: the metrics.
- `ignored`: the parts of a request that are left out, and where they are named.
"""
