"""The life of a process: logs, threads and the event loop. Imports nothing else of the project."""
