"""TLS, the roles in certificates, and the flags for both. Of `services` it imports only `rpc.handlers`."""
