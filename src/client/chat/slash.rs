//! The commands of a chat, which begin with `/`.

/// A command.
pub(super) struct SlashCommand {
    /// The name, with the `/`.
    pub(super) name: &'static str,
    /// The argument that may follow it.
    pub(super) argument: &'static str,
    /// The description in the list of commands.
    pub(super) about: &'static str,
}

/// All commands.
pub(super) const COMMANDS: [SlashCommand; 14] = [
    of("/help", "", "shows this list"),
    of("/agents", "", "lists the agents"),
    of("/agent", "NAME", "talks to another agent, on a new thread"),
    of("/threads", "", "lists the threads that changed last"),
    of("/thread", "ID", "continues another thread"),
    of("/new", "", "begins a new thread"),
    of("/state", "", "shows the state of the thread"),
    of("/files", "[PATH]", "lists the files of the thread, or shows one"),
    of("/todos", "", "shows the todos"),
    of("/approvals", "", "answers the questions for which the thread waits"),
    of("/decisions", "", "lists the decisions for the rest of the thread"),
    of("/revoke", "ID", "revokes one of them"),
    of("/cancel", "", "cancels the runs of the thread"),
    of("/quit", "", "leaves; so does Ctrl-D"),
];

const fn of(name: &'static str, argument: &'static str, about: &'static str) -> SlashCommand {
    SlashCommand { name, argument, about }
}

/// Returns the list of commands.
pub(super) fn help() -> String {
    let lines = COMMANDS.iter().map(|command| {
        let usage = format!("{} {}", command.name, command.argument);
        format!("{usage:18} {}\n", command.about)
    });
    let more = "\nAny other line is a message. A line that ends with \\ goes on, and a paste may have several lines. \
         Ctrl-C cancels the run.\nA message that begins with / is written with two of them.\n";
    lines.collect::<String>() + more
}
