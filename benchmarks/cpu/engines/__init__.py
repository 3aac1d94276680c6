"""The engines that are compared.

- `loads`: what each of them is given
- `baton_engine`: a fleet; `process_engine`: an engine in a process of its own
- `peers`: such engines of others, and how they are started; `forms`: models as they read them
- `serving`: the loop of such a process; `transformers_process`, `openvino_process`: its engines, and
  `llama_process.mjs`, which does the same in JavaScript; `gguf_process`: writes the file that it reads
"""
