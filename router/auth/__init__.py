"""Authentication, budgets and limits of callers.

In reading order: `interceptor` (checks each call), `auth` (credentials and budgets), `principal` (the
caller), `rules` (the file of --door), `tokens` (JSON Web Tokens), `limits` (sizes and counts).

Of the router it may import `errors`, and of `api` the validation and the end of a call.
"""
