"""The tools that a model is offered, and what their calls do.

    tool         what a tool is: names, offer, assess, run, judge; `tool_context`: what a call of it is told
    toolbox      the tools of one worker, and which of them a call means
    shell, exec/                commands, under a supervisor that kills them when the right to run them ends
    exec_command                commands that may go on behind their call, and `write_stdin` to them
    commands/, exec_policy      what a command line would do, read before it runs; what the owner says of it
    apply_patch, patch/         patches: grammar, plan, and writing that a crash cannot tear
    update_plan, question, images  what is done as soon as it is assessed, or answered by a person
    agent_tools, subagents      the tools of agents: names, arguments, and what they ask of the tree
    jobs         work of a pool that belongs to no session
    custom       tools that the program around Dendro brings along

Begin with `tool`. Must not know runners, the log and Redis.
"""
