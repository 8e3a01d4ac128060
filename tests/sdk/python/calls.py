"""Calls the methods of a client, async or sync alike, and remembers which methods and parameters were used."""

import asyncio
import inspect

# What every method takes besides its own parameters.
FOR_ALL = {"self", "headers", "params"}


class Parts:
    """The parts of an asynchronous stream, one at a time."""

    def __init__(self, loop, stream):
        self.loop = loop
        self.stream = stream

    def __iter__(self):
        return self

    def __next__(self):
        try:
            return self.loop.run_until_complete(anext(self.stream))
        except StopAsyncIteration:
            raise StopIteration from None

    def close(self):
        self.loop.run_until_complete(self.stream.aclose())


class Resource:
    """The methods of one resource, like `threads`. What they give is waited for; streams are iterators with `close`."""

    def __init__(self, name, methods, loop, used):
        self._name = name
        self._methods = methods
        self._loop = loop
        self._used = used

    def __getattr__(self, name):
        method = getattr(self._methods, name)

        def call(*args, **kwargs):
            given = inspect.signature(method).bind(*args, **kwargs).arguments
            self._used.setdefault(f"{self._name}.{name}", set()).update(given)
            return self._outcome(method(*args, **kwargs))

        return call

    def _outcome(self, result):
        if inspect.iscoroutine(result):
            result = self._loop.run_until_complete(result)
        if hasattr(result, "__anext__"):
            result = Parts(self._loop, result)
        return result


class Calls:
    """A client whose every use is remembered."""

    def __init__(self, client):
        self.client = client
        self.loop = asyncio.new_event_loop()
        self.used = {}
        self.resources = {name: value for name, value in vars(client).items() if not name.startswith("_")}
        for name, methods in self.resources.items():
            setattr(self, name, Resource(name, methods, self.loop, self.used))

    def close(self):
        outcome = getattr(self.client, "aclose", None) or self.client.close
        result = outcome()
        if inspect.iscoroutine(result):
            self.loop.run_until_complete(result)
        self.loop.close()

    def methods(self):
        """Every public method of every resource, with the names of its own parameters."""
        found = {}
        for name, resource in self.resources.items():
            for method, function in inspect.getmembers(type(resource), inspect.isfunction):
                if not method.startswith("_"):
                    found[f"{name}.{method}"] = set(inspect.signature(function).parameters) - FOR_ALL
        return found

    def left_out(self, methods, parameters):
        """Methods, and parameters as `method(parameter)`, that nobody used and that are not excused."""
        left = []
        for method, own in sorted(self.methods().items()):
            if method not in self.used and method not in methods:
                left.append(method)
            elif method in self.used:
                left += [f"{method}({name})" for name in sorted(own - self.used[method]) if name not in parameters]
        return left

    def table(self, excused):
        """One line for each resource: its methods but for those that are excused."""
        lines = {}
        for method in sorted(self.methods()):
            resource, _, name = method.partition(".")
            if method not in excused:
                lines.setdefault(resource, []).append(f"`{name}`")
        return {resource: ", ".join(names) for resource, names in lines.items()}
