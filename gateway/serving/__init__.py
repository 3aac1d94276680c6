"""HTTP connections, and what is known of their requests.

- `connection`: bounds in time and size for each connection, and errors of HTTP itself; `pool`: how many.
- `door`: what is settled before a body is read; `origins`: browsers' requests; `keys`: proven credentials.
- `shares`: how much each caller may hold; `bounds`: how much a body may contain.
- `page`: what people with a browser see.
- `requests`: what is counted and logged of each request; `metrics`: the metrics.
- `ignored`: the parts of a request that are left out, and where they are named.
"""
