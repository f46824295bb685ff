"""Views of sessions and trees as records, for terminals, gateways and pages alike.

    sessions    the list; `status`, `short_ids`, `find`: one word, one abbreviation, one meaning
    tree        a tree at one moment; `agents`: one of its agents
    past        an agent's events, from the end of its log; `messages` among them; `search` in them
    approvals   requests that wait for a person; `open_requests` by events, `patterns` over them,
                `decisions` on those that wait no more
    event_text  events in words
    turns       turns and their items, by events

Begin with `sessions` and `past`. Views must not know terminals, commands and how anything is drawn.
"""
