"""The only door to Redis."""
