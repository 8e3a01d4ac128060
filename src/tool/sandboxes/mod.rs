//! Sandboxes behind HTTP: a sandbox service keeps files and runs commands apart from this server.
//!
//! [`SandboxService`] speaks the protocol of `docs/sandboxes.md`, [`SandboxFiles`] is a workspace in a sandbox, and
//! [`SandboxCommands`] runs the commands of the tool `execute` there. A thread has a sandbox of its own, or each of its
//! agents has; its id is chosen and stored before the sandbox is created, so that a crash leaves none behind. It is
//! created when it is first needed. When the service knows it no longer, it is created anew, and the model is told.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::scope::Scope;
use crate::definition::SandboxScope;
use crate::domain::id::SandboxId;
use crate::domain::sandbox::SandboxKey;

mod client;
mod commands;
mod files;

use client::SandboxError;
pub use client::SandboxService;
pub use commands::SandboxCommands;
pub use files::SandboxFiles;

/// The sandbox services of the configuration, by name. Cheap to clone.
#[derive(Clone, Default)]
pub struct SandboxServices(Arc<BTreeMap<String, Arc<SandboxService>>>);

impl SandboxServices {
    /// Creates the collection of these services.
    pub fn new(services: impl IntoIterator<Item = (String, SandboxService)>) -> Self {
        let shared = services.into_iter().map(|(name, service)| (name, Arc::new(service)));
        Self(Arc::new(shared.collect()))
    }

    /// Returns the place of an agent's sandbox at the service of this name; none if there is no such service.
    pub fn place(&self, service: &str, scope: SandboxScope) -> Option<SandboxPlace> {
        let service = Arc::clone(self.0.get(service)?);
        Some(SandboxPlace { service, scope })
    }

    /// Ends a sandbox at the service of this name. One that is not there has ended.
    ///
    /// # Errors
    /// A text for the operator.
    pub async fn end(&self, service: &str, id: SandboxId) -> Result<(), String> {
        let Some(service) = self.0.get(service) else {
            return Err("its service is not configured on this server".to_owned());
        };
        match service.end(id).await {
            Ok(()) | Err(SandboxError::Gone) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// The place of an agent's sandbox: a service, and whose sandbox it is. Cheap to clone.
#[derive(Clone)]
pub struct SandboxPlace {
    service: Arc<SandboxService>,
    scope: SandboxScope,
}

impl SandboxPlace {
    fn key(&self, scope: &Scope) -> SandboxKey {
        let agent_path = match self.scope {
            SandboxScope::Thread => String::new(),
            SandboxScope::Agent => scope.path.join("/"),
        };
        SandboxKey {
            thread: scope.thread,
            service: self.service.name().to_owned(),
            agent_path,
        }
    }

    /// Returns the id of the sandbox, which is there afterwards.
    ///
    /// # Errors
    /// The reason for the model, without a full stop.
    async fn open(&self, scope: &Scope) -> Result<SandboxId, String> {
        let key = self.key(scope);
        let record = scope.sandboxes.find_or_add(&key).await;
        let record = record.map_err(|failure| failure.message)?;
        if record.is_created {
            return Ok(record.id);
        }
        let created = self.service.create(record.id).await;
        created.map_err(|error| format!("the sandbox cannot be created: {error}"))?;
        let stored = scope.sandboxes.set_created(&key, record.id).await;
        stored.map_err(|failure| failure.message)?;
        Ok(record.id)
    }

    /// Returns the reason for the model why something in the sandbox failed, without a full stop. A sandbox that the
    /// service knows no longer is created anew, unless the scope is that of one who only reads for a tool.
    async fn explain(&self, scope: &Scope, id: SandboxId, error: SandboxError) -> String {
        if !matches!(error, SandboxError::Gone) || !scope.sandboxes.replaces_lost() {
            return error.to_string();
        }
        match self.service.create(id).await {
            Ok(()) => "the sandbox was gone, with all of its files. A new one, which is empty, has taken its place. \
                Nothing was done in it yet: make again what you need, and then repeat this call"
                .to_owned(),
            Err(error) => format!("the sandbox is gone, with all of its files, and cannot be created anew: {error}"),
        }
    }
}
