"""A pipe that ends with this process and the last of those that it started to write something.

Each of these children is given the pipe's writing end, and gives it to nobody. So the reading end comes to
its end when all of them are gone, and this process too: by the kernel's word, whoever killed them. A program
that only reads, or writes what nobody else looks at, is not given it.

One for each process; a fork that was made without an `exec` keeps it, too.
"""

from __future__ import annotations

import os
from functools import cache


@cache
def ends() -> tuple[int, int]:
    """The reading end and the writing one; made when they are first asked for."""
    return os.pipe2(os.O_CLOEXEC)


def passed() -> tuple[int, ...]:
    """The descriptors that a child which writes is to be passed; none where nobody reads."""
    return ends()[1:] if ends.cache_info().currsize else ()
