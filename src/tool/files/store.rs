//! A workspace in the Store, whose files outlive threads.
//!
//! A file is an item: its key is the path, its value has the fields of [`File`]. The space of the Store belongs to the
//! owner of the thread, so files of one owner are never seen by another, whatever the namespace.
//!
//! Writes take effect at once, and only if the item is still as it was read: so of two threads that change one file,
//! the second is refused.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Map, Value};

use super::workspace::{FileAccess, FileQuery, FileWorkspace, FoundPaths, SearchStop};
use crate::domain::item::template::NamespaceTemplate;
use crate::domain::item::{Indexing, Item, ItemAddress, ItemLifetime, Namespace, NewItem};
use crate::domain::machine::Failure;
use crate::domain::state::{File, FileFacts, Update};
use crate::tool::scope::Scope;
use crate::tool::store::{placeholder, server_value};

/// The maximum number of files that are listed and searched at once.
const MAX_FILES: usize = 10_000;

/// Returns whether a letter may be in a value that is filled into a namespace.
fn is_plain(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || "-_.@+:~".contains(letter)
}

/// Fills a template of a workspace with values of the run.
///
/// # Errors
/// The text for the model, if a value is missing or has other letters than a namespace may have.
pub(super) fn fill(template: &NamespaceTemplate, known: impl Fn(&str) -> Option<String>) -> Result<Namespace, String> {
    let wrong = std::cell::RefCell::new(None);
    let checked = |name: &str| {
        let value = known(name)?;
        if value.chars().all(is_plain) {
            return Some(value);
        }
        *wrong.borrow_mut() = Some(name.to_owned());
        None
    };
    let filled = template.fill(checked);
    if let Some(name) = wrong.into_inner() {
        return Err(format!(
            "Error: these files cannot be reached: the value of `{name}` must consist of the letters A-Z, a-z, 0-9 and \
             - _ . @ + : ~"
        ));
    }
    filled.map_err(|unfilled| format!("Error: these files cannot be reached: {unfilled}."))
}

/// The files in one namespace of the Store.
#[derive(Debug, Clone)]
pub struct StoreFiles {
    namespace: NamespaceTemplate,
}

impl StoreFiles {
    /// Creates the workspace of the namespace that each run fills into the template.
    pub fn new(namespace: NamespaceTemplate) -> Self {
        Self { namespace }
    }

    fn namespace(&self, scope: &Scope) -> Result<Namespace, String> {
        // The Store is the owner's alone, so that a context may choose among the owner's own namespaces.
        fill(&self.namespace, |name| {
            placeholder(scope, name).or_else(|| server_value(scope, name))
        })
    }

    fn address(&self, scope: &Scope, path: &str) -> Result<ItemAddress, String> {
        let namespace = self.namespace(scope)?;
        ItemAddress::new(namespace, path).map_err(|error| format!("Error: '{path}' cannot be a file: {error}"))
    }

    async fn item(&self, access: FileAccess<'_>, path: &str) -> Result<Option<Item>, String> {
        let address = self.address(access.scope, path)?;
        access
            .scope
            .store
            .get(address)
            .await
            .map_err(|failure| error_text(&failure))
    }

    /// Puts `after` in the place of the file, if it is still `before`.
    async fn replace(
        &self,
        access: FileAccess<'_>,
        path: &str,
        before: Option<&File>,
        after: Option<&File>,
    ) -> Result<(), String> {
        let item = self.item(access, path).await?;
        let there = item.as_ref().and_then(|item| file_of(item).ok());
        if is_same(there.as_ref(), after) {
            return Ok(());
        }
        if !is_same(there.as_ref(), before) {
            return Err(conflict(path));
        }
        let address = self.address(access.scope, path)?;
        let new = after.map(|file| NewItem {
            address: address.clone(),
            value: value_of(file),
            lifetime: ItemLifetime::default(),
            // Files are found by their paths and texts, so no embedding model has to read them.
            indexing: Indexing::Off,
        });
        let value = item.map(|item| item.value);
        let replaced = access.scope.store.replace(address, value, new).await;
        if replaced.map_err(|failure| error_text(&failure))? {
            Ok(())
        } else {
            Err(conflict(path))
        }
    }
}

/// Returns whether two files have the same content.
pub(super) fn is_same(one: Option<&File>, other: Option<&File>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => one.encoding == other.encoding && one.content == other.content,
        (None, None) => true,
        (Some(_), None) | (None, Some(_)) => false,
    }
}

/// Returns the text for a model whose change came second.
pub(in crate::tool) fn conflict(path: &str) -> String {
    format!(
        "Error: '{path}' has been changed by someone else in the meantime. Nothing was changed. Read it again, and then \
         make your change to what it says now."
    )
}

fn error_text(failure: &Failure) -> String {
    format!("Error: the files in the Store cannot be reached: {}", failure.message)
}

/// Returns the file in an item.
fn file_of(item: &Item) -> Result<File, String> {
    let file = File::from_item(&item.value).ok_or_else(|| {
        let path = &item.address.key;
        format!("Error: the item '{path}' of the Store is no file: it has no text `content`")
    })?;
    Ok(File {
        created_at: Some(item.created_at.to_string()),
        modified_at: Some(item.updated_at.to_string()),
        ..file
    })
}

fn value_of(file: &File) -> Map<String, Value> {
    match serde_json::to_value(file) {
        Ok(Value::Object(value)) => value,
        Ok(_) | Err(_) => Map::new(),
    }
}

#[async_trait]
impl FileWorkspace for StoreFiles {
    fn is_shared(&self, _: &str) -> bool {
        true
    }

    fn has_effects(&self) -> bool {
        true
    }

    async fn paths(&self, access: FileAccess<'_>, query: &FileQuery) -> Result<FoundPaths, String> {
        let namespace = self.namespace(access.scope)?;
        let keys = access
            .scope
            .store
            .keys(namespace, query.at.clone(), MAX_FILES + 1)
            .await;
        let mut keys = keys.map_err(|failure| error_text(&failure))?;
        let stop = (keys.len() > MAX_FILES).then_some(SearchStop::Files);
        keys.truncate(MAX_FILES);
        Ok(query.admitted(keys, stop).await)
    }

    async fn facts(&self, access: FileAccess<'_>, paths: &[String]) -> Result<BTreeMap<String, FileFacts>, String> {
        let namespace = self.namespace(access.scope)?;
        let known = access.scope.store.file_facts(namespace, paths.to_vec()).await;
        known.map_err(|failure| error_text(&failure))
    }

    async fn read(&self, access: FileAccess<'_>, path: &str) -> Result<Option<Arc<File>>, String> {
        let item = self.item(access, path).await?;
        item.map(|item| file_of(&item).map(Arc::new)).transpose()
    }

    async fn write(
        &self,
        access: FileAccess<'_>,
        path: &str,
        file: File,
        before: Option<&File>,
    ) -> Result<Update, String> {
        self.replace(access, path, before, Some(&file)).await?;
        Ok(Update::none())
    }

    async fn delete(
        &self,
        access: FileAccess<'_>,
        at: &str,
        files: Vec<String>,
        before: Option<&File>,
    ) -> Result<Option<Update>, String> {
        for path in &files {
            let read;
            let there = match before.filter(|_| path == at) {
                Some(before) => Some(before),
                None => {
                    read = self.read(access, path).await?;
                    read.as_deref()
                }
            };
            self.replace(access, path, there, None).await?;
        }
        Ok((!files.is_empty()).then(Update::none))
    }
}
