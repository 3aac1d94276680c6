"""Puts an engine together.

build        builds an engine from its settings
settings     these settings
build_draft  builds its draft model, if it has one
"""
