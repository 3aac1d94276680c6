"""The engine of a worker, and the threads that it runs on.

engine         the engine as a worker holds it, and how long its steps may last
engine_thread  runs its step loop on a thread, and compiles grammars on another
"""
