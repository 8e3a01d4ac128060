"""Keeps requests from waiting for hours: a run that is to begin later begins almost at once, and so it can end."""

import schemathesis


@schemathesis.hook
def before_call(context, case, kwargs):
    wishes = case.body if isinstance(case.body, list) else [case.body]
    for wish in wishes:
        seconds = wish.get("after_seconds") if isinstance(wish, dict) else None
        if isinstance(seconds, (int, float)) and 1 < seconds < 1e9:
            wish["after_seconds"] = 1
