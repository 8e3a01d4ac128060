//! Programs: any async function from a state to an update can be an agent.
//!
//! A runnable replaces the model, the policies and the tools of a main agent or of a subagent. Everything else is as with
//! other agents: its run is listed, streamed, limited and cancelled like theirs, its end is durable, and a run that has
//! ended never runs again. A remote agent is also such a program.

use async_trait::async_trait;

use super::halt::Halt;
use super::scope::Scope;
use crate::definition::AfterCrash;
use crate::domain::state::{State, Update};

/// An agent that is a program. One program can serve several agents; [`Scope::agent`] is the name of the current one.
///
/// An async function is one, too:
///
/// ```
/// use adjutant::{Halt, Message, Runnable, Scope, State, Update};
///
/// async fn count(_: Scope, state: State) -> Result<Update, Halt> {
///     let words: usize = state.messages.all().iter().map(|message| message.content.text().split_whitespace().count()).sum();
///     Ok(Update::messages([Message::ai(format!("{words} words"))]))
/// }
///
/// let runnable: Box<dyn Runnable> = Box::new(count);
/// # drop(runnable);
/// ```
#[async_trait]
pub trait Runnable: Send + Sync {
    /// Returns the handling of work that was in progress when the server crashed: the program runs again, a human is
    /// asked (the default, since the program may have had effects), or the caller gets an error result.
    fn after_crash(&self) -> AfterCrash {
        AfterCrash::default()
    }

    /// Returns whether the program ends by itself when [`Budget::time_left`](crate::tool::budget::Budget::time_left) is
    /// over, because it has to stop something then. Any other program is dropped.
    fn keeps_time(&self) -> bool {
        false
    }

    /// Does the work. For a main agent, `state` is that of the thread, with the new messages at its end. For a subagent,
    /// the last message is the order; the files and fields are those that the caller shares.
    ///
    /// The update is written into the state and, as with every subagent, passed on to the caller where it is shared.
    /// The update has to hold at least one message. The caller reads `structured_response` if it is set, else the last
    /// message of the subagent. With [`Scope::form`] set one of the two has to fit it, the text as JSON.
    ///
    /// The future is dropped when the run has to stop, and, if the work may be repeated, when the server stops.
    ///
    /// # Errors
    /// [`Halt::Fail`] is an error result for the caller, or the failure of the main agent's run. [`Halt::Ask`] parks the run: it is begun anew, with
    /// [`Scope::answer`] and [`Scope::answers`] set, when everything is answered.
    async fn run(&self, scope: &Scope, state: State) -> Result<Update, Halt>;
}

#[async_trait]
impl<F, W> Runnable for F
where
    F: Fn(Scope, State) -> W + Send + Sync,
    W: Future<Output = Result<Update, Halt>> + Send,
{
    async fn run(&self, scope: &Scope, state: State) -> Result<Update, Halt> {
        self(scope.clone(), state).await
    }
}
