"""Views of sessions and trees as records, for terminals, gateways and pages alike.

    sessions    the list; `status`: one word for each
    find        what a person's text means: a session, an abbreviation, an agent of a tree
    tree        a tree at one moment, its usage and budgets
    past        an agent's events, from the end of its log, and messages among them; `search` in them
    approvals   requests that wait for a person; `asked_requests` by events, `patterns` over them,
                `decisions` on those that wait no more
    event_text  events in words
    turns       turns and their items, by events

Begin with `sessions` and `past`. Views must not know terminals, commands and how anything is drawn.
"""
