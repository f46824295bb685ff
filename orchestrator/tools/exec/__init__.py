"""Commands: started confined, streamed, capped, and dead when the right to run them is gone.

Deliberately without imports: the keeper's process loads `keeper_process` and `minder` from
here, and whatever it loads is paid for at each fork.
"""
