"""Tests of `dendro mcp-server`, by the official client."""
