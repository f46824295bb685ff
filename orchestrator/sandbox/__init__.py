"""Confinement of commands: what a command may touch, and the kernel mechanisms that hold it to that.

Deliberately without imports: the supervisor loads parts of this package into a process
that forks once per command, and every module in it is paid for at each fork.
"""
