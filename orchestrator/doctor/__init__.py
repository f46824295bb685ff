"""Checks of `dendro doctor`: this machine (`machine`), its Redis (`server`), reported as `findings`."""
