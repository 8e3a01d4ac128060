//! Identities. A newtype each, so that a run can never be taken for a thread.
//!
//! Minted ids are UUIDs of version 7: they sort by the time of their making, which keeps indexes append-only.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl $name {
            /// Mints a new one, later than all before it.
            #[expect(clippy::disallowed_methods, reason = "the one place where time-ordered ids are minted")]
            pub fn mint() -> Self {
                Self(Uuid::now_v7())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = uuid::Error;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                text.parse().map(Self)
            }
        }

        impl From<Uuid> for $name {
            fn from(uuid: Uuid) -> Self {
                Self(uuid)
            }
        }
    };
}

id!(
    /// Identifies a thread.
    ThreadId
);
id!(
    /// Identifies a run, of the main agent or of a subagent.
    RunId
);
id!(
    /// Identifies an assistant.
    AssistantId
);
id!(
    /// Identifies a checkpoint.
    CheckpointId
);
id!(
    /// Identifies a cron.
    CronId
);
id!(
    /// Identifies a report of a run, however often it is sent.
    DeliveryId
);
id!(
    /// Identifies a job of the queue.
    JobId
);
id!(
    /// Identifies a server process for as long as it lives; leases name it.
    WorkerId
);

impl RunId {
    /// The child run that a delegated call makes: derived from the call's task, so that a crash cannot make two.
    pub fn of_child(task: TaskId) -> Self {
        Self(Uuid::new_v5(&task.0, b"child"))
    }
}

impl RunId {
    /// The run that a call for work in the background starts: derived as that of a child is.
    pub fn of_background(task: TaskId) -> Self {
        Self(Uuid::new_v5(&task.0, b"background run"))
    }
}

impl ThreadId {
    /// The thread of the background task that a call begins: derived from the call's task, so that a crash cannot make two.
    pub fn of_background(task: TaskId) -> Self {
        Self(Uuid::new_v5(&task.0, b"background"))
    }
}

impl AssistantId {
    /// The assistant that every agent definition has by itself: a UUID of version 5 of the `graph_id`, as clients
    /// of the field's platform API compute it.
    pub fn of_graph(graph_id: &str) -> Self {
        const GRAPHS: Uuid = Uuid::from_u128(0x6ba7b821_9dad_11d1_80b4_00c04fd430c8);
        Self(Uuid::new_v5(&GRAPHS, graph_id.as_bytes()))
    }
}

/// Identifies one task of a step: a hook, a model call, or one tool call.
///
/// Derived from the checkpoint on which the step works, so that a step which is resumed days later keeps its ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TaskId(pub Uuid);

impl TaskId {
    /// The task that runs `node` for the `index`-th time in the step after checkpoint `head`.
    pub fn of_step(head: Option<CheckpointId>, node: &str, index: usize) -> Self {
        let space = head.map_or(Uuid::nil(), |head| head.0);
        Self(Uuid::new_v5(&space, format!("{node}:{index}").as_bytes()))
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Identifies a question to a human: 32 hexadecimal digits, derived from the task that asks.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct InterruptId(pub String);

impl InterruptId {
    /// The question asked by `task` as the `nth` one of its step, from 0; asking again makes another id.
    pub fn of_task(task: TaskId, nth: u32) -> Self {
        let name = if nth == 0 {
            "interrupt".to_owned()
        } else {
            format!("interrupt:{nth}")
        };
        Self(Uuid::new_v5(&task.0, name.as_bytes()).simple().to_string())
    }
}

impl fmt::Display for InterruptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
