"""The public door's lock: who calls, as which tenant, and within which budget."""
