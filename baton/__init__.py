"""Client SDK and command line of Baton."""
