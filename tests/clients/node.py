"""Node.js and the TypeScript SDK, as `make` installs them."""

from __future__ import annotations

from tools.house.source_tree import ROOT

BIN = ROOT / ".venv-node" / "bin"
SDK = ROOT / "clients" / "typescript"
