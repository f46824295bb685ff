"""A machine for the processes of this door."""

from __future__ import annotations

from tests.cli.conftest import machine

__all__ = ["machine"]
