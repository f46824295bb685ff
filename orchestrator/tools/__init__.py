"""The tools that a model is offered, and what their calls do.

    toolbox      which tool a call means: assess it, run it, judge what a lost worker's call left behind
    specs        what the model is told of them; `arguments`: what it may ask for
    shell, exec/      commands, under a supervisor that kills them when the right to run them ends
    commands/         what a command line would do, read before it runs
    apply_patch, patch/  patches: grammar, plan, and writing that a crash cannot tear
    subagents/        the tools of agents: names, arguments, and what they ask of the tree

Begin with `toolbox`. Must not know runners, the log and Redis.
"""
