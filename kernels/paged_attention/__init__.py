"""What `paged_decode` and `chunked_prefill` share: arguments, reference and the loop over a tile's KV."""
