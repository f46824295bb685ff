"""The runtime's logger: for operators; what users are to know is in events."""

from __future__ import annotations

import logging

log = logging.getLogger("dendro.runtime")
