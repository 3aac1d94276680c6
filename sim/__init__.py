"""The fleet on a simulated clock: the router's own decisions, with nothing waited for."""
