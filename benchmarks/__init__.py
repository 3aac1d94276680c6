"""Measurements of a running fleet, apart from the tests."""
