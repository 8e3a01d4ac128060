//! Subagents that are programs: any async function from a state to what it writes.
//!
//! A runnable takes the place of model, policies and tools. Everything around it stays as with other subagents: its run is
//! listed, streamed, limited and cancelled like theirs, its end is durable, and one that has ended is never run again.

use async_trait::async_trait;

use crate::definition::AfterCrash;
use crate::domain::state::{State, Update};
use crate::tool::{Halt, Scope};

/// A subagent that is a program. One can serve several subagents; [`Scope::agent`] tells as which it works.
///
/// An async function is one, too:
///
/// ```
/// use adjutant::{Halt, Message, Runnable, Scope, State, Update};
///
/// async fn count(_: Scope, state: State) -> Result<Update, Halt> {
///     let words: usize = state.messages.iter().map(|message| message.content.text().split_whitespace().count()).sum();
///     Ok(Update::messages([Message::ai(format!("{words} words"))]))
/// }
///
/// let runnable: Box<dyn Runnable> = Box::new(count);
/// # drop(runnable);
/// ```
#[async_trait]
pub trait Runnable: Send + Sync {
    /// What is to be done about work that was under way when the server died: it is run again, a human is asked (the
    /// default, since it may have had effects), or its caller is told that it failed.
    fn after_crash(&self) -> AfterCrash {
        AfterCrash::default()
    }

    /// Does the work. The last message of `state` is the order; its files and fields are those that the caller shares.
    ///
    /// What comes back is written into the state and, as with every subagent, passes on to the caller where it is shared.
    /// It has to hold at least one message. The caller reads `structured_response` if it is set, else the last thing that
    /// the subagent said. With [`Scope::form`] set one of the two has to fit it, the text as JSON.
    ///
    /// The future is dropped when the run is told to stop, and, if the work may be repeated, when the server stops.
    ///
    /// # Errors
    /// [`Halt::Fail`] is an error result for the caller. [`Halt::Ask`] parks the run: it is begun anew, with
    /// [`Scope::answer`] set, when somebody has answered.
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
