//! The resources that requests are about.

use std::fmt;

use crate::domain::id::{AssistantId, CronId, DeliveryId, ThreadId};

/// The resource of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResourceRef {
    /// No single resource: a search, or a resource that is created.
    Collection,
    /// A thread and everything on it, or the thread of a remote background task.
    Thread(ThreadId),
    /// An assistant.
    Assistant(AssistantId),
    /// A cron.
    Cron(CronId),
    /// A webhook delivery.
    Delivery(DeliveryId),
}

impl fmt::Display for ResourceRef {
    /// Writes the resource as the audit shows it; nothing for a collection.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Collection => Ok(()),
            Self::Thread(id) => write!(f, "thread:{id}"),
            Self::Assistant(id) => write!(f, "assistant:{id}"),
            Self::Cron(id) => write!(f, "cron:{id}"),
            Self::Delivery(id) => write!(f, "delivery:{id}"),
        }
    }
}
