"""A prefill worker: `worker`, in the role that computes prompts and sends their KV."""
