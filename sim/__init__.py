"""The simulator: the real core, runtime and Lua on simulated time, under a seed that decides everything.

One story, by module:

    loop        lanes instead of threads, time that passes when nothing can happen
    idle_time   time that passes at once where nobody needs it
    double      Redis, and a journal to go back in
    store       its commands, in Lua;  polls: those in vain, that are not sent
    network     delays, lost commands and lost replies between processes and Redis;
                held_messages: the worst moment
    machines    worker processes that are killed, stopped, stuck and drained;  upkeep: those that keep tidy
    objects     the archive's folder;  files: that of rollouts
    model_script, tool_calls: the model and the tools
    ledger      what commands really did
    people      clients;  workloads, workloads_kept: what they do, with a fixture
    nemesis     what goes wrong;  degradations: servers and supervisors that go on serving;
                triggers: at which command
    invariants  the rules;  watch: those of every step;  audit: those of the end;
                observer: what the rules' modules need of watch
    rights      what watch asks: who may run what;  accounts: a tree's counters;  deadlines: timers;
                cancels: ended agents;  inputs: what people said;  answers: to which question;
                secrets: where they stand;
                shown: what others are told;
                requests: those of models;  inherited: forks;  admissions: providers;
                queued: what lies in a queue;
                archive_moves: what leaves Redis and comes back;  exported: rollouts' files;
                read_back: exports, read again
    grammar     a second reader of every log;  grammar_calls, grammar_tree: its parts;
                grammar_state: what it knows;  grammar_terms: words of the log;
                conversation: what the model was asked and what it said;
                agent_messages: what agents are told of each other;  policy: which calls need leave
    rest        who is at rest, and what happens next
    knobs       what differs between deployments
    reach       what was come by, and what not
    world       one seed from its plan to its verdict;  campaign: many of them;  trace: one, line by line
    scale       what fleets of many sizes cost Redis: laws of growth
    mutants     what the rules are worth;  defects, defects_of_…: what is planted;  mutant: how;
                mutation: changes that a seed chooses;  foreign: what others planted, for tests too

`docs/simulator.md` shows how to use it.
"""
