//! Ids: one type for each kind, so that the compiler rejects a run's id in the place of a thread's.
//!
//! New ids are UUIDs of version 7; those of server processes are of version 8. Both sort by creation time, which keeps database
//! indexes append-only.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::{Builder, Uuid};

/// Defines a type of ids. A macro, since an id of one kind must not be taken for one of another: each is a type.
macro_rules! id_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

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

/// Defines a type of ids that the server creates.
macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        id_type!(
            $(#[$doc])*
            $name
        );

        impl $name {
            /// Creates a new id that sorts after all earlier ones.
            #[expect(clippy::disallowed_methods, reason = "the one place where time-ordered ids are minted")]
            pub fn mint() -> Self {
                Self(Uuid::now_v7())
            }
        }
    };
}

id!(
    /// The id of a thread.
    ThreadId
);
id!(
    /// The id of a run, of the main agent or of a subagent.
    RunId
);
id!(
    /// The id of an assistant.
    AssistantId
);
id!(
    /// The id of a checkpoint.
    CheckpointId
);
id!(
    /// The id of a cron.
    CronId
);
id!(
    /// The id of a webhook delivery, the same for all attempts.
    DeliveryId
);
id!(
    /// The id of a remembered decision.
    DecisionId
);
id!(
    /// The id of a job of the queue.
    JobId
);
id!(
    /// The id of a sandbox of a sandbox service, chosen by the server before the sandbox is created.
    SandboxId
);
id!(
    /// The version of a login to an MCP server: another one whenever its tokens change.
    LoginVersion
);
id_type!(
    /// The id of a server process, valid while it lives; leases contain it.
    WorkerId
);

impl WorkerId {
    /// The number of the forms in which rows are stored that this release reads: one more for each form that the release before
    /// does not read.
    pub const FORMS_READ: u32 = 4;

    /// Creates a new id that sorts after all earlier ones. It is a UUID of version 8 that ends with the number of the forms which
    /// this release reads. By that a database on Postgres tells it from former ones: the ids of their servers end with random
    /// digits. See "Upgrades" in `docs/operations.md`.
    #[expect(clippy::disallowed_methods, reason = "it keeps the order of other ids")]
    pub fn mint() -> Self {
        let mut ordered = Uuid::now_v7().into_bytes();
        if let Some(end) = ordered.last_chunk_mut() {
            *end = Self::FORMS_READ.to_be_bytes();
        }
        Self(Builder::from_custom_bytes(ordered).into_uuid())
    }
}

impl RunId {
    /// Derives the id of the child run of a delegated call from the call's task, so that a crash cannot create two.
    pub fn of_child(task: TaskId) -> Self {
        Self(Uuid::new_v5(&task.0, b"child"))
    }
}

impl RunId {
    /// Derives the id of the run of a background task from the call's task, so that a crash cannot create two.
    pub fn of_background(task: TaskId) -> Self {
        Self(Uuid::new_v5(&task.0, b"background run"))
    }

    /// Returns whether the id was derived from a call, so that the server itself has created the run for an agent. The runs
    /// that clients start have minted ids.
    pub fn is_of_call(self) -> bool {
        self.0.get_version_num() == 5
    }
}

impl ThreadId {
    /// Derives the id of the thread of a background task from the call's task, so that a crash cannot create two.
    pub fn of_background(task: TaskId) -> Self {
        Self(Uuid::new_v5(&task.0, b"background"))
    }
}

impl AssistantId {
    /// Derives the id of a definition's default assistant: a UUID of version 5 of the `graph_id`, as LangGraph clients
    /// compute it.
    pub fn of_graph(graph_id: &str) -> Self {
        const GRAPHS: Uuid = Uuid::from_u128(0x6ba7b821_9dad_11d1_80b4_00c04fd430c8);
        Self(Uuid::new_v5(&GRAPHS, graph_id.as_bytes()))
    }
}

/// The id of one task of a step: a hook, a model call, or one tool call.
///
/// Derived from the checkpoint that the step follows, so that a step which is resumed days later keeps its ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TaskId(pub Uuid);

/// The checkpoint from which the tasks of a step have their ids: the one that the step follows or, if the step was carried
/// on to a checkpoint of its own, the one after which it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StepBase(Option<CheckpointId>);

impl StepBase {
    /// Returns the base of the step after checkpoint `head`. A step that was carried on began after `carried_from`.
    pub fn after(head: Option<CheckpointId>, carried_from: Option<CheckpointId>) -> Self {
        Self(carried_from.or(head))
    }

    /// Returns the id of the `index`-th execution of `node` in the step. States and streams have it from here.
    pub fn task(self, node: &str, index: usize) -> TaskId {
        let space = self.0.map_or(Uuid::nil(), |base| base.0);
        TaskId(Uuid::new_v5(&space, format!("{node}:{index}").as_bytes()))
    }

    /// Returns the checkpoint; none if the step is the first of its lane.
    pub fn checkpoint(self) -> Option<CheckpointId> {
        self.0
    }
}

impl TaskId {
    /// Derives the id of the `index`-th execution of `node` in a step after checkpoint `head` that was not carried on.
    #[cfg(test)]
    pub fn of_step(head: Option<CheckpointId>, node: &str, index: usize) -> Self {
        StepBase::after(head, None).task(node, index)
    }

    /// Derives the id of the `number`-th delegation of a call after which its tool is called again.
    pub fn of_delegation(call: Self, number: usize) -> Self {
        Self(Uuid::new_v5(&call.0, format!("delegation:{number}").as_bytes()))
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The id of an interrupt: 32 hexadecimal digits, derived from the task that asks.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct InterruptId(pub String);

impl InterruptId {
    /// Derives the id of the `nth` question of `task` in its step, from 0. A repeated question gets another id.
    pub fn of_task(task: TaskId, nth: u32) -> Self {
        let name = if nth == 0 {
            "interrupt".to_owned()
        } else {
            format!("interrupt:{nth}")
        };
        Self::of_name(task, &name)
    }

    /// Derives the id of the `nth` question of `task` in a step that was carried on to the checkpoint `head`. Several branches may
    /// carry the same step on, and each numbers its own questions.
    pub fn of_carried_task(task: TaskId, head: CheckpointId, nth: u32) -> Self {
        Self::of_name(task, &format!("interrupt:{head}:{nth}"))
    }

    fn of_name(task: TaskId, name: &str) -> Self {
        Self(Uuid::new_v5(&task.0, name.as_bytes()).simple().to_string())
    }
}

impl fmt::Display for InterruptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The digest of a definition's content: equal definitions have equal digests.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DefinitionDigest(pub String);

impl fmt::Display for DefinitionDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_workers_sort_by_age_and_are_of_version_8() {
        let ids: Vec<WorkerId> = (0..100).map(|_| WorkerId::mint()).collect();
        assert!(ids.is_sorted());
        assert!(ids.iter().all(|id| id.0.get_version_num() == 8));
    }

    #[test]
    fn the_run_of_a_call_is_told_by_its_id() {
        let task = TaskId(Uuid::nil());
        assert!(RunId::of_background(task).is_of_call());
        assert!(!RunId::mint().is_of_call());
    }
}
