"""Redis that restarts, fills up, drops connections, or comes back as it was earlier."""
