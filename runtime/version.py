"""The version of Baton, as services tell it."""

VERSION = "0.1.0"
