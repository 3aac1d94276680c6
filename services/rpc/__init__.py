"""What the gRPC servers and streams of the fleet share. May import `services.process` and `.security`."""
