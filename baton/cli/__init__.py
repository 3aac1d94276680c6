"""The command line: `baton up`, `generate`, `chat`, `status`, `health` and `demo`."""
