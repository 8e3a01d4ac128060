//! Ways past an approval: `command.goto`, writes into the state, and others.
