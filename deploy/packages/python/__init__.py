"""The server `adjutant` as a program. The package has no Python interface: talk to the server with `langgraph-sdk`."""
