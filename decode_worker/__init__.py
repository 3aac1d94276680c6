"""A decode worker: `worker`, in the role that fetches KV and generates, and hands KV on when it leaves."""
