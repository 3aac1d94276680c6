"""LoRA adapters that are loaded while a worker serves, when requests ask for them.

catalog     the adapters of a folder, looked through again and again
load_times  how long it takes to load one
loader      loads those that the engine asks for, on a thread, and says what the fleet is told of them
"""
