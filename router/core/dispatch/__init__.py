"""Groups leave their workers before they have ended.

drain      moves groups off a worker that drains, with their KV
migrate    moves groups that wait for blocks on their worker, and takes seats for higher classes
"""
