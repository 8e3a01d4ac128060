"""Keeps requests from waiting for hours: a delayed run starts after a second."""

import schemathesis


@schemathesis.hook
def before_call(context, case, kwargs):
    runs = case.body if isinstance(case.body, list) else [case.body]
    for run in runs:
        seconds = run.get("after_seconds") if isinstance(run, dict) else None
        if isinstance(seconds, (int, float)) and 1 < seconds < 1e9:
            run["after_seconds"] = 1
