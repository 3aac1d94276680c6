"""What is asked of a fleet: lengths, arrivals, classes and promises. Pure; drawn from seeds."""
