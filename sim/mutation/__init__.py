"""Changes of the product, each looked for by the simulator and by the tests: operators over its text, sampled
by a seed, and defects of meaning that hands have planted.

One story, by module:

    change            one mutated place, and its name that outlives shifted lines
    python_operators  what can be changed in Python;  lua_operators: in a script
    sampling          which changes a seed chooses
    meaning           defects of meaning, as their patches have them
    overlay           a process that runs with a change, while the files stay as they are
    maps              which seeds and tests come to which lines
    noting            a plugin of pytest that makes the tests' part of the map
    hunt              a process that runs the simulator with a change
    trial             one change from its planting to its verdict
    verdicts          what is known of changes: found, equivalent, surviving;  table: told on the page

`python -m sim.mutation --sample 200 --seed 1` runs a sample; `docs/simulator.md` has its table.
`python -m sim.mutation --meaning` runs the planted ones: `docs/defects-of-meaning.md`.
"""
