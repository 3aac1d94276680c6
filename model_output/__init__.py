"""The text that models write. In reading order:

- `text`: token ids to text, and where a choice ends
- `grammar`: which tokens may follow, where a request asks for a format
- `formats`: tool calls and reasoning, read out of the text

None of the three imports another. May import `scheduling.request`, and nothing else of the project.
"""
