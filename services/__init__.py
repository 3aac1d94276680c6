"""What every process of the fleet has: logs, and the words of the contract that all of them speak."""
