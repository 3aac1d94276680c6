"""GGUF files, the format of llama.cpp, as checkpoints in transformers' format.

In reading order:

- `errors` (why a file cannot be served), `tensor_types` (the numbers that a file may hold).
- `header` (what a file says of itself: keys, and tensors with their shapes and places), `keys` (reads them).
- `architectures` (the config, and transformers' names of the tensors), `tokenizer` (`tokenizer.json`, chat
  template and special tokens).
- `folder` (writes all of it beside a link to the file, so that the rest of Baton sees a checkpoint's folder).

Only the worker's engine reads tensors (`engine.model.quantised.gguf_weights`). Python's own library is enough
here, as routers read these files too.
"""
