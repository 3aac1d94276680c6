"""Authentication and budgets of callers.

In reading order: `auth` (credentials and budgets), `principal` (the caller), `rules` (the file of --door),
`tokens` (JSON Web Tokens).

Of the router it may import `errors`, `request` and the checks in `intake`.
"""
