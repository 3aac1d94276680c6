"""The text of generated tokens, and where a choice ends. Workers use it to generate, routers to resume.

In reading order: `output` (one choice), `stop` (stop strings), `reasoning` (where they do not count),
`detokenizer` (token ids to text), `grammar` (which tokens may follow), `bounds` (what it adds to schemas),
`exact_numbers` (those that it refuses), `ebnf` (a notation that it reads), `refusal` (its error), `kept`
(what was compiled), `token_sizes` (how few tokens a text can have), `model_files` (a model's files, read and
refused).

May import `scheduling.request`, and nothing else of the project.
"""
