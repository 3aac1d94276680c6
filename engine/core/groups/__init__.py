"""The groups of sequences on a worker, by phase. Each piece of their state has one owner:

| State | Owner |
|---|---|
| which groups there are, their phases and queues, the rows promised to prompts | `roster` |
| which groups may have blocks, how long outputs become, blocks in host memory | `engine.core.memory.room` |
| block tables, and how much of a context is computed | `engine.core.memory.block_tables` |
| rows of running choices | `engine.core.batch` |
| adapters, and who waits for them | `engine.core.adapters` |
| reads of prefixes that are under way | `engine.core.groups.incoming` |
| loans | `engine.core.groups.outgoing` |
| the report | `groups` |

`groups` changes the first five together: how groups run, give their blocks up and end. Around it stand
`incoming` (how sequences come in, and the KV that they wait for, from other workers and tiers) and `outgoing`
(blocks that other workers copy).

Imports other modules of `engine.core`, `model_output` and `scheduling`.
"""
