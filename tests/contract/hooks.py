"""Keeps requests from waiting for hours, and checks that callers without a key learn nothing."""

import os

import schemathesis

WITHOUT_KEY = "ADJUTANT_CONTRACT_WITHOUT_KEY" in os.environ


@schemathesis.hook
def before_call(context, case, kwargs):
    """A delayed run starts after a second."""
    runs = case.body if isinstance(case.body, list) else [case.body]
    for run in runs:
        seconds = run.get("after_seconds") if isinstance(run, dict) else None
        if isinstance(seconds, (int, float)) and 1 < seconds < 1e9:
            run["after_seconds"] = 1


@schemathesis.check
def nothing_without_a_key(ctx, response, case):
    """Everything is 401, but the health of the server and the question of a browser before a request."""
    is_public = case.operation.path in ("/ok", "/ready") or response.request.method == "OPTIONS"
    if WITHOUT_KEY and not is_public:
        assert response.status_code == 401, f"{response.status_code} instead of 401"
