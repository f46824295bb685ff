"""apply_patch: from a command line to files changed, all of them or none.

    grammar   text         -> hunks
    files     paths        -> what stands there: content, mode, and where a path really leads
    plan      hunks, files -> what every file will be, checked before anything is written, and the
                              paths of it that are not ours to write
    writer    plan         -> written, or rolled back: runs under the supervisor, and is light

It must not know of sessions, approvals or events: those who call it decide and report.
"""
