"""Commands: started confined, streamed, capped, and dead when the right to run them is gone.

Deliberately without imports: the supervisor's process loads `supervisor_process` from here, and whatever it
loads is paid for at each fork.
"""
