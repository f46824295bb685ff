"""Foreign defects: planted by somebody who has read the documentation and the code, and not the tests.

Each is a patch beside this file. Its head says what is wrong, which sentence of the documentation it
breaks, and what finds it; `docs/testing.md` tells how to add one. `python -m sim.foreign` plants each
in a copy of the tree and runs what should find it.
"""
