"""What operators see and do: the fleet as a whole."""
