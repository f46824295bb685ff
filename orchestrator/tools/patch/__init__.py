"""apply_patch: from a command line to files changed, all of them or none.

    invocation   argv            -> the patch's text
    grammar      text            -> hunks
    plan         hunks, files    -> what every file will be, checked before anything is written
    writable     plan, roots     -> the paths that are not ours to write
    apply        plan, roots     -> the job to be carried out, and what its outcome says
    writing      job             -> written, or rolled back: runs under the supervisor, and is light
    record       plan            -> what a takeover needs to tell none / all / in doubt
    turn_diff    baselines       -> the task's accumulated diff

It must not know of sessions, approvals or events: those who call it decide and report.
"""
