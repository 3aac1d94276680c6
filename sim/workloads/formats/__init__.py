"""The files that traces come in. Each is read row by row, so a file may be longer than memory. In reading
order:

- `reading`: finds the format of a file, plain or gzipped, and yields its requests
- `baton`: what a live fleet of ours records; `mooncake`, `azure`, `burstgpt`: published traces of others
- `rows`: rows of JSON and of CSV, and checks of their values
"""
