"""What there is to see of sessions and trees, as records: for terminals, doors and pages alike.

    sessions    what there is; `status`, `short_ids`, `find`: one word, one abbreviation, one meaning
    tree        a tree at one moment; `agents`: one of its agents
    past        an agent's events, from the end of its log; `messages` among them; `search` in them
    approvals   what waits for a person; `open_requests` by events, `patterns` over them,
                `decisions` on those that wait no more
    event_text  events in words

Begin with `sessions` and `past`. Must not know terminals, commands and how anything is drawn.
"""
