"""The text of generated tokens, and where a choice ends. Workers use it to generate, routers to resume.

In reading order: `output` (one choice), `stop` (stop strings), `detokenizer` (token ids to text),
`grammar` (which tokens may follow), `bounds` (what it adds to schemas), `exact_numbers` (which it refuses),
`ebnf` (a notation that it reads), `refusal` (its error), `kept` (what was compiled), `model_files` (a model's
files, read and refused).

May import `scheduling.request`, and nothing else of the project.
"""
