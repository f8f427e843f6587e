"""The kinds of things that plugins register.

The registry knows no contract. Each kind has a home module in the room that owns the contract. The home module
registers the built-in things of its kind through the same hook as a third-party plugin, and defines
`check_plugin(thing)`, which raises TypeError for a thing that breaks the contract.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint

GROUP = "xmcbench"  # the entry-point group of plugins

HOOKS = {
    "method": "register_methods",
    "sampler": "register_samplers",
    "evaluator": "register_evaluators",
    "dataset": "register_datasets",
    "teacher": "register_teachers",
    "tracker": "register_trackers",
}

HOMES = {
    kind: EntryPoint(kind, module, GROUP)
    for kind, module in {
        "method": "xmcbench.trial.method",
        "sampler": "xmcbench.engine.sampling.builtin",
        "evaluator": "xmcbench.evaluation.evaluator",
        "dataset": "xmcbench.data.catalog",
        "teacher": "xmcbench.teachers.builtin",
        "tracker": "xmcbench.tracking.builtin",
    }.items()
}
