"""Builds all that a worker consists of, before it serves.

flags          the parser of flags, and the settings that they give
fetch          fetches a model of the hub, unless no worker could serve it
group/         the processes of a worker that has several
build          builds the engine that the flags ask for
build_sides    builds the sides of the handoff, and decides whether KV goes by NIXL
tiers          opens host memory and the disk for blocks that leave the pool
kept_files     files that are kept for the next start
numbers_cache  keeps the numbers that weights were rounded to
sweep_cache    keeps what steps cost
proof_cache    keeps the proof of a model that is not on the list
"""
